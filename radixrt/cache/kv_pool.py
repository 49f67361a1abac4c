"""The tensors that hold K and V: one pair a layer, one row a slot.  Knows no request and no tree."""

from __future__ import annotations

import torch
from torch import Tensor


class KVPool:
    """K/V storage of ``num_slots`` tokens.

    ``k[layer]`` and ``v[layer]`` are [num_slots, num_kv_heads, head_dim].  Memory is reserved, not touched, so that an
    operating system that commits lazily charges only for slots that have been used.
    """

    def __init__(
        self, *, num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        shape = (num_slots, num_kv_heads, head_dim)
        self.num_slots = num_slots
        self.k = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.v = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write K/V [T, num_kv_heads, head_dim] of T tokens into their slots [T]."""
        self.k[layer][slots] = k.to(self.k[layer].dtype)
        self.v[layer][slots] = v.to(self.v[layer].dtype)

    @staticmethod
    def bytes_per_slot(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
