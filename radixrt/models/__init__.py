"""The models: a table from architecture to its code, imported when chosen.

An architecture that is not in the table runs through ``transformers_model`` when transformers knows it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from radixrt.attention.base import ForwardContext
from radixrt.config import nearest
from radixrt.errors import ConfigError
from radixrt.models.config import ModelShape
from radixrt.weights.source import Place


class Model(Protocol):
    """A decoder that reads and writes K/V only through its ForwardContext."""

    @property
    def shape(self) -> ModelShape: ...

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """Return hidden states [T, H] of tokens [T] at positions [T] (both int64)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [S, V] of hidden states [S, H]."""


class LoadableModel(Model, Protocol):
    """A model whose tensors are filled after it is built."""

    def places(self) -> Mapping[str, Place]:
        """Return the tensors to fill, by Hugging Face name."""

    def place_of(self, name: str) -> str | None:
        """Return the place a checkpoint's tensor fills, None when it is not needed."""


# Architecture -> module and class, which are built from a LlamaConfig.
ARCHITECTURES = {
    "LlamaForCausalLM": ("radixrt.models.llama", "Llama"),
    "MistralForCausalLM": ("radixrt.models.llama", "Llama"),
    "Qwen2ForCausalLM": ("radixrt.models.llama", "Llama"),
    "Qwen3ForCausalLM": ("radixrt.models.llama", "Llama"),
}


def select(architecture: str) -> Callable[..., Any]:
    """Return the model class of an architecture; raise ConfigError with the nearest name when there is none."""
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"radixrt has no model code for {architecture!r}; it has {', '.join(ARCHITECTURES)}{nearest(architecture, ARCHITECTURES)}"
        )
    module, name = ARCHITECTURES[architecture]
    chosen: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return chosen
