"""The Llama family on compiled kernels against the torch code, which is its definition, and rounded weights against full ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance_models import OURS, PROMPT, save
from ragged import Sequences
from torch import Tensor

from radixrt.config import EngineConfig, Hardware, ModelConfig, resolve
from radixrt.errors import ConfigError
from radixrt.models.llama import Llama
from radixrt.runner.loader import LoadedModel, load_model
from radixrt.text.tokenizer import load_tokenizer
from radixrt_kernels.ops import NATIVE

if not NATIVE:
    pytest.skip("nothing was compiled", allow_module_level=True)

from radixrt.models.native_llama import NativeLlama, PackedPlace
from radixrt_kernels import _native

NUM_PERPLEXITY_TOKENS = 600
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def load(folder: Path, quantization: str) -> LoadedModel:
    loaded = load_model(ModelConfig(model_path=str(folder), device="cpu", dtype="float32", quantization=quantization))
    assert isinstance(loaded.model, Llama if quantization == "none" else NativeLlama)
    return loaded


def logits(loaded: LoadedModel, *chunks: list[int]) -> Tensor:
    sequences = Sequences(loaded.model)
    return torch.cat([sequences.extend({0: chunk})[0] for chunk in chunks])


@pytest.mark.parametrize("name", OURS)
def test_every_flag_is_that_of_the_torch_code(name: str, tmp_path: Path) -> None:
    save(OURS[name], tmp_path)
    ours, definition = (load(tmp_path, quantization) for quantization in ("file", "none"))
    torch.testing.assert_close(logits(ours, PROMPT[:10], PROMPT[10:11], PROMPT[11:]), logits(definition, PROMPT), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("kind", ["q8_0", "q4_1", "q4_0"])
@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "llama-tied"])
def test_rounded_weights_are_those_of_the_torch_code_rounded_alike(name: str, kind: str, tmp_path: Path) -> None:
    save(OURS[name].__class__(**{**OURS[name].to_dict(), **WIDE}), tmp_path)
    rounded, definition = load(tmp_path, kind), load(tmp_path, "none")
    assert isinstance(rounded.model, NativeLlama) and isinstance(definition.model, Llama)
    assert set(rounded.model.weight_bytes) == {kind, "q8_0"}
    full = logits(definition, PROMPT)
    for place, ours in rounded.model.places().items():
        if isinstance(ours, PackedPlace):
            ours.matrix.unpack_rows(torch.arange(ours.shape[0]), definition.model.places()[place])
    theirs = logits(definition, PROMPT)
    # What is left is the rounding of the rows that are multiplied; the weights of these models are large.
    error = float((logits(rounded, PROMPT) - theirs).norm() / theirs.norm())
    assert 0.0 < error < 0.1
    assert kind == "q8_0" or error < 0.5 * float((theirs - full).norm() / theirs.norm())


@pytest.mark.parametrize("kind", ["file", "q8_0", "q4_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_masked_logits_are_those_of_the_whole_head(kind: str, threads: int, tmp_path: Path) -> None:
    save(OURS["llama"].__class__(**{**OURS["llama"].to_dict(), **WIDE}), tmp_path)
    model = load(tmp_path, kind).model
    assert isinstance(model, NativeLlama)
    generator = torch.Generator().manual_seed(threads)
    vocab_size, count = model.shape.vocab_size, _native.num_threads()
    words = (vocab_size + 31) // 32
    _native.set_num_threads(threads)
    try:
        for num_rows in (1, 2, 7, 40):
            hidden = torch.randn(num_rows, model.config.hidden_size, generator=generator)
            chance = torch.rand(num_rows, 1, generator=generator) ** 4
            allowed = torch.rand(num_rows, 32 * words, generator=generator) < chance
            allowed[:: 3] |= torch.rand(len(allowed[::3]), 1, generator=generator) < 0.5
            allowed[num_rows // 2] = False
            mask = torch.from_numpy(np.packbits(allowed.numpy(), axis=1, bitorder="little").view(np.int32))
            masked = torch.from_numpy(model.masked_logits_arrays(hidden.numpy(), mask.numpy()))
            whole = model.logits(hidden)
            assert torch.equal(masked[allowed[:, :vocab_size]], whole[allowed[:, :vocab_size]])
    finally:
        _native.set_num_threads(count)


def test_rows_that_are_no_whole_blocks_stay_as_they_are(tmp_path: Path) -> None:
    save(OURS["llama"], tmp_path)
    loaded = load(tmp_path, "q8_0")
    assert isinstance(loaded.model, NativeLlama)
    assert set(loaded.model.weight_bytes) == {"f32"}


@pytest.mark.parametrize(
    ("options", "hardware", "kept"),
    [
        ({}, Hardware(native=True), "file"),
        ({}, Hardware(), "none"),
        ({"dtype": "float32"}, Hardware(native=True), "none"),
        ({"dtype": "bfloat16"}, Hardware(native=True), "none"),
        ({"model_impl": "transformers"}, Hardware(native=True), "none"),
        ({}, Hardware(native=True, cuda=True), "none"),
        ({"quantization": "q8_0"}, Hardware(native=True), "q8_0"),
        ({"quantization": "q8_0"}, Hardware(), None),
        ({"quantization": "q4_0", "dtype": "bfloat16"}, Hardware(native=True), None),
    ],
)
def test_what_auto_means(options: dict[str, str], hardware: Hardware, kept: str | None) -> None:
    config = EngineConfig(model=ModelConfig(**options))
    if kept is None:
        with pytest.raises(ConfigError, match="--quantization"):
            resolve(config, hardware)
    else:
        assert resolve(config, hardware).model.quantization == kept


@pytest.mark.model
def test_perplexity_is_within_a_hundredth_of_that_of_full_weights(smollm2: LoadedModel) -> None:
    kept = load_model(replace(resolve(EngineConfig(), Hardware(native=True)).model))
    assert isinstance(kept.model, NativeLlama)
    assert set(kept.model.weight_bytes) == {"q4_1", "q8_0"}
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    tokens = load_tokenizer(kept.files.tokenizer).encode(text)[:NUM_PERPLEXITY_TOKENS]
    ours, full = (
        torch.nn.functional.cross_entropy(logits(loaded, tokens)[:-1], torch.tensor(tokens[1:])) for loaded in (kept, smollm2)
    )
    assert 0.0 < float((ours - full).exp().sub(1.0).abs()) < 0.01
