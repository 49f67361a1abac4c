"""Tells, from the headers of a model's files alone, in which format each weight is kept and which are converted."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

from radixrt.config import ModelConfig
from radixrt.weights.blocks import TABLES, kept_type
from radixrt.weights.gguf import GGUFFile
from radixrt.weights.resolve import ALIASES, resolve_model
from radixrt.weights.safetensors import SafetensorsFiles


def kept_weights(config: ModelConfig) -> dict[str, int]:
    """Return how many numbers of matrices are kept as they are (``q4_1``) or converted (``q6_k to q8_0``).

    ``config`` is resolved.  Nothing for weights that are computed with in full, and for a model that would have to be
    fetched.  Raises ConfigError for files that are missing or malformed.
    """
    if config.quantization == "none" or not (config.model_path.lower() in ALIASES or Path(config.model_path).expanduser().exists()):
        return {}
    files = resolve_model(config.model_path, load_format=config.load_format)
    if not files.weights:
        return {}
    source = GGUFFile(files.weights[0], vocabulary=False) if files.kind == "gguf" else SafetensorsFiles(files.weights)
    numbers: Counter[str] = Counter()
    for name, entry in source.stored.items():
        if len(entry.shape) == 2:
            kept = kept_type(entry.kind, entry.shape, quantization=config.quantization, is_table=name in TABLES)
            numbers[kept if kept == entry.kind else f"{entry.kind} to {kept}"] += prod(entry.shape)
    return dict(numbers)
