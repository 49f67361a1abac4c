"""The attention seam: how a model's layers read and write K/V, whatever computes the attention.

A backend plans once a step and then serves every layer.  ``ForwardContext`` is what a model gets instead of a global:
the batch, the pool, the backend and its plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from radixrt.batch import Batch
from radixrt.cache.kv_pool import KVPool


class AttentionBackend(Protocol):
    """Computes ragged causal attention over slots."""

    def plan(self, batch: Batch[Tensor]) -> Any:
        """Prepare what every layer of this step needs; the result is passed back to ``forward``."""

    def forward(
        self, plan: Any, pool: KVPool, layer: int, q: Tensor, *, scale: float, sliding_window: int | None = None
    ) -> Tensor:
        """Attend from q [T, num_heads, head_dim] to the stored K/V of each token's own row and return [T, num_heads, head_dim].

        Token i of row b at position p sees positions max(0, p - sliding_window + 1) .. p of that row.  K/V of the whole
        batch is stored before this is called.
        """


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What one forward pass works on."""

    batch: Batch[Tensor]
    pool: KVPool
    backend: AttentionBackend
    plan: Any

    @classmethod
    def of(cls, batch: Batch[Tensor], pool: KVPool, backend: AttentionBackend) -> ForwardContext:
        return cls(batch, pool, backend, backend.plan(batch))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, sliding_window: int | None = None) -> Tensor:
        """Store K/V [T, num_kv_heads, head_dim] of the whole batch, then attend; returns [T, num_heads, head_dim]."""
        self.pool.store(layer, self.batch.slots, k, v)
        return self.backend.forward(self.plan, self.pool, layer, q, scale=scale, sliding_window=sliding_window)
