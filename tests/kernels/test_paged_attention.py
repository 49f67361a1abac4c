"""The compiled attention: against its definition on every path, and that nothing around a query changes a bit of its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from radixrt.cache.kv_pool import KVPool
from radixrt_kernels import ops, reference_attention
from radixrt_kernels.ops import NATIVE

if not NATIVE:
    pytest.skip("nothing was compiled", allow_module_level=True)

from radixrt_kernels import _native

NUM_SLOTS = 4000
SETS = _native.isa_names()
PATHS = [*SETS[: SETS.index(_native.detected_isa()) + 1], "pairs"]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
# (query heads, K/V heads, head_dim): dimensions that are and are not multiples of the vector length.
SHAPES = {"grouped": (6, 2, 64), "odd": (3, 3, 13), "wide": (8, 1, 80)}
# Starts and counts: around the ends of blocks of 64 keys and chunks of 256.
STEPS = {
    "first token": ([0], [1]),
    "decodes": ([63, 64, 255, 256, 700, 5], [1] * 6),
    "prefill": ([0], [130]),
    "prefix hits": ([250, 511, 37], [60, 3, 33]),
    "everything": ([300, 0, 200, 128, 600], [1, 70, 90, 2, 1]),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    isa, count = _native.cpu_isa(), _native.num_threads()
    yield
    _native.set_cpu_isa(isa)
    _native.set_num_threads(count)


@dataclass(frozen=True)
class Rows:
    """Rows of a step: slots of all positions, first new position and how many, q [T, heads, head_dim]."""

    tables: Sequence[Tensor]
    starts: Sequence[int]
    counts: Sequence[int]
    q: Tensor


def attend(pool: KVPool, rows: Rows, path: str, *, window: int = 0, threads: int = 0) -> Tensor:
    if path != "pairs":
        _native.set_cpu_isa(path)
    pages = torch.full((len(rows.tables), max(len(table) for table in rows.tables)), -1, dtype=torch.int32)
    for row, table in enumerate(rows.tables):
        pages[row, : len(table)] = table
    num_kv_heads, head_dim = pool.k[0].shape[1:]
    plan = ops.attention_plan(
        pages.numpy(), np.array(rows.starts), np.array(rows.counts), rows.q.shape[1], num_kv_heads, head_dim, NUM_SLOTS, window, threads
    )
    out = torch.full_like(rows.q, torch.nan)
    ops.paged_attention(plan, pool.storage, 0, rows.q, out, head_dim**-0.5, in_pairs=path == "pairs")
    return out


def make_pool(shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator) -> KVPool:
    _, num_kv_heads, head_dim = shape
    pool = KVPool(num_layers=1, num_slots=NUM_SLOTS, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, device="cpu")
    pool.store(0, torch.arange(NUM_SLOTS), *(torch.randn(NUM_SLOTS, num_kv_heads, head_dim, generator=generator) for _ in range(2)))
    return pool


def make_rows(starts: Sequence[int], counts: Sequence[int], shape: tuple[int, int, int], generator: torch.Generator) -> Rows:
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    tables = torch.split(torch.randperm(NUM_SLOTS, generator=generator)[: sum(lengths)], lengths)
    return Rows(tables, starts, counts, torch.randn(sum(counts), shape[0], shape[2], generator=generator))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", STEPS)
def test_attention_equals_its_definition(step: str, shape: str, dtype: str, path: str) -> None:
    generator = torch.Generator().manual_seed(1)
    pool = make_pool(SHAPES[shape], TYPES[dtype], generator)
    rows = make_rows(*STEPS[step], SHAPES[shape], generator)
    k, v = pool.read(0, torch.arange(NUM_SLOTS), torch.float32)
    for window in (0, 1, 90):
        expected = torch.cat([
            reference_attention.paged_attention(q, k, v, table[None], [start], [count], scale=q.shape[2] ** -0.5, window=window)
            for q, table, start, count in zip(rows.q.split(list(rows.counts)), rows.tables, rows.starts, rows.counts, strict=True)
        ])  # fmt: skip
        # Operands rounded to bf16 are off by 2^-9 at most, and so are weights and values of a sum of weights of 1.
        rounded = path in ("pairs", "avx512") and dtype in ("bfloat16", "int8")
        off = 0.02 if rounded else 2e-5
        torch.testing.assert_close(attend(pool, rows, path, window=window), expected, atol=off, rtol=off)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("window", [0, 300])
def test_a_query_has_the_same_bits_alone_chunked_batched_and_on_any_number_of_threads(window: int, dtype: str, path: str) -> None:
    shape, length = SHAPES["grouped"], 333
    generator = torch.Generator().manual_seed(2)
    pool = make_pool(shape, TYPES[dtype], generator)
    slots = torch.randperm(NUM_SLOTS, generator=generator)
    table, others = slots[:length], slots[length:]
    q = torch.randn(length, shape[0], shape[2], generator=generator)
    whole = attend(pool, Rows([table], [0], [length], q), path, window=window)

    for threads in (1, 2, 3, 64):
        _native.set_num_threads(min(threads, 3))
        assert torch.equal(attend(pool, Rows([table], [0], [length], q), path, window=window, threads=threads), whole)
    for sizes in ([100, 200, 33], [1, 15, 16, 17, 284], [332, 1]):
        parts, start = [], 0
        for size in sizes:
            parts.append(attend(pool, Rows([table[: start + size]], [start], [size], q[start : start + size]), path, window=window))
            start += size
        assert torch.equal(torch.cat(parts), whole)
    batch = Rows(
        [others[:400], table, others[400:500], table[:300]], [399, 330, 20, 299], [1, 3, 80, 1],
        torch.cat((q[:1], q[330:], q[:80], q[299:300])),
    )  # fmt: skip
    _, tail, _, single = attend(pool, batch, path, window=window).split([1, 3, 80, 1])
    assert torch.equal(tail, whole[330:])
    assert torch.equal(single, whole[299:300])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_share_slots_have_the_bits_of_rows_that_share_none(dtype: str, path: str) -> None:
    shape, count = SHAPES["grouped"], 20
    generator = torch.Generator().manual_seed(3)
    pool = make_pool(shape, TYPES[dtype], generator)
    slots = torch.randperm(NUM_SLOTS, generator=generator)
    root, branch, own = slots[:600], slots[600:900], slots[900:].split(7)
    tables = [torch.cat((root, branch if row % 3 else own[20 + row], own[row])) for row in range(count)]
    counts = [1 + row % 4 for row in range(count)]
    starts = [len(table) - new for table, new in zip(tables, counts, strict=True)]
    q = torch.randn(sum(counts), shape[0], shape[2], generator=generator)
    together = attend(pool, Rows(tables, starts, counts, q), path, threads=2)
    alone = [
        attend(pool, Rows([table], [start], [new], part), path)
        for table, start, new, part in zip(tables, starts, counts, q.split(counts), strict=True)
    ]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("path", PATHS)
def test_rows_stacked_on_one_that_is_further_on_pass_over_blocks_that_they_do_not_reach(path: str) -> None:
    shape = SHAPES["odd"]
    generator = torch.Generator().manual_seed(5)
    pool = make_pool(shape, torch.float32, generator)
    table = torch.randperm(NUM_SLOTS, generator=generator)[:301]
    q = torch.randn(181, shape[0], shape[2], generator=generator)
    # The second's first tokens see nothing of the last blocks of the chunk that both read.
    together = attend(pool, Rows([table, table[:280]], [300, 100], [1, 180], q), path, threads=2)
    alone = [attend(pool, Rows([table], [300], [1], q[:1]), path), attend(pool, Rows([table[:280]], [100], [180], q[1:]), path)]
    assert torch.equal(together, torch.cat(alone))


def test_a_row_may_read_slots_that_another_row_of_the_step_computes() -> None:
    shape = SHAPES["grouped"]
    generator = torch.Generator().manual_seed(4)
    pool = make_pool(shape, torch.float32, generator)
    slots = torch.randperm(NUM_SLOTS, generator=generator)
    first, second = slots[:300], torch.cat((slots[:256], slots[300:310]))
    q = torch.randn(46, shape[0], shape[2], generator=generator)
    together = attend(pool, Rows([first, second], [260, 260], [40, 6], q), "portable", threads=64)
    alone = [attend(pool, Rows([first], [260], [40], q[:40]), "portable"), attend(pool, Rows([second], [260], [6], q[40:]), "portable")]
    assert torch.equal(together, torch.cat(alone))


def test_what_was_never_written_is_not_read() -> None:
    shape = SHAPES["grouped"]
    generator = torch.Generator().manual_seed(5)
    pool = make_pool(shape, torch.float32, generator)
    rows = make_rows([70, 0], [1, 30], shape, generator)
    expected = attend(pool, rows, _native.detected_isa())
    unused = torch.ones(NUM_SLOTS, dtype=torch.bool)
    unused[torch.cat(list(rows.tables))] = False
    for stored in (pool.k[0], pool.v[0]):
        stored[unused] = torch.nan
    assert torch.equal(attend(pool, rows, _native.detected_isa()), expected)


@pytest.mark.parametrize("dims", [slice(None), 0])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("path", PATHS)
def test_a_query_that_is_not_finite_spoils_only_itself(path: str, value: float, dims: slice | int) -> None:
    shape = SHAPES["grouped"]
    generator = torch.Generator().manual_seed(6)
    pool = make_pool(shape, torch.float32, generator)
    rows = make_rows([300], [20], shape, generator)
    expected = attend(pool, rows, path)
    rows.q[7, 2, dims] = value
    found = attend(pool, rows, path)
    assert found[7, 2].isnan().all()
    found[7, 2] = expected[7, 2]
    assert torch.equal(found, expected)


def test_instruction_sets_agree_to_the_last_bits() -> None:
    if _native.detected_isa() == "portable":
        pytest.skip("one path only")
    generator = torch.Generator().manual_seed(7)
    pool = make_pool(SHAPES["grouped"], torch.float32, generator)
    rows = make_rows([0, 700], [100, 1], SHAPES["grouped"], generator)
    torch.testing.assert_close(attend(pool, rows, "portable"), attend(pool, rows, _native.detected_isa()), atol=2e-6, rtol=2e-6)
    assert _native.rejected_paths() == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pages": [[0, 1, NUM_SLOTS]]}, "outside"),
        ({"pages": [[0, -1, 2]]}, "outside"),
        ({"starts": [3]}, "does not fit"),
        ({"starts": [-1]}, "does not fit"),
        ({"starts": [0, 0]}, "a row"),
        ({"num_kv_heads": 4}, "divide"),
        ({"head_dim": 1024}, "head_dim"),
        ({"window": -1}, "window"),
    ],
)
def test_a_plan_refuses_what_it_cannot_serve(change: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"pages": [[0, 1, 2]], "starts": [2], "num_kv_heads": 2, "head_dim": 64, "window": 0} | change
    with pytest.raises(ValueError, match=says):
        _native.AttentionPlan(
            torch.tensor(given["pages"], dtype=torch.int32), np.array(given["starts"]), np.array([1]), 6, given["num_kv_heads"],
            given["head_dim"], NUM_SLOTS, given["window"],
        )  # fmt: skip


def test_shapes_that_do_not_fit_the_plan_are_refused() -> None:
    pool = make_pool(SHAPES["grouped"], torch.float32, torch.Generator().manual_seed(8))
    plan = ops.attention_plan(np.zeros((1, 3), np.int32), np.array([2]), np.array([1]), 6, 2, 64, NUM_SLOTS)
    right = torch.zeros(1, 6, 64)
    for q, out in ((torch.zeros(2, 6, 64), torch.zeros(2, 6, 64)), (right, torch.zeros(1, 6, 32)), (right.transpose(1, 2), right)):
        with pytest.raises(ValueError, match="paged_attention"):
            ops.paged_attention(plan, pool.storage, 0, q, out, 1.0)
    with pytest.raises(ValueError, match="layer"):
        ops.paged_attention(plan, pool.storage, 1, right, right.clone(), 1.0)


SPECIAL = torch.tensor([[0.0, 0.0, -0.0, 0.0], [1e-42, 0.0, 0.0, -1e-42], [torch.inf, 1.0, 2.0, 3.0], [1.0, torch.nan, 2.0, 3.0],
                        [65504.0, 65520.0, -1e-8, 6e-8], [1.0, -1.0, 0.5, 2.0]])  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_storing_equals_its_definition(dtype: str) -> None:
    generator = torch.Generator().manual_seed(9)
    tokens, heads, head_dim = 70, 3, 4
    sizes = 10 ** (torch.arange(tokens)[:, None, None] / 10 - 3)
    k, v = (torch.randn(tokens, heads, head_dim, generator=generator) * sizes for _ in range(2))
    k[:6, 0], v[1:7, 2] = SPECIAL, SPECIAL
    slots = torch.randperm(100, generator=generator)[:tokens]
    pools = [KVPool(num_layers=2, num_slots=100, num_kv_heads=heads, head_dim=head_dim, dtype=TYPES[dtype], device="cpu") for _ in range(2)]
    for pool in pools:
        for part in (*pool.k, *pool.v, *pool.k_scale, *pool.v_scale):
            part.zero_()
    pools[1].storage = reference_attention.KVStorage(pools[1].k, pools[1].v, pools[1].k_scale, pools[1].v_scale)
    fused = torch.cat((torch.zeros(tokens, 2, head_dim), k, v), dim=1)  # K/V of a product of all three lie apart
    pools[0].storage.store(1, slots, fused[:, 2 : 2 + heads], fused[:, 2 + heads :])
    pools[1].store(1, slots, k, v)
    for native, reference in zip(*(pool.k + pool.v + pool.k_scale + pool.v_scale for pool in pools), strict=True):
        torch.testing.assert_close(native, reference, atol=0, rtol=0, equal_nan=True)


def test_storing_refuses_slots_outside_the_pool() -> None:
    pool = make_pool(SHAPES["grouped"], torch.float32, torch.Generator().manual_seed(10))
    for slot in (-1, NUM_SLOTS):
        with pytest.raises(ValueError, match="slot"):
            pool.store(0, torch.tensor([slot]), torch.zeros(1, 2, 64), torch.zeros(1, 2, 64))


def test_an_int8_head_is_within_half_a_step_of_what_was_stored() -> None:
    x = torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(11))
    values, scales = reference_attention.quantise_heads(x)
    assert ((values * scales.unsqueeze(-1) - x).abs() <= scales.unsqueeze(-1) * 0.5001).all()
    assert values.abs().amax(dim=-1).eq(127).all()


def test_bytes_of_a_slot_are_those_of_the_tensors() -> None:
    for dtype in TYPES.values():
        pool = KVPool(num_layers=3, num_slots=10, num_kv_heads=2, head_dim=16, dtype=dtype, device="cpu")
        held = sum(part.nbytes for part in pool.k + pool.v + pool.k_scale + pool.v_scale)
        assert KVPool.bytes_per_slot(num_layers=3, num_kv_heads=2, head_dim=16, dtype=dtype) * 10 == held
