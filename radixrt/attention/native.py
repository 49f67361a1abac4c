"""Attention by the compiled kernel: K/V read in place, one plan a step for all layers of one shape.

A query's result depends on its own row and position alone, to the bit: see ``csrc/radixrt/attention.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from radixrt.batch import Batch
from radixrt.cache.kv_pool import KVPool
from radixrt.errors import ConfigError
from radixrt_kernels import ops

if TYPE_CHECKING:
    from radixrt_kernels._native import AttentionPlan


class NativePlan:
    """The rows of a step, and how its work is cut for each shape and window that its layers have."""

    def __init__(self, page_table: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> None:
        """The arrays are those of ``Batch``, and stay as they are."""
        self._rows = (page_table, starts, counts)
        self._plans: dict[tuple[int, ...], AttentionPlan] = {}

    def of(self, num_heads: int, num_kv_heads: int, head_dim: int, num_slots: int, window: int | None) -> AttentionPlan:
        shape = (num_heads, num_kv_heads, head_dim, num_slots, window or 0)
        if shape not in self._plans:
            self._plans[shape] = ops.attention_plan(*self._rows, *shape)
        return self._plans[shape]

    def ends(self, places: np.ndarray) -> NativePlan:
        """Return the plan of some tokens alone: ``places`` [S] int64 in the flattened tokens, ascending, of each row its last or none."""
        pages, starts, counts = self._rows
        ends = np.cumsum(counts)
        taken = np.searchsorted(places, ends) - np.searchsorted(places, ends - counts)
        some = np.flatnonzero(taken)
        return NativePlan(pages[some], (starts + counts - taken)[some], taken[some])


class NativeAttention:
    """Ragged paged attention on the CPU, in float32 or narrower as the stored type allows."""

    def __init__(self) -> None:
        if not ops.NATIVE:
            raise ConfigError("--attention-backend native: the compiled kernels were not built, or RADIXRT_NO_NATIVE is set")

    def plan(self, batch: Batch[Tensor]) -> NativePlan:
        pages = batch.page_table.to(torch.int32).contiguous().numpy()
        return NativePlan(pages, np.ascontiguousarray(batch.starts, np.int64), np.ascontiguousarray(batch.counts, np.int64))

    def forward(
        self, plan: NativePlan, pool: KVPool, layer: int, q: Tensor, *, scale: float, sliding_window: int | None = None
    ) -> Tensor:
        """See AttentionBackend.forward."""
        storage: Any = pool.storage
        num_slots, num_kv_heads, head_dim = pool.k[layer].shape
        out = torch.empty(q.shape, dtype=torch.float32)
        cut = plan.of(q.shape[1], num_kv_heads, head_dim, num_slots, sliding_window)
        ops.paged_attention(cut, storage, layer, ops.packed_heads(q), out, scale)
        return out.to(q.dtype)
