"""Attention in plain torch: the readable definition that other backends are compared with, and the default.

A step is split in ``plan``: rows of one token are padded to a common length and attend together, longer extends go one
row at a time.  K/V is gathered from the slots; query heads that share a K/V head share its gathered copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from radixrt.batch import Batch
from radixrt.cache.kv_pool import KVPool

# Rows are padded together while the padding adds at most this share of K/V reads.
MAX_PADDING = 0.25


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each.  tokens: places in the flattened tokens, None for all of them in order.

    slots [rows * length]: K/V slots; mask [rows, 1, 1, length]: 0 or -inf, None when no row is padded.
    """

    tokens: Tensor | None
    slots: Tensor
    rows: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class ExtendRow:
    """One row of several tokens, at ``begin`` .. ``end`` of the flattened tokens.

    slots [length]: K/V slots; mask [count, length]: 0 or -inf, None when the row is causal from its first position.
    """

    begin: int
    end: int
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Pieces:
    """One step's work, for one sliding window."""

    decodes: list[DecodeGroup]
    extends: list[ExtendRow]


class SdpaPlan:
    """The pieces of a step, made once for each sliding window (and mask type) that its layers use."""

    def __init__(self, batch: Batch[Tensor]) -> None:
        self._batch = batch
        self._pieces: dict[tuple[int | None, torch.dtype], Pieces] = {}

    def pieces(self, window: int | None, dtype: torch.dtype) -> Pieces:
        key = (window, dtype)
        if key not in self._pieces:
            batch = self._batch
            ends = np.cumsum(batch.counts)
            decodes = np.flatnonzero(batch.counts == 1)
            self._pieces[key] = Pieces(
                [_decode_group(batch, rows, ends[rows] - 1, window, dtype) for rows in _similar_lengths(batch, decodes, window)],
                [_extend_row(batch, row, int(ends[row]), window, dtype) for row in np.flatnonzero(batch.counts > 1).tolist()],
            )
        return self._pieces[key]


class TorchSdpa:
    """Attention by torch's scaled_dot_product_attention over gathered K/V."""

    def plan(self, batch: Batch[Tensor]) -> SdpaPlan:
        return SdpaPlan(batch)

    def forward(
        self, plan: SdpaPlan, pool: KVPool, layer: int, q: Tensor, *, scale: float, sliding_window: int | None = None
    ) -> Tensor:
        """See AttentionBackend.forward."""
        num_heads, (num_kv_heads, head_dim) = q.shape[1], pool.k[layer].shape[1:]
        group = num_heads // num_kv_heads
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        pieces = plan.pieces(sliding_window, q.dtype)
        for decode in pieces.decodes:
            # The query heads of a K/V head take the place of query positions: they see the same keys.
            k, v = (
                part.view(decode.rows, -1, num_kv_heads, head_dim).transpose(1, 2)
                for part in pool.read(layer, decode.slots, q.dtype)
            )
            queries = q if decode.tokens is None else q[decode.tokens]
            attended = F.scaled_dot_product_attention(
                queries.reshape(decode.rows, num_kv_heads, group, head_dim), k, v, attn_mask=decode.mask, scale=scale
            ).reshape(decode.rows, num_heads, head_dim)
            if decode.tokens is None:
                return attended
            out[decode.tokens] = attended
        for row in pieces.extends:
            k, v = (
                part.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
                for part in pool.read(layer, row.slots, q.dtype)
            )
            queries = q[row.begin : row.end].view(-1, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
            attended = F.scaled_dot_product_attention(
                queries, k, v, attn_mask=row.mask, is_causal=row.mask is None, scale=scale
            )
            out[row.begin : row.end] = attended.permute(2, 0, 1, 3).reshape(-1, num_heads, head_dim)
        return out


def _similar_lengths(batch: Batch[Tensor], rows: np.ndarray, window: int | None) -> Iterator[np.ndarray]:
    """Split rows into groups, longest first, in which padding stays within MAX_PADDING."""
    lengths = batch.starts[rows] + 1
    if window is not None:
        lengths = np.minimum(lengths, window)
    order = np.argsort(-lengths, kind="stable")
    begin, total = 0, 0
    for place, index in enumerate(order.tolist()):
        padded = int(lengths[order[begin]]) * (place + 1 - begin)
        if padded > (1.0 + MAX_PADDING) * (total + int(lengths[index])):
            yield np.sort(rows[order[begin:place]])
            begin, total = place, 0
        total += int(lengths[index])
    if len(order):
        yield np.sort(rows[order[begin:]])


def _decode_group(batch: Batch[Tensor], rows: np.ndarray, tokens: np.ndarray, window: int | None, dtype: torch.dtype) -> DecodeGroup:
    device = batch.page_table.device
    ends = batch.starts[rows] + 1
    begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
    lengths = ends - begins
    longest = int(lengths.max())
    table = batch.page_table if len(rows) == batch.num_rows else batch.page_table[torch.from_numpy(rows).to(device)]
    whole = None if len(rows) == batch.num_tokens else torch.from_numpy(tokens).to(device)
    if window is None and bool((lengths == longest).all()):
        return DecodeGroup(whole, table[:, :longest].reshape(-1), len(rows), None)
    # Padding reads the row's own last position: a slot that was never written may hold NaN, which a mask does not stop.
    columns = torch.arange(longest, device=device)
    begins_t, ends_t = (torch.from_numpy(values).to(device, torch.int64)[:, None] for values in (begins, ends))
    places = begins_t + columns
    slots = table.gather(1, torch.minimum(places, ends_t - 1))
    mask = torch.zeros(places.shape, dtype=dtype, device=device).masked_fill_(places >= ends_t, -torch.inf)
    return DecodeGroup(whole, slots.reshape(-1), len(rows), mask[:, None, None])


def _extend_row(batch: Batch[Tensor], row: int, end_token: int, window: int | None, dtype: torch.dtype) -> ExtendRow:
    start, count = int(batch.starts[row]), int(batch.counts[row])
    first = 0 if window is None else max(0, start - window + 1)
    slots = batch.page_table[row, first : start + count]
    begin_token = end_token - count
    if start == 0 and (window is None or count <= window):
        return ExtendRow(begin_token, end_token, slots, None)
    device = batch.page_table.device
    queries = torch.arange(start, start + count, device=device)[:, None]
    keys = torch.arange(first, start + count, device=device)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return ExtendRow(begin_token, end_token, slots, mask)
