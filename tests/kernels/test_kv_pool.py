"""Memory of a pool: committed by the system before it is used."""

from __future__ import annotations

import math
import mmap
import resource
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from radixrt.cache.kv_pool import KVPool
from radixrt_kernels.ops import NATIVE

MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def mapped(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return memory that nobody has used: an allocator may give what it kept."""
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


@pytest.mark.skipif(not NATIVE or sys.platform != "linux", reason="only compiled code asks a system, and only Linux answers")
def test_committed_memory_is_resident_and_keeps_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", mapped)
        pool = KVPool(num_layers=3, num_slots=1 << 19, num_kv_heads=2, head_dim=16, dtype=torch.bfloat16, device="cpu")
    slots, k, v = torch.tensor([5, 7000, 200_000]), torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    pool.store(1, slots, k, v)
    before = resident()
    pool.commit(48 * MIB)
    # Storing touched pages; those that are begun are committed whole, up to two large ones for each of six tensors.
    assert (48 - 12) * MIB <= resident() - before <= (48 + 24) * MIB
    for read, stored in zip(pool.read(1, slots, torch.bfloat16), (k, v), strict=True):
        assert torch.equal(read, stored.bfloat16())
    assert not pool.k[0].any(), "what was never written is zero"


@pytest.mark.parametrize("num_bytes", [0, 1, 1 << 40])
def test_any_number_of_bytes_may_be_asked_for(num_bytes: int) -> None:
    pool = KVPool(num_layers=2, num_slots=10, num_kv_heads=1, head_dim=4, dtype=torch.int8, device="cpu")
    pool.commit(num_bytes)
    KVPool(num_layers=1, num_slots=0, num_kv_heads=1, head_dim=4, dtype=torch.float32, device="cpu").commit(num_bytes)
