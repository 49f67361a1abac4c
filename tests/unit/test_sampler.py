"""Sampling: filters, edits, noise and logprobs, each against the obvious definition."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radixrt.batch import LogitEdits, SamplingBatch, sampling_on
from radixrt.grammar.bitmask import allow_all, allow_only
from radixrt.runner import sampler
from radixrt.samplers import ChainParams
from radixrt.schedule.batching import build_sampling
from radixrt.schedule.masks import MaskArena
from radixrt.schedule.noise import uniforms
from radixrt.schedule.request import Request
from radixrt.schedule.step import ScheduledRow, ScheduledStep
from radixrt.types import GenerateRequest, LogprobOptions, SamplingParams

CPU = torch.device("cpu")


@pytest.fixture(params=["torch", "compiled"] if sampler.COMPILED else ["torch"], autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test runs on the definition, and on the compiled ops where they were built."""
    monkeypatch.setattr(sampler, "COMPILED", request.param == "compiled")
    name: str = request.param
    return name


def scheduled(params: list[SamplingParams], *, output: list[int] | None = None, stop_ids: tuple[int, ...] = ()) -> ScheduledStep:
    rows = []
    for i, sampling in enumerate(params):
        asked = GenerateRequest(uid=i, prompt=[1, 2, 3], sampling=sampling)
        request = Request(asked, max_length=99, seed=sampling.seed or 0, stop_ids=frozenset(stop_ids))
        request.tokens.extend(output or [])
        request.num_verified = len(request.tokens)
        end = len(request.tokens)
        rows.append(ScheduledRow(request, end - 1, 1, 0, i, end, 3, 3))
    return ScheduledStep(rows)


def batch(params: list[SamplingParams], vocab_size: int, **kwargs: object) -> SamplingBatch[Tensor]:
    return sampling_on(CPU, build_sampling(scheduled(params, **kwargs), vocab_size, CPU, MaskArena(vocab_size)))  # type: ignore[arg-type]


def distribution(logits: list[float], params: SamplingParams, draws: int = 20_000) -> Tensor:
    """Frequencies of the tokens drawn with as many seeds."""
    many = batch([SamplingParams(**{**as_dict(params), "seed": seed}) for seed in range(draws)], len(logits))
    tokens = sampler.sample(torch.tensor([logits] * draws), many)
    return torch.bincount(tokens, minlength=len(logits)) / draws


def as_dict(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]
PROBS = torch.tensor(LOGITS).softmax(0)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(), [0, 1, 2, 3, 4, 5]),
        (SamplingParams(top_k=2), [0, 1]),
        (SamplingParams(top_p=0.5), [0]),
        (SamplingParams(top_p=0.75), [0, 1]),
        (SamplingParams(min_p=0.2), [0, 1, 2]),
        (SamplingParams(top_k=3, top_p=0.75), [0, 1]),
        (SamplingParams(top_k=4, min_p=0.3), [0, 1]),
        (SamplingParams(temperature=0.5), [0, 1, 2, 3, 4, 5]),
        (SamplingParams(temperature=2.0, top_k=5), [0, 1, 2, 3, 4]),
    ],
)
def test_draws_follow_the_filtered_distribution(params: SamplingParams, kept: list[int]) -> None:
    expected = torch.zeros(len(LOGITS))
    expected[kept] = (torch.tensor(LOGITS) / params.temperature).softmax(0)[kept]
    assert torch.allclose(distribution(LOGITS, params), expected / expected.sum(), atol=0.015)


