"""Drives a model by hand: sequences in scattered slots, ragged batches, no scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixrt.attention import select_backend
from radixrt.attention.base import ForwardContext
from radixrt.batch import Batch
from radixrt.cache.kv_pool import KVPool
from radixrt.models import Model

NONE = torch.empty(0, dtype=torch.int64)


def ragged_batch(ids: Sequence[Sequence[int]], starts: Sequence[int], tables: Sequence[Tensor]) -> Batch[Tensor]:
    """Row b computes ``ids[b]`` from position ``starts[b]``; ``tables[b]`` are the slots of its positions."""
    counts = [len(row) for row in ids]
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    page_table = torch.full((len(ids), max(ends)), -1, dtype=torch.int32)
    for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
        page_table[row, :end] = table[:end]
    return Batch(
        input_ids=torch.tensor([token for row in ids for token in row]),
        positions=torch.cat([torch.arange(start, end) for start, end in zip(starts, ends, strict=True)]),
        slots=torch.cat([table[start:end] for table, start, end in zip(tables, starts, ends, strict=True)]),
        page_table=page_table,
        starts=np.array(starts),
        counts=np.array(counts),
        device_index=NONE,
        device_rows=NONE,
        sample_index=NONE,
        last_index=NONE,
        last_rows=NONE,
    )


class Sequences:
    """A few sequences of a model, extended together; slots are handed out in a random order and start as NaN."""

    def __init__(
        self, model: Model, *, num_slots: int = 2048, seed: int = 0, backend: str = "torch_sdpa", dtype: torch.dtype = torch.float32
    ) -> None:
        shape = model.shape
        self.model = model
        self.pool = KVPool(
            num_layers=shape.num_layers, num_slots=num_slots, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim,
            dtype=dtype, device="cpu",
        )  # fmt: skip
        for stored in (*self.pool.k, *self.pool.v):
            stored.fill_(torch.nan)
        self.free = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed))
        self.backend = select_backend(backend)
        self.tables: dict[int, Tensor] = {}

    def share(self, source: int, target: int, length: int) -> None:
        """Begin ``target`` with the first ``length`` slots of ``source``."""
        self.tables[target] = self.tables[source][:length]

    def extend(self, rows: dict[int, Sequence[int]]) -> list[Tensor]:
        """Compute new tokens of several sequences in one batch; return the logits [tokens, V] of each."""
        starts = [len(self.tables.get(name, NONE)) for name in rows]
        for name, tokens in rows.items():
            new, self.free = self.free[: len(tokens)], self.free[len(tokens) :]
            self.tables[name] = torch.cat((self.tables.get(name, NONE), new))
        batch = ragged_batch(list(rows.values()), starts, [self.tables[name] for name in rows])
        with torch.inference_mode():
            hidden = self.model.forward(batch.input_ids, batch.positions, ForwardContext.of(batch, self.pool, self.backend))
            logits = self.model.logits(hidden)
        return list(torch.split(logits, [len(tokens) for tokens in rows.values()]))
