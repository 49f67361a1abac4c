"""The tensors that hold K and V: one pair a layer, one row a slot.  Knows no request and no tree."""

from __future__ import annotations

import torch
from torch import Tensor

from radixrt_kernels.ops import kv_storage, packed_heads


class KVPool:
    """K/V storage of ``num_slots`` tokens.

    ``k[layer]`` and ``v[layer]`` are [num_slots, num_kv_heads, head_dim] of ``dtype``: float32, bfloat16, float16 or int8.  An int8
    pool has a float32 scale a slot and head beside each, ``k_scale[layer]`` and ``v_scale[layer]`` [num_slots, num_kv_heads]; other
    pools have none.  Memory is reserved, not touched, so that an operating system that commits lazily charges only for slots that
    have been used or ``commit`` was asked for.
    """

    def __init__(
        self, *, num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        shape = (num_slots, num_kv_heads, head_dim)
        self.num_slots = num_slots
        self.dtype = dtype
        self.k, self.v = ([torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)] for _ in range(2))
        scaled = num_layers if dtype == torch.int8 else 0
        self.k_scale, self.v_scale = ([torch.empty(shape[:2], device=device) for _ in range(scaled)] for _ in range(2))
        self.storage = kv_storage(self.k, self.v, self.k_scale, self.v_scale)

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write K/V [T, num_kv_heads, head_dim] of T tokens into their slots [T] int64."""
        self.storage.store(layer, slots, packed_heads(k), packed_heads(v))

    def commit(self, num_bytes: int) -> None:
        """Have the system commit the memory of the first slots, up to so many bytes, before they are used; any thread may."""
        _, num_kv_heads, head_dim = self.k[0].shape
        per_slot = self.bytes_per_slot(num_layers=len(self.k), num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=self.dtype)
        self.storage.commit(num_bytes // per_slot)

    def read(self, layer: int, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return copies of K and V [T, num_kv_heads, head_dim] of slots [T]."""
        if self.dtype == torch.int8:
            parts = (self.k[layer], self.k_scale[layer]), (self.v[layer], self.v_scale[layer])
            k, v = (stored[slots] * scale[slots].unsqueeze(-1) for stored, scale in parts)
        else:
            k, v = self.k[layer].index_select(0, slots), self.v[layer].index_select(0, slots)
        return k.to(dtype), v.to(dtype)

    @staticmethod
    def bytes_per_slot(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        scale = torch.float32.itemsize if dtype == torch.int8 else 0
        return 2 * num_layers * num_kv_heads * (head_dim * dtype.itemsize + scale)
