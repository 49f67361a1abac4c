"""The list of ops: signature and meaning of each, and the one place that picks an implementation.

``NATIVE`` tells whether the compiled module is used.  It is not when it was never built (``RADIXRT_NO_NATIVE=1 pip
install``), or when ``RADIXRT_NO_NATIVE=1`` is set at run time.  A compiled module that is there but does not load is an
error, never a silent fallback.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from radixrt_kernels._native import Decoder, PackedMatrix, RadixTree

NATIVE = os.environ.get("RADIXRT_NO_NATIVE", "0") in ("", "0") and importlib.util.find_spec("radixrt_kernels._native") is not None

if TYPE_CHECKING or NATIVE:
    from radixrt_kernels._native import ByteAutomaton, TokenTrie, common_prefix_length
else:
    from radixrt_kernels.reference import ByteAutomaton, TokenTrie, common_prefix_length

__all__ = [
    "NATIVE", "ByteAutomaton", "TokenTrie", "common_prefix_length", "decoder", "kernel_facts", "native_radix_tree", "packed_matrix",
]  # fmt: skip


def native_radix_tree(policy: str, **options: int) -> RadixTree:
    """Return an empty compiled radix tree with a built-in eviction policy; only where ``NATIVE``.

    Its definition is ``radixrt.cache.radix_tree``.
    """
    from radixrt_kernels import _native

    return _native.RadixTree(policy, **options)


def packed_matrix(kind: str, rows: int, cols: int) -> PackedMatrix:
    """Return an unfilled weight matrix of format f32, bf16, q8_0, q4_0 or q4_1; only where ``NATIVE``.

    Raises ValueError for another format, or for rows that are not whole blocks of 32 of a quantised one.
    """
    from radixrt_kernels import _native

    return _native.PackedMatrix(kind, rows, cols)


def decoder(
    shape: dict[str, Any], layers: list[dict[str, Any]], final_norm: Tensor, embedding: PackedMatrix, head: PackedMatrix
) -> Decoder:
    """Return the Llama family's decoder over these weights; only where ``NATIVE``.

    Its definition is ``radixrt.models.llama``.  Raises ValueError when sizes do not fit each other.
    """
    from radixrt_kernels import _native

    return _native.Decoder(shape, layers, final_norm, embedding, head)


def kernel_facts() -> dict[str, Any]:
    """Return what the kernels run on: the instruction set in use, the widest there is, threads, and paths that are not used."""
    if not NATIVE:
        return {"native": False}
    from radixrt_kernels import _native

    return {
        "native": True,
        "isa": _native.cpu_isa(),
        "detected_isa": _native.detected_isa(),
        "threads": _native.num_threads(),
        "rejected_paths": _native.rejected_paths(),
    }
