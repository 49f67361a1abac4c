"""The sampler chain: each sampler against a plain definition of one row, their order, DRY's repeats, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from radixrt import samplers
from radixrt.batch import Samples, sampling_on
from radixrt.engine.breakers import BreakerTable
from radixrt.engine.native import parse_sampling
from radixrt.errors import InvalidSampling
from radixrt.runner import chain, sampler
from radixrt.samplers import SAMPLERS, Breakers, ChainParams
from radixrt.schedule.batching import build_sampling, read_results
from radixrt.schedule.chain import CHANCE
from radixrt.schedule.edits import repeats
from radixrt.schedule.masks import MaskArena
from radixrt.schedule.noise import uniforms
from radixrt.schedule.request import Request
from radixrt.schedule.step import ScheduledRow, ScheduledStep
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import GenerateRequest, SamplingParams

CPU = torch.device("cpu")
PROMPT = [1, 2, 3]
RNG = np.random.default_rng(0)

Row = np.ndarray
Define = Callable[[Row, SamplingParams, float], Row]


def softmax(x: Row) -> Row:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def only(x: Row, kept: list[int]) -> Row:
    out = np.full_like(x, -np.inf)
    out[kept] = x[kept]
    return out


def by(scores: Row) -> list[int]:
    return [int(i) for i in np.argsort(-scores, kind="stable")]


def top_n_sigma(x: Row, p: SamplingParams, chance: float) -> Row:
    bound = x.max() - p.chain.top_n_sigma * x[np.isfinite(x)].std()
    return only(x, np.flatnonzero(x >= bound).tolist()) if p.chain.top_n_sigma > 0 else x


def top_k(x: Row, p: SamplingParams, chance: float) -> Row:
    return x if p.top_k == -1 else only(x, by(x)[: p.top_k])


def typ_p(x: Row, p: SamplingParams, chance: float) -> Row:
    if p.chain.typical_p >= 1:
        return x
    probs = softmax(x)
    logs = np.log(probs, where=probs > 0, out=np.full_like(probs, -np.inf))
    entropy = -sum(q * log for q, log in zip(probs, logs, strict=True) if q > 0)
    kept, mass = [], 0.0
    for i in by(-np.abs(-logs - entropy)):
        kept.append(i)
        mass += probs[i]
        if mass > p.chain.typical_p:
            break
    return only(x, kept)


def top_p(x: Row, p: SamplingParams, chance: float) -> Row:
    probs, kept, mass = softmax(x), [], 0.0
    for i in by(x):
        kept.append(i)
        mass += probs[i]
        if mass >= p.top_p:
            break
    return x if p.top_p >= 1 else only(x, kept)


def min_p(x: Row, p: SamplingParams, chance: float) -> Row:
    probs = softmax(x)
    return only(x, np.flatnonzero(probs >= p.min_p * probs.max()).tolist())


def xtc(x: Row, p: SamplingParams, chance: float) -> Row:
    probs = softmax(x)
    above = [i for i in by(x) if probs[i] >= p.chain.xtc_threshold]
    if chance >= p.chain.xtc_probability or p.chain.xtc_threshold > 0.5 or len(above) < 2:
        return x
    gone = set(above[:-1])
    return only(x, [i for i in range(len(x)) if i not in gone])


def temperature(x: Row, p: SamplingParams, chance: float) -> Row:
    heat, spread = p.temperature, p.chain.dynatemp_range
    count = int(np.isfinite(x).sum())
    if spread > 0 and count > 1:
        probs = softmax(x)
        entropy = -sum(q * math.log(q) for q in probs if q > 0) / math.log(count)
        low = max(0.0, heat - spread)
        heat = low + (heat + spread - low) * entropy**p.chain.dynatemp_exponent
    return only(x, by(x)[:1]) if heat < 1e-6 else x / heat


DEFINITIONS: dict[str, Define] = {
    "top_n_sigma": top_n_sigma, "top_k": top_k, "typ_p": typ_p, "top_p": top_p, "min_p": min_p, "xtc": xtc, "temperature": temperature,
}
CASES = [
    {"top_n_sigma": 1.0}, {"top_n_sigma": 0.2}, {"typical_p": 0.2}, {"typical_p": 0.9}, {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1}, {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"dynatemp_range": 0.7}, {"dynatemp_range": 1.5, "dynatemp_exponent": 2.0, "temperature": 0.8}, {"temperature": 0.0, "typical_p": 0.5},
    {"samplers": ["top_k"], "top_k": 5, "temperature": 0.1}, {"samplers": ["temperature", "min_p"], "temperature": 2.0, "min_p": 0.3},
    {"samplers": ["min_p", "temperature"], "temperature": 2.0, "min_p": 0.3}, {"samplers": ["top_p", "top_k"], "top_p": 0.6, "top_k": 3},
    {"samplers": []}, {"top_n_sigma": 2.0, "top_k": 20, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.02, "xtc_probability": 0.7,
                       "xtc_threshold": 0.05, "dynatemp_range": 0.5},
]  # fmt: skip


def scheduled(params: list[SamplingParams], output: list[int] | None = None, drafts: int = 0, mu: float | None = None) -> ScheduledStep:
    rows = []
    for i, sampling in enumerate(params):
        request = Request(GenerateRequest(uid=i, prompt=PROMPT, sampling=sampling), max_length=99, seed=sampling.seed or 0)
        request.tokens.extend(output or [])
        end = len(request.tokens)
        request.num_verified = end - drafts
        if request.mu is not None:
            request.mu.extend([math.nan] * (request.num_verified - len(PROMPT)))
            request.mu[-1] = request.mu[0] if mu is None else mu
        rows.append(ScheduledRow(request, end - 1 - drafts, 1 + drafts, 0, i, end - drafts, 3, 3))
    return ScheduledStep(rows)


def run(logits: np.ndarray, step: ScheduledStep) -> tuple[list[int], Samples]:
    """Sample a step as the runner does."""
    given = torch.tensor(logits, dtype=torch.float32)
    batch = sampling_on(CPU, build_sampling(step, logits.shape[1], CPU, MaskArena(logits.shape[1])))
    tokens = sampler.sample(given, batch)
    mu = chain.choose(given, batch.chain, tokens) if batch.chain else None
    return tokens.tolist(), Samples(tokens.numpy(), mu=None if mu is None else mu.numpy())


def rows_of(count: int, size: int) -> np.ndarray:
    return (RNG.normal(size=(count, size)) * RNG.uniform(0.5, 4.0, size=(count, 1))).astype(np.float32).astype(np.float64)


def defined(x: Row, params: SamplingParams, position: int = len(PROMPT)) -> Row:
    chance = uniforms([(params.seed or 0) ^ CHANCE], [position])[0]
    for name in params.chain.order:
        x = DEFINITIONS.get(name, lambda x, *_: x)(x, params, chance)
    return x


def drawn(x: Row, seed: int, position: int = len(PROMPT)) -> int:
    cumulative = np.cumsum(softmax(x))
    return int(np.searchsorted(cumulative, uniforms([seed], [position])[0] * cumulative[-1], side="right"))


@pytest.mark.parametrize("size", [7, 400, 3000])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sampler_is_its_definition(case: dict[str, object], size: int) -> None:
    params = [parse_sampling(case | {"seed": seed}) for seed in range(25 if size < 1000 else 6)]
    logits = rows_of(len(params), size)
    tokens, _ = run(logits, scheduled(params))
    assert tokens == [drawn(defined(x, p), p.seed or 0) for x, p in zip(logits, params, strict=True)]


def test_a_row_does_not_depend_on_the_rest_of_the_batch_and_the_same_seed_gives_the_same() -> None:
    params = [parse_sampling({**case, "seed": i, "frequency_penalty": 0.1 * i}) for i, case in enumerate(CASES)]
    params += [SamplingParams(seed=1), SamplingParams(temperature=0.0), parse_sampling({"mirostat": 2, "seed": 5})]
    logits = rows_of(len(params), 2500)
    together, _ = run(logits, scheduled(params, [4, 5, 4]))
    assert together == run(logits, scheduled(params, [4, 5, 4]))[0]
    assert together == [run(logits[i : i + 1], scheduled([p], [4, 5, 4]))[0][0] for i, p in enumerate(params)]


def test_a_batch_without_a_chain_builds_none() -> None:
    params = [parse_sampling({"dry_base": 2.0, "xtc_threshold": 0.2, "top_p": 0.5}), parse_sampling({"dry_multiplier": 0.0})]
    assert [p.chain for p in params] == [None, None]
    assert build_sampling(scheduled(params), 9, CPU, MaskArena(9)).chain == ()


@pytest.mark.parametrize("ties", [2, 9])
def test_of_equal_logits_the_first_ids_stay_and_xtc_leaves_the_last(ties: int) -> None:
    logits = np.array([[0.0] + [3.0] * ties + [1.0]])
    kept = {run(logits, scheduled([parse_sampling({"samplers": ["top_k"], "top_k": 2, "seed": seed})]))[0][0] for seed in range(60)}
    assert kept == {1, 2}
    excluded = {"xtc_probability": 1.0, "xtc_threshold": 0.05, "seed": 0}
    assert {run(logits, scheduled([parse_sampling(excluded | {"seed": seed, "top_k": ties})]))[0][0] for seed in range(20)} == {ties}


def test_xtc_acts_as_often_as_asked() -> None:
    params = [parse_sampling({"xtc_probability": 0.3, "xtc_threshold": 0.1, "temperature": 0.0, "seed": seed}) for seed in range(3000)]
    tokens, _ = run(np.tile([2.0, 1.5, 1.0, -5.0], (3000, 1)), scheduled(params))
    assert set(tokens) == {0, 2} and abs(tokens.count(2) / 3000 - 0.3) < 0.03


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_give_no_token(bad: float) -> None:
    params = [parse_sampling({**case, "seed": 1}) for case in (*CASES, {"mirostat": 1}, {"mirostat": 2})]
    logits = np.zeros((len(params), 6))
    logits[:, 2 if bad != -math.inf else slice(None)] = bad
    assert run(logits, scheduled(params))[0] == [-1] * len(params)


def test_bias_comes_before_the_chain_and_penalties_in_it() -> None:
    logits = np.array([[3.0, 2.9, 0.0]])
    common = {"temperature": 0.0, "frequency_penalty": 1.0}
    first = parse_sampling(common | {"samplers": ["penalties", "top_k"], "top_k": 1})
    assert run(logits, scheduled([first], [0]))[0] == [1]
    late = parse_sampling(common | {"samplers": ["top_k", "penalties"], "top_k": 1})
    assert run(logits, scheduled([late], [0]))[0] == [0]
    none = parse_sampling(common | {"samplers": ["temperature"], "logit_bias": {2: 9.0}})
    assert run(logits, scheduled([none], [0]))[0] == [2]


def plain_repeats(tokens: list[int], params: ChainParams, breakers: set[int]) -> dict[int, float]:
    window = tokens[-params.dry_penalty_last_n :] if params.dry_penalty_last_n > 0 else tokens
    longest: dict[int, int] = {}
    for end in range(len(window) - 1):
        length = 0
        while length <= end and window[end - length] == window[-1 - length] and window[-1 - length] not in breakers:
            length += 1
        longest[window[end + 1]] = max(longest.get(window[end + 1], 0), length)
    return {
        token: -params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        for token, length in longest.items()
        if length >= params.dry_allowed_length
    }


@pytest.mark.parametrize("last_n", [-1, 1, 12])
@pytest.mark.parametrize("allowed", [1, 2, 4])
def test_dry_is_its_definition(last_n: int, allowed: int) -> None:
    params = ChainParams(dry_multiplier=0.8, dry_allowed_length=allowed, dry_penalty_last_n=last_n)
    breakers = Breakers(np.packbits(np.arange(8) == 3).tobytes())
    found = 0
    for length in (*range(1, 30), 200):
        tokens = RNG.choice([0, 1, 3], p=[0.45, 0.45, 0.1], size=length).tolist()
        ids, values = repeats(np.array(tokens, dtype=np.int32), params, breakers)
        expected = plain_repeats(tokens, params, {3})
        assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == pytest.approx(expected)
        found += len(ids)
    assert found > 0 or last_n == 1


def test_dry_penalises_what_goes_on_with_a_repeat_and_nothing_else() -> None:
    params = parse_sampling({"dry_multiplier": 5.0, "temperature": 0.0})
    logits = np.array([[0.0, 0.0, 0.0, 0.0, 2.0, 1.0]])
    assert run(logits, scheduled([params], [5, 1, 2]))[0] == [4], "1 2 was followed by 3 before, and 3 is not the best"
    assert run(logits, scheduled([params], [4, 5, 4]))[0] == [4], "4 was followed by 5 once, which is allowed"
    assert run(logits, scheduled([params], [2, 5, 4, 2, 5]))[0] == [5], "2 5 was followed by 4"


def test_breakers_of_one_token_and_of_several_end_repeats() -> None:
    table = BreakerTable(ToyTokenizer())
    params = ChainParams(dry_multiplier=1.0)
    text = np.array(list(b"say: abc; say: abc"), dtype=np.int32)

    def longest(*breakers: str) -> float:
        ids, values = repeats(text, params, table.resolve(breakers))
        assert ids.tolist() == [ord(";")]
        return 2 + math.log(-values[0], params.dry_base)

    assert (round(longest()), round(longest(":")), round(longest("ay:")), round(longest(" "))) == (8, 4, 4, 3)


def test_a_very_long_repeat_stays_finite() -> None:
    params = ChainParams(dry_multiplier=1e30, dry_base=1e9)
    _, values = repeats(np.zeros(4000, dtype=np.int32), params, Breakers())
    assert np.isfinite(values.astype(np.float32)).all()


def plain_mirostat(x: Row, version: int, mu: float, tau: float, eta: float, seed: int, position: int) -> tuple[int, float]:
    probs = softmax(x)
    ranked = by(x)
    if version == 1:
        top = np.array([probs[i] for i in ranked[:100]])
        ratios = [math.log((i + 2) / (i + 1)) for i in range(len(top) - 1)]
        steps = [math.log(top[i] / top[i + 1]) for i in range(len(top) - 1)]
        s = sum(t * b for t, b in zip(ratios, steps, strict=True)) / sum(t * t for t in ratios)
        k = ((s - 1) * 2**mu / (1 - len(x) ** -(s - 1))) ** (1 / s)
        left = only(x, ranked[: max(1, int(min(k, len(x))))])
    else:
        left = only(x, ranked[: max(1, sum(-math.log2(q) <= mu for q in probs))])
    token = drawn(left, seed, position)
    return token, mu - eta * (-math.log2(softmax(left)[token]) - tau)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [50, 3000])
def test_mirostat_is_its_definition_position_after_position(version: int, size: int) -> None:
    params = [parse_sampling({"mirostat": version, "mirostat_tau": 3.0, "mirostat_eta": 0.3, "seed": seed}) for seed in range(8)]
    drafts = 3
    step = scheduled(params, [4, 5, 6, 7, 8], drafts, mu=4.0)
    logits = rows_of(len(params) * (drafts + 1), size)
    tokens, samples = run(logits, step)
    results = read_results(step, samples)
    for i, (p, result) in enumerate(zip(params, results, strict=True)):
        mu = 4.0
        for j in range(drafts + 1):
            at = i * (drafts + 1) + j
            token, mu = plain_mirostat(logits[at], version, mu, 3.0, 0.3, p.seed or 0, len(PROMPT) + 2 + j)
            assert result.mu is not None
            assert (tokens[at], result.mu[j]) == (token, pytest.approx(mu))


def test_mirostat_brings_surprise_to_its_target() -> None:
    params = parse_sampling({"mirostat": 2, "mirostat_tau": 2.5, "seed": 3})
    x, mu, surprises = rows_of(1, 500) * 0.3, 5.0, []
    for i in range(400):
        _, samples = run(x, scheduled([parse_sampling({"mirostat": 2, "mirostat_tau": 2.5, "seed": i})], mu=mu))
        assert samples.mu is not None
        surprises.append(2.5 + (mu - samples.mu[0]) / 0.1)
        mu = samples.mu[0]
    assert params.chain is not None and abs(np.mean(surprises[100:]) - 2.5) < 0.2


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"dry_multiplier": -1.0}, "dry_multiplier"), ({"dry_base": 0.5}, "dry_base"), ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"), ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["x"] * 65}, "dry_sequence_breakers"), ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"xtc_probability": 1.5}, "xtc_probability"), ({"xtc_threshold": -0.1}, "xtc_threshold"), ({"typical_p": 1.1}, "typical_p"),
        ({"top_n_sigma": math.nan}, "top_n_sigma"), ({"mirostat": 3}, "mirostat"), ({"mirostat": True}, "mirostat"),
        ({"mirostat_tau": math.inf}, "mirostat_tau"), ({"mirostat_eta": 2.0}, "mirostat_eta"), ({"dynatemp_range": -1.0}, "dynatemp_range"),
        ({"dynatemp_exponent": "2"}, "dynatemp_exponent"), ({"samplers": ["top_k", "top-k"]}, "samplers"),
        ({"samplers": ["best"]}, "samplers"), ({"samplers": [1]}, "samplers"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(params: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidSampling) as caught:
        parse_sampling(params)
    assert caught.value.param == param


def test_the_table_of_samplers_is_that_of_the_code() -> None:
    assert {*chain._FILTERS, *chain._EDITS} == set(SAMPLERS)
    parameters = {name: value for each in (*SAMPLERS.values(), samplers.MIROSTAT) for name, value in each.parameters.items()}
    defaults = {name: getattr(ChainParams(), name) for name in samplers.NAMES} | {
        name: getattr(SamplingParams(), name) for name in parameters if name in SamplingParams.__struct_fields__
    }
    lists = {"dry_sequence_breakers", "samplers"}
    assert {name: value for name, value in parameters.items() if name not in lists} == {
        name: value for name, value in defaults.items() if name not in lists
    }
