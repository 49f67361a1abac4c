"""The definition of the attention ops, in torch: the oracle of the tests, and what runs where nothing was compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Largest magnitude of a stored int8.
LARGEST = 127.0


def quantise_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values [..., head_dim] and float32 scales [...] whose product is nearly x [..., head_dim].

    A scale is the largest magnitude of its head / 127.  A head that is not finite throughout gets the scale NaN.
    """
    x = x.float()
    largest = x.abs().amax(dim=-1)
    finite = x.isfinite().all(dim=-1)
    inverse = LARGEST / largest
    usable = finite & inverse.isfinite()
    values = torch.where(usable.unsqueeze(-1), (x * inverse.unsqueeze(-1)).round(), (~finite).float().unsqueeze(-1))
    scales = torch.where(usable, largest / LARGEST, torch.where(finite, 0.0, torch.nan))
    return values.to(torch.int8), scales


class KVStorage:
    """Writes into K/V: ``k[layer]`` and ``v[layer]`` [num_slots, num_kv_heads, head_dim], all of one type.

    Types are float32, bfloat16, float16, and int8 with ``k_scale[layer]`` and ``v_scale[layer]`` [num_slots, num_kv_heads].
    """

    def __init__(self, k: Sequence[Tensor], v: Sequence[Tensor], k_scale: Sequence[Tensor], v_scale: Sequence[Tensor]) -> None:
        self._parts = (k, k_scale), (v, v_scale)

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write K/V [T, num_kv_heads, head_dim] of T tokens into their slots [T] int64, no two of them equal."""
        for (stored, scales), new in zip(self._parts, (k, v), strict=True):
            if scales:
                stored[layer][slots], scales[layer][slots] = quantise_heads(new)
            else:
                stored[layer][slots] = new.to(stored[layer].dtype)

    def commit(self, num_slots: int) -> None:
        """Have the system commit the memory of the first slots before they are written, where that is done by writing: not here."""


def paged_attention(
    q: Tensor, k: Tensor, v: Tensor, page_table: Tensor, starts: Sequence[int], counts: Sequence[int], *, scale: float, window: int = 0
) -> Tensor:
    """Attend from q [T, num_heads, head_dim] to K/V [num_slots, num_kv_heads, head_dim] and return [T, num_heads, head_dim].

    Row b of page_table [B, L] holds the slots of its positions; its tokens are positions starts[b] .. starts[b] + counts[b] - 1,
    rows lie behind each other in q.  A token at position p sees positions up to p, with a window only the last ``window`` of them.
    Query head h reads K/V head h // (num_heads / num_kv_heads).
    """
    group = q.shape[1] // k.shape[1]
    out = []
    for queries, table, start, count in zip(q.split(list(counts)), page_table, starts, counts, strict=True):
        keys, values = (part[table[: start + count].long()].repeat_interleave(group, dim=1) for part in (k, v))
        back = torch.arange(start, start + count)[:, None] - torch.arange(start + count)
        hidden = (back < 0) | (back >= window) if window else back < 0
        scores = torch.einsum("thd,lhd->htl", queries, keys) * scale
        out.append(torch.einsum("htl,lhd->thd", scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), values))
    return torch.cat(out)
