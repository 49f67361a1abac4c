"""Weights that stay in the number format of their file, and which format each is kept in.

The formats are those of ``radixrt_kernels``: ``f32``, ``bf16``, and the block-quantised ``q8_0``, ``q4_0`` and ``q4_1``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

BLOCK = 32
QUANTIZED = ("q8_0", "q4_0", "q4_1")
# The token embedding and the output product.
TABLES = ("model.embed_tokens.weight", "lm_head.weight")

# What a stored type is kept as; a type of more bits than q4_1 has, and any that is not listed, becomes q8_0.
_KEPT = {
    "f32": "f32", "f64": "f32", "bf16": "bf16", "f16": "bf16",
    "q4_0": "q4_0", "q4_1": "q4_1", "q8_0": "q8_0",
    **dict.fromkeys(("q4_k", "q3_k", "q2_k", "iq4_nl", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs"), "q4_1"),
}  # fmt: skip


@dataclass(frozen=True)
class BlockTensor:
    """A quantised matrix as its file has it: ``blocks`` [rows, bytes of a row] uint8."""

    kind: str
    shape: tuple[int, ...]
    blocks: Tensor

    def dequantize(self) -> Tensor:
        """Return the matrix in float32."""
        values = dequantize(self.blocks.numpy(), GGMLQuantizationType[self.kind.upper()])
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(self.shape)


def kept_type(stored: str, shape: tuple[int, ...], *, quantization: str, is_table: bool) -> str:
    """Return the format a matrix of that stored type is kept in.

    ``quantization`` is "file" or the format asked for; then ``is_table`` (the token embedding, the output product) means
    q8_0, because logits and embeddings suffer most from fewer bits.  Rows that are not whole blocks stay unquantised.
    """
    kind = _KEPT.get(stored, "q8_0") if quantization == "file" else "q8_0" if is_table else quantization
    if kind in QUANTIZED and shape[-1] % BLOCK:
        return "f32" if stored == "f32" else "bf16"
    return kind
