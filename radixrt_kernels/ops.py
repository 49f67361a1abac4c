"""The list of ops: signature and meaning of each, and the one place that picks an implementation.

``NATIVE`` tells whether the compiled module is used.  It is not when it was never built (``RADIXRT_NO_NATIVE=1 pip
install``), or when ``RADIXRT_NO_NATIVE=1`` is set at run time.  A compiled module that is there but does not load is an
error, never a silent fallback.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from radixrt_kernels._native import AttentionPlan, Decoder, KVStorage, PackedMatrix, RadixTree

    Edits = tuple[Tensor, Tensor, Tensor] | None

NATIVE = os.environ.get("RADIXRT_NO_NATIVE", "0") in ("", "0") and importlib.util.find_spec("radixrt_kernels._native") is not None

if TYPE_CHECKING or NATIVE:
    from radixrt_kernels import _native
    from radixrt_kernels._native import ByteAutomaton, TokenTrie, common_prefix_length
else:
    from radixrt_kernels.reference import ByteAutomaton, TokenTrie, common_prefix_length

__all__ = [
    "NATIVE",
    "ByteAutomaton",
    "TokenTrie",
    "attention_plan",
    "common_prefix_length",
    "decoder",
    "kernel_facts",
    "kv_storage",
    "logprobs_of",
    "native_radix_tree",
    "packed_heads",
    "packed_matrix",
    "paged_attention",
    "sample",
]


class Storage(Protocol):
    """Writes new K/V into a pool; the definition is ``reference_attention.KVStorage``."""

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None: ...

    def commit(self, num_slots: int) -> None: ...


def native_radix_tree(policy: str, **options: int) -> RadixTree:
    """Return an empty compiled radix tree with a built-in eviction policy; only where ``NATIVE``.

    Its definition is ``radixrt.cache.radix_tree``.
    """
    return _native.RadixTree(policy, **options)


def packed_matrix(kind: str, rows: int, cols: int) -> PackedMatrix:
    """Return an unfilled weight matrix of format f32, bf16, q8_0, q4_0 or q4_1; only where ``NATIVE``.

    Raises ValueError for another format, or for rows that are not whole blocks of 32 of a quantised one.
    """
    return _native.PackedMatrix(kind, rows, cols)


def decoder(
    shape: dict[str, Any], layers: list[dict[str, Any]], final_norm: Tensor, embedding: PackedMatrix, head: PackedMatrix
) -> Decoder:
    """Return the Llama family's decoder over these weights; only where ``NATIVE``.

    Its definition is ``radixrt.models.llama``.  Raises ValueError when sizes do not fit each other.
    """
    return _native.Decoder(shape, layers, final_norm, embedding, head)


def kernel_facts() -> dict[str, Any]:
    """Return what the kernels run on: the instruction set in use, the widest there is, threads, and paths that are not used."""
    if not NATIVE:
        return {"native": False}
    return {
        "native": True,
        "isa": _native.cpu_isa(),
        "detected_isa": _native.detected_isa(),
        "threads": _native.num_threads(),
        "rejected_paths": _native.rejected_paths(),
    }


def kv_storage(k: Sequence[Tensor], v: Sequence[Tensor], k_scale: Sequence[Tensor], v_scale: Sequence[Tensor]) -> Storage:
    """Return what writes into these tensors, see ``reference_attention.KVStorage``; compiled for those of a CPU."""
    if NATIVE and k[0].device.type == "cpu":
        return _native.KVStorage(list(k), list(v), list(k_scale), list(v_scale))
    from radixrt_kernels import reference_attention

    return reference_attention.KVStorage(k, v, k_scale, v_scale)


def packed_heads(x: Tensor) -> Tensor:
    """Return x [T, heads, head_dim] as float32 with the heads of a token behind each other, as the compiled ops read it."""
    x = x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def attention_plan(
    page_table: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_slots: int,
    window: int = 0,
    num_threads: int = 0,
) -> AttentionPlan:
    """Say how the attention of a step is cut into pieces of work; only where ``NATIVE``.

    page_table [B, L] int32, starts and counts [B] int64, as in ``reference_attention.paged_attention``; window 0 is none.
    Raises ValueError for rows that the page table does not hold and slots outside [0, num_slots).
    """
    return _native.AttentionPlan(page_table, starts, counts, num_heads, num_kv_heads, head_dim, num_slots, window, num_threads)


def paged_attention(plan: AttentionPlan, storage: KVStorage, layer: int, q: Tensor, out: Tensor, scale: float, **options: Any) -> None:
    """Attend from q [T, num_heads, head_dim] float32 to a layer of the pool, into out; only where ``NATIVE``.

    Its definition is ``reference_attention.paged_attention``.  Raises ValueError for shapes that do not fit the plan.
    """
    _native.paged_attention(plan, storage, layer, q, out, scale, **options)


def sample(
    logits: np.ndarray,
    greedy: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    uniform: np.ndarray,
    penalties: Edits,
    repetition: Edits,
    bias: Edits,
    mask: np.ndarray | None,
    tokens: np.ndarray,
) -> None:
    """Choose a token for each row of logits [S, V] float32, which are edited, into tokens [S] int64; only where ``NATIVE``.

    The parameters are the fields of ``radixrt.batch.SamplingBatch``, edits as (rows, tokens, values).  Its definition is
    ``radixrt.runner.sampler``.  A token is -1 where nothing finite is left.  Raises ValueError for shapes that do not fit.
    """
    _native.sample(logits, greedy, temperature, top_k, top_p, min_p, uniform, penalties, repetition, bias, mask, tokens)


def logprobs_of(logits: Tensor, chosen: Tensor, top: int, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return logprobs of chosen ids [Q], the ``top`` largest and their ids [Q, top], and those of given ids [Q, G].

    logits [Q, V] float32; only where ``NATIVE``.  Its definition is ``radixrt.runner.sampler.logprobs_of``.  Raises ValueError for
    ids beyond the vocabulary.
    """
    import torch

    logits, rows = logits.contiguous(), logits.shape[0]
    picked, values, ids = torch.empty(rows), torch.empty(rows, top), torch.empty(rows, top, dtype=torch.int64)
    asked = None if given is None else torch.empty(given.shape)
    _native.logprobs_of(logits, chosen, given, picked, values, ids, asked)
    return picked, values, ids, asked
