"""The compiled sampler against its definition in torch, and that a row does not depend on the rest of its batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from radixrt.batch import LogitEdits, SamplingBatch
from radixrt.runner import sampler
from radixrt_kernels.ops import NATIVE

if not NATIVE:
    pytest.skip("nothing was compiled", allow_module_level=True)

from radixrt_kernels import _native

SETS = _native.isa_names()
PATHS = SETS[: SETS.index(_native.detected_isa()) + 1]
# Not multiples of a vector, a word of the mask, or a block of sums.
SIZES = (1, 37, 5003)
# How near a border of two tokens the noise may lie before they may be exchanged, as a share of all weight.
NEAR = 1e-6


@pytest.fixture(autouse=True, params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    isa = _native.cpu_isa()
    _native.set_cpu_isa(request.param)
    yield request.param
    _native.set_cpu_isa(isa)


def edits(count: int, rows: int, size: int, generator: torch.Generator, *, positive: bool = False) -> LogitEdits:
    places = torch.randperm(rows * size, generator=generator)[:count]
    values = torch.randn(len(places), generator=generator)
    return LogitEdits(places // size, places % size, values.abs() + 0.1 if positive else values)


def make(rows: int, size: int, generator: torch.Generator, *, edited: bool) -> tuple[Tensor, SamplingBatch[Tensor]]:
    """Rows of every kind: greedy, plain, filtered by any of three ways, at temperatures from cold to hot."""

    def pick(values: list[float]) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=generator)]

    greedy = torch.rand(rows, generator=generator) < 0.2
    mask = torch.randint(-(2**31), 2**31, (rows, (size + 31) // 32), generator=generator).int()
    mask[:, 0] |= 1
    sampling = SamplingBatch(
        all_greedy=bool(greedy.all()),
        greedy=greedy,
        temperature=pick([0.01, 0.7, 1.0, 5.0]),
        top_k=pick([size, size, 1, 3, 40, 3000]).long().clamp(max=size),
        top_p=pick([1.0, 1.0, 0.1, 0.9, 0.9999]),
        min_p=pick([0.0, 0.0, 0.001, 0.3]),
        uniform=torch.rand(rows, dtype=torch.float64, generator=generator),
        penalties=edits(rows * 3, rows, size, generator) if edited else None,
        repetition=edits(rows * 3, rows, size, generator, positive=True) if edited else None,
        bias=edits(rows * 3, rows, size, generator) if edited else None,
        mask=mask if edited else None,
    )
    return torch.randn(rows, size, generator=generator) * pick([3.0, 30.0])[:, None], sampling


def in_torch(logits: Tensor, sampling: SamplingBatch[Tensor], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "COMPILED", False)
        return sampler.sample(logits, sampling)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_tokens_are_those_of_the_definition_but_at_borders(size: int, edited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(size)
    logits, sampling = make(600, size, generator, edited=edited)
    expected_logits, found_logits = logits.clone(), logits.clone()
    expected = in_torch(expected_logits, sampling, monkeypatch)
    found = sampler.sample(found_logits, sampling)
    torch.testing.assert_close(found_logits, expected_logits, atol=0, rtol=0)
    differing = (found != expected).nonzero().flatten()
    assert len(differing) <= 6
    if len(differing):  # nudging the noise, or the filter, exchanges them in the definition too
        nudged = []
        for by in (-NEAR, NEAR):
            moved = replace(sampling, uniform=(sampling.uniform + by).clamp(0, 1 - 1e-12))
            nudged.append(in_torch(logits.clone(), moved, monkeypatch))
            nudged.append(in_torch(logits.clone(), replace(sampling, top_p=sampling.top_p * (1 + by)), monkeypatch))
        for row in differing.tolist():
            assert found[row] in [tokens[row] for tokens in nudged]


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, sampling = make(40, 5003, generator, edited=False)
    together = sampler.sample(logits.clone(), sampling)
    for row in range(40):
        alone = SamplingBatch(
            all_greedy=False,
            **{
                name: getattr(sampling, name)[row : row + 1]
                for name in ("greedy", "temperature", "top_k", "top_p", "min_p", "uniform")
            },
        )
        assert sampler.sample(logits[row : row + 1].clone(), alone).item() == together[row]


def test_instruction_sets_draw_the_same_tokens(path: str) -> None:
    generator = torch.Generator().manual_seed(2)
    logits, sampling = make(300, 5003, generator, edited=True)
    found = sampler.sample(logits.clone(), sampling)
    _native.set_cpu_isa("portable")
    assert (sampler.sample(logits.clone(), sampling) != found).sum() <= 2
    assert _native.rejected_paths() == []


def test_the_hottest_row_draws_by_the_order_of_ids() -> None:
    logits, sampling = make(200, 5003, torch.Generator().manual_seed(5), edited=False)
    off = {"top_k": torch.full((200,), 5003), "top_p": torch.ones(200), "min_p": torch.zeros(200)}
    hottest = replace(sampling, temperature=torch.full((200,), 1e30), greedy=torch.zeros(200, dtype=torch.bool), **off)
    expected = (sampling.uniform * 5003).long()
    assert ((sampler.sample(logits, hottest) - expected).abs() <= 1).all()


def test_the_best_of_equals_is_the_first() -> None:
    logits = torch.zeros(3, 100)
    logits[1, 40:] = 1.0
    logits[2, 99] = 1.0
    _, sampling = make(3, 100, torch.Generator(), edited=False)
    assert sampler.sample(logits, replace(sampling, greedy=torch.ones(3, dtype=torch.bool))).tolist() == [0, 40, 99]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("greedy", [False, True])
def test_rows_without_a_finite_best_give_no_token(bad: float, greedy: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    logits, sampling = make(4, 100, generator, edited=False)
    logits[1] = -torch.inf
    logits[1, 99] = bad
    logits[2, 5] = torch.nan
    found = sampler.sample(logits, replace(sampling, greedy=torch.full((4,), greedy)))
    assert (found >= 0).tolist() == [True, False, False, True]


@pytest.mark.parametrize("top", [0, 1, 5, 37])
def test_logprobs_equal_their_definition(top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(4)
    for size in (37, 5003):
        logits = torch.randn(9, size, generator=generator) * 5
        logits[0] = 2.0
        logits[1, 3:] = -torch.inf
        logits[2] *= 1e4
        chosen = torch.randint(-1, size, (9,), generator=generator)
        given = torch.randint(-1, size, (9, 3), generator=generator)
        found = sampler.logprobs_of(logits, chosen, top, given)
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "COMPILED", False)
            expected = sampler.logprobs_of(logits, chosen, top, given)
        for mine, theirs in zip((*found[:2], found[3]), (*expected[:2], expected[3]), strict=True):
            torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-6)
        assert torch.equal(logits.gather(1, found[2]), logits.gather(1, expected[2]))
        assert all(len(set(ids)) == top for ids in found[2].tolist())


def test_shapes_and_ids_that_do_not_fit_are_refused() -> None:
    logits, sampling = make(4, 37, torch.Generator(), edited=True)
    one = torch.zeros(1, dtype=torch.int64)
    for change in (
        {"top_k": sampling.top_k[:3]},
        {"top_k": torch.zeros(4, dtype=torch.int64)},
        {"mask": torch.zeros(4, 1, dtype=torch.int32)},
        {"bias": LogitEdits(one + 4, one, torch.zeros(1))},
        {"bias": LogitEdits(one, one + 37, torch.zeros(1))},
        {"penalties": LogitEdits(one, one - 1, torch.zeros(1))},
    ):
        with pytest.raises(ValueError, match="sample"):
            sampler.sample(logits, replace(sampling, **change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="vocabulary"):
        sampler.logprobs_of(logits, torch.full((4,), 37), 1, None)
