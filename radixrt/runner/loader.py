"""Loads a model: files, config, code, weights, in this order.  Owns no tensors afterwards."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from radixrt.config import ModelConfig
from radixrt.errors import ConfigError
from radixrt.models import ARCHITECTURES, LoadableModel, Model, select
from radixrt.models.config import LlamaConfig, ModelShape, hugging_face_architecture
from radixrt.weights.blocks import QUANTIZED, TABLES, kept_type
from radixrt.weights.dummy import fill_dummy
from radixrt.weights.gguf import ROPE_FACTORS, GGUFFile
from radixrt.weights.resolve import ModelFiles, read_json, resolve_model
from radixrt.weights.safetensors import SafetensorsFiles
from radixrt.weights.source import Progress, StoredTensor, WeightSource, fill


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, the files it came from, and how long loading took."""

    model: Model
    shape: ModelShape
    files: ModelFiles
    seconds: float


def load_model(config: ModelConfig, *, progress: Progress | None = None) -> LoadedModel:
    """Load the model of a resolved config (device and dtype are concrete).

    ``progress`` gets (bytes read, bytes in all, tensor name).  Raises ConfigError when files, config and weights are
    missing, malformed or do not fit each other, and when ``context_length`` exceeds what the model supports.
    """
    begin = time.perf_counter()
    files = resolve_model(
        config.model_path, tokenizer_path=config.tokenizer_path, revision=config.revision, load_format=config.load_format
    )
    model = _BUILDERS[files.kind](files, config, progress)
    return LoadedModel(model, model.shape, files, time.perf_counter() - begin)


def _load_toy(files: ModelFiles, config: ModelConfig, progress: Progress | None) -> Model:
    toy = importlib.import_module("radixrt.models.toy")
    context = checked_context(config.context_length, toy.MAX_CONTEXT)
    model: Model = toy.ToyModel(context_length=context, device=config.device)
    return model


def _load_gguf(files: ModelFiles, config: ModelConfig, progress: Progress | None) -> Model:
    if config.model_impl == "transformers":
        raise ConfigError("--model-impl transformers reads Hugging Face folders, not GGUF files")
    source = GGUFFile(files.weights[0], keep=QUANTIZED if _is_native(config) else (), vocabulary=False)
    divisors = source.tensor(ROPE_FACTORS).tolist() if ROPE_FACTORS in source.tensors else ()
    shapes = {name: entry.shape for name, entry in source.stored.items()}
    described = LlamaConfig.from_gguf(source.metadata, shapes, divisors)
    return _filled(_build_llama(described, config, source.stored), files, source, config, progress)


def _load_hugging_face(files: ModelFiles, config: ModelConfig, progress: Progress | None) -> Model:
    assert files.config is not None
    raw = read_json(files.config)
    if "quantization_config" in raw:
        raise ConfigError(f"{files.config}: quantized checkpoints are not supported; use the original weights or a GGUF file")
    generation = read_json(files.generation_config) if files.generation_config is not None else None
    architecture = hugging_face_architecture(raw)
    source = None if files.dummy else SafetensorsFiles(files.weights)
    model: LoadableModel
    if config.model_impl == "radixrt" or (config.model_impl == "auto" and architecture in ARCHITECTURES):
        select(architecture)
        model = _build_llama(LlamaConfig.from_hugging_face(raw, generation), config, source.stored if source is not None else {})
    elif config.quantization not in ("none", "file", "auto"):
        raise ConfigError(f"--quantization {config.quantization}: radixrt has no model code of its own for {architecture}")
    else:
        build: Any = importlib.import_module("radixrt.models.transformers_model").build
        model = build(
            raw, generation, context_length=config.context_length, dtype=_dtype(config), device=torch.device(config.device)
        )
    return _filled(model, files, source, config, progress)


_BUILDERS = {"toy": _load_toy, "gguf": _load_gguf, "safetensors": _load_hugging_face}


def _build_llama(described: LlamaConfig, config: ModelConfig, stored: Mapping[str, StoredTensor]) -> LoadableModel:
    shape = replace(described.shape, context_length=checked_context(config.context_length, described.shape.context_length))
    described = replace(described, shape=shape)
    if _is_native(config):
        kinds = {name: entry.kind for name, entry in stored.items()}
        native: Any = importlib.import_module("radixrt.models.native_llama").NativeLlama
        kept: LoadableModel = native(
            described,
            kind=lambda name, size: kept_type(kinds.get(name, "f32"), size, quantization=config.quantization, is_table=name in TABLES),
        )
        return kept
    model: LoadableModel = select(shape.architecture)(described, dtype=_dtype(config), device=torch.device(config.device))
    return model


def _is_native(config: ModelConfig) -> bool:
    return config.quantization not in ("none", "auto")


def checked_context(asked: int | None, supported: int) -> int:
    """Return the context length to serve; raise ConfigError when more is asked for than the model supports."""
    if asked is not None and asked > supported:
        raise ConfigError(f"--context-length {asked} is more than the {supported} positions the model supports")
    return supported if asked is None else asked


def _filled(
    model: LoadableModel, files: ModelFiles, source: WeightSource | None, config: ModelConfig, progress: Progress | None
) -> Model:
    if files.dummy or source is None:
        fill_dummy(model.places(), seed=config.random_seed or 0)
        return model
    try:
        fill(model.places(), source, place_of=model.place_of, progress=progress)
    except ConfigError as error:
        raise ConfigError(f"{files.name}: {error}") from error
    return model


def _dtype(config: ModelConfig) -> torch.dtype:
    dtype = getattr(torch, config.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"--dtype {config.dtype!r} is not resolved to a torch type")
    return dtype