def test_greedy_takes_the_best_whatever_the_seed() -> None:
    assert distribution(LOGITS, SamplingParams(temperature=0.0), 50)[0] == 1
    assert distribution(LOGITS, SamplingParams(top_k=1), 50)[0] == 1


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    torch.manual_seed(0)
    vocab_size = 5000  # more than the short list, so that wide filters sort everything
    params = [
        SamplingParams(seed=1),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=3, seed=2),
        SamplingParams(top_p=0.3, seed=3),
        SamplingParams(top_p=0.999, temperature=3.0, seed=4),
        SamplingParams(min_p=0.001, seed=5),
        SamplingParams(top_k=4000, top_p=0.9999, seed=6),
    ]
    logits = torch.randn(len(params), vocab_size)
    together = sampler.sample(logits.clone(), batch(params, vocab_size))
    alone = [sampler.sample(logits[i : i + 1].clone(), batch([p], vocab_size)).item() for i, p in enumerate(params)]
    assert together.tolist() == alone


def test_the_short_list_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    params = [SamplingParams(top_p=p, seed=i) for i, p in enumerate(np.linspace(0.05, 0.95, 40).tolist())]
    logits = torch.randn(len(params), 3000) * 3
    short = sampler.sample(logits.clone(), batch(params, 3000))
    monkeypatch.setattr(sampler, "SHORT_LIST", 3000)
    assert torch.equal(short, sampler.sample(logits.clone(), batch(params, 3000)))


def test_penalties_are_those_of_the_output_alone() -> None:
    output = [4, 4, 0]
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0, -1.0, 1.0]])
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2.0)
    edited = logits.clone()
    sampler.sample(edited, batch([params], 6, output=output))
    expected = [(1.0 - 0.75) / 2, 1.0, 1.0, 1.0, (-1.0 - 1.25) * 2, 1.0]
    assert edited[0].tolist() == pytest.approx(expected)


def test_a_bias_cannot_revive_a_masked_token_and_the_mask_is_exact() -> None:
    mask = allow_all(1, 70)
    allow_only(mask[0], [0, 31, 32, 69])
    params = batch([SamplingParams(temperature=0.0, logit_bias={5: 100.0, 69: 1.0})], 70)
    logits = torch.zeros(1, 70)
    with_mask = SamplingBatch(**{name: getattr(params, name) for name in params.__slots__} | {"mask": torch.from_numpy(mask)})
    assert sampler.sample(logits, with_mask).item() == 69
    assert logits[0].isfinite().nonzero().flatten().tolist() == [0, 31, 32, 69]


def test_stop_tokens_are_forbidden_before_min_new_tokens() -> None:
    for output, best in (([], 1), ([1], 1), ([1, 1], 0)):
        params = batch([SamplingParams(temperature=0.0, min_new_tokens=2, logit_bias={0: 1.0})], 3, output=output, stop_ids=(0,))
        assert sampler.sample(torch.tensor([[5.0, 4.0, 3.0]]), params).item() == best


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_no_token(bad: float) -> None:
    logits = torch.tensor([[0.0, bad, 1.0], [0.0, 2.0, 1.0]])
    assert sampler.sample(logits, batch([SamplingParams(temperature=0.0), SamplingParams(temperature=0.0)], 3)).tolist() == [-1, 1]


def test_a_row_with_everything_forbidden_gives_no_token() -> None:
    params = batch([SamplingParams(seed=1)], 3)
    edits = LogitEdits(torch.zeros(3, dtype=torch.int64), torch.arange(3), torch.full((3,), -math.inf))
    forbidden = SamplingBatch(**{name: getattr(params, name) for name in params.__slots__} | {"bias": edits})
    assert sampler.sample(torch.zeros(1, 3), forbidden).item() == -1


def test_noise_is_uniform_and_differs_by_seed_and_position() -> None:
    grid = uniforms([seed for seed in range(300) for _ in range(300)], list(range(300)) * 300).reshape(300, 300)
    assert grid.min() >= 0 and grid.max() < 1 and len(np.unique(grid)) == grid.size
    counts = np.histogram(grid, bins=50, range=(0, 1))[0]
    assert ((counts - grid.size / 50) ** 2 / (grid.size / 50)).sum() < 90  # chi-square, 49 degrees of freedom: p about 3e-4
    for series in (grid[:, :-1] * grid[:, 1:], grid[:-1] * grid[1:], grid[:-1, :-1] * grid[1:, 1:]):
        assert abs(series.mean() - 0.25) < 0.005, "neighbours are independent"
    assert uniforms([-1, 2**63 - 1], [0, 0]).tolist() != uniforms([0, 0], [0, 0]).tolist()


