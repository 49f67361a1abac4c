"""Every attention backend against the definition: softmax over the visible positions of the row, token by token."""

from __future__ import annotations

import pytest
import torch
from ragged import ragged_batch
from torch import Tensor

from radixrt.attention import BACKENDS, select_backend
from radixrt.attention.base import ForwardContext
from radixrt.attention.torch_sdpa import SdpaPlan
from radixrt.cache.kv_pool import KVPool
from radixrt.errors import ConfigError
from radixrt_kernels.ops import NATIVE

NUM_SLOTS = 600
SCALE = 0.3
USABLE = [name for name in BACKENDS if name != "native" or NATIVE]
STEPS = {
    "one token": ([0], [1]),
    "decode": ([7], [1]),
    "decodes of one length": ([9, 9, 9], [1, 1, 1]),
    "decodes of many lengths": ([0, 3, 50, 49, 12, 100], [1] * 6),
    "prefill": ([0], [17]),
    "prefix hit": ([13], [6]),
    "cold rows": ([0, 0], [5, 9]),
    "everything": ([0, 20, 4, 0, 31, 60], [8, 1, 3, 1, 1, 2]),
}
HEADS = {"multi-head": (4, 4), "grouped": (6, 2), "multi-query": (4, 1)}


def definition(q: Tensor, pool: KVPool, tables: list[Tensor], starts: list[int], counts: list[int], window: int | None) -> Tensor:
    group = q.shape[1] // pool.k[0].shape[1]
    rows = []
    for table, start, count in zip(tables, starts, counts, strict=True):
        for position in range(start, start + count):
            first = 0 if window is None else max(0, position - window + 1)
            seen = table[first : position + 1]
            k, v = (part.repeat_interleave(group, dim=1) for part in pool.read(0, seen, torch.float64))
            weights = (torch.einsum("hd,lhd->hl", q[len(rows)].double(), k) * SCALE).softmax(-1)
            rows.append(torch.einsum("hl,lhd->hd", weights, v))
    return torch.stack(rows)


@pytest.mark.parametrize("backend", USABLE)
@pytest.mark.parametrize("window", [None, 1, 4, 1000])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("step", STEPS)
def test_attention_equals_its_definition(step: str, heads: str, window: int | None, backend: str) -> None:
    starts, counts = STEPS[step]
    num_heads, num_kv_heads = HEADS[heads]
    generator = torch.Generator().manual_seed(1)
    pool = KVPool(num_layers=1, num_slots=NUM_SLOTS, num_kv_heads=num_kv_heads, head_dim=8, dtype=torch.float32, device="cpu")
    for stored in (pool.k[0], pool.v[0]):
        stored.fill_(torch.nan)
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    tables = list(torch.split(torch.randperm(NUM_SLOTS, generator=generator)[: sum(lengths)], lengths))
    written = torch.cat([table[:start] for table, start in zip(tables, starts, strict=True)])
    pool.store(0, written, *(torch.randn(len(written), num_kv_heads, 8, generator=generator) for _ in range(2)))
    q = torch.randn(sum(counts), num_heads, 8, generator=generator)
    k, v = (torch.randn(sum(counts), num_kv_heads, 8, generator=generator) for _ in range(2))
    batch = ragged_batch([[0] * count for count in counts], starts, tables)

    context = ForwardContext.of(batch, pool, select_backend(backend))
    attended = context.attend(0, q, k, v, scale=SCALE, sliding_window=window)

    expected = definition(q, pool, tables, starts, counts, window)
    torch.testing.assert_close(attended.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", USABLE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
def test_stored_type_may_be_narrower_than_the_model(dtype: torch.dtype, backend: str) -> None:
    pool = KVPool(num_layers=1, num_slots=8, num_kv_heads=1, head_dim=4, dtype=dtype, device="cpu")
    batch = ragged_batch([[0, 0, 0], [0]], [0, 0], [torch.arange(3), torch.tensor([5])])
    q, k, v = (torch.randn(4, 1, 4) for _ in range(3))
    attended = ForwardContext.of(batch, pool, select_backend(backend)).attend(0, q, k, v, scale=SCALE)
    assert attended.dtype == torch.float32
    expected = definition(q, pool, [torch.arange(3), torch.tensor([5])], [0, 0], [3, 1], None)
    off = 1e-5 if dtype == torch.float16 or backend == "torch_sdpa" else 0.02  # bf16 and int8 may be multiplied as bf16
    torch.testing.assert_close(attended.double(), expected, atol=off, rtol=off)


@pytest.mark.parametrize("backend", USABLE)
def test_models_may_compute_in_a_narrower_type(backend: str) -> None:
    pool = KVPool(num_layers=1, num_slots=8, num_kv_heads=1, head_dim=4, dtype=torch.bfloat16, device="cpu")
    batch = ragged_batch([[0, 0, 0]], [0], [torch.arange(3)])
    q, k, v = (torch.randn(3, 2, 4).bfloat16(), *(torch.randn(3, 1, 4).bfloat16() for _ in range(2)))
    attended = ForwardContext.of(batch, pool, select_backend(backend)).attend(0, q, k, v, scale=SCALE)
    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(
        attended.double(), definition(q, pool, [torch.arange(3)], [0], [3], None), atol=0.02, rtol=0.02
    )  # fmt: skip


def test_decodes_are_padded_together_only_when_their_lengths_are_similar() -> None:
    starts = [99, 90, 9, 8, 95]
    batch = ragged_batch([[0]] * 5, starts, [torch.arange(start + 1) for start in starts])
    pieces = SdpaPlan(batch).pieces(None, torch.float32)
    assert sorted(group.rows for group in pieces.decodes) == [2, 3]


def test_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'torch_sdp'.*did you mean 'torch_sdpa'"):
        select_backend("torch_sdp")