def test_noise_of_few_is_that_of_many() -> None:
    seeds, positions = [-(2**63), -1, 0, 1, 2**63 - 1, 12345] * 5, list(range(30))
    many = uniforms(seeds, positions).tolist()
    assert many == [float(uniforms([seed], [position])[0]) for seed, position in zip(seeds, positions, strict=True)]


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = torch.tensor([LOGITS, LOGITS])
    chosen, values, ids, given = sampler.logprobs_of(logits, torch.tensor([3, 0]), 2, torch.tensor([[5, 1], [4, -1]]))
    logprobs = PROBS.log()
    assert torch.allclose(chosen, logprobs[[3, 0]], atol=1e-6)
    assert ids.tolist() == [[0, 1], [0, 1]]
    assert torch.allclose(values, logprobs[[0, 1]].expand(2, 2), atol=1e-6)
    assert given is not None
    assert torch.allclose(given[:, 0], logprobs[[5, 4]], atol=1e-6)


def test_rows_that_take_the_best_token_are_sampled_as_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    step = scheduled([SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(temperature=0.0, seed=3)])
    short = build_sampling(step, 8, CPU, MaskArena(8))
    monkeypatch.setattr(Request, "takes_best", False)
    whole = build_sampling(step, 8, CPU, MaskArena(8))
    logits = torch.randn(3, 8)
    assert sampler.sample(logits.clone(), sampling_on(CPU, short)).tolist() == sampler.sample(logits, sampling_on(CPU, whole)).tolist()
    assert all(len(getattr(short, name)) == 3 for name in ("greedy", "temperature", "top_k", "top_p", "min_p", "uniform"))
    assert short.all_greedy and (short.mask, short.bias, short.penalties, short.logprob_rows, list(short.chain)) == (None,) * 4 + ([],)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.1}, {"temperature": 0.0, "logit_bias": {1: 1.0}}, {"temperature": 0.0, "presence_penalty": 0.1},
        {"temperature": 0.0, "repetition_penalty": 1.1}, {"temperature": 0.0, "min_new_tokens": 1},
        {"temperature": 0.0, "chain": ChainParams()},
    ],
)  # fmt: skip
def test_a_request_with_anything_more_does_not_just_take_the_best_token(options: dict[str, Any]) -> None:
    assert scheduled([SamplingParams(temperature=0.0)]).rows[0].request.takes_best
    assert not scheduled([SamplingParams(**options)]).rows[0].request.takes_best


def test_only_rows_that_ask_report_logprobs() -> None:
    step = scheduled([SamplingParams(), SamplingParams(), SamplingParams()])
    step.rows[1].request.logprobs = LogprobOptions(top=3, token_ids=(2,))
    built = build_sampling(step, 8, CPU, MaskArena(8))
    assert built.logprob_rows is not None
    assert built.logprob_rows.tolist() == [1]
    assert (built.logprob_top, built.logprob_given.tolist() if built.logprob_given is not None else None) == (3, [[2]])


def test_counts_are_taken_from_the_tokens_before_the_position() -> None:
    request = Request(GenerateRequest(uid=0, prompt=[7], sampling=SamplingParams(presence_penalty=1.0)), max_length=99)
    request.tokens = array("i", [7, 1, 2, 3])  # 2 and 3 are drafts
    request.num_verified = 2
    step = ScheduledStep([ScheduledRow(request, 1, 3, 0, 0, 2, 1, 1)])
    edits = build_sampling(step, 8, CPU, MaskArena(8)).penalties
    assert edits is not None
    assert list(zip(edits.rows.tolist(), edits.tokens.tolist(), strict=True)) == [(0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
