"""Text drawn through the sampler chain is the same cold, warm, in chunks, in batches, with drafts and after a retraction."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from equalities import REFERENCE, SETTINGS, generate
from simulator import ForcedTokens, make_core

from radixrt.config import EngineConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.native import parse_sampling
from radixrt.errors import InvalidSampling
from radixrt.models.toy import ToyModel
from radixrt.schedule.request import Request
from radixrt.types import GenerateRequest

# Different in every request of a batch; the last ones share their samplers.
ASKED: list[dict[str, Any]] = [
    {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.5, "seed": 1},
    {"mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.5, "seed": 2, "dry_multiplier": 2.0},
    {"dry_multiplier": 3.0, "dry_allowed_length": 1, "xtc_probability": 0.5, "xtc_threshold": 0.02, "seed": 3},
    {"typical_p": 0.8, "top_n_sigma": 2.0, "dynatemp_range": 0.5, "seed": 4, "repetition_penalty": 1.2},
    {"samplers": ["temperature", "min_p", "dry"], "min_p": 0.1, "dry_multiplier": 1.0, "seed": 5},
]
SAMPLING = [parse_sampling({"max_new_tokens": 20, "min_new_tokens": 20, **asked}) for asked in ASKED]
PREAMBLE = [(7 * i) % 256 for i in range(24)]
PROMPTS = [PREAMBLE + [(11 * i * j) % 256 for j in range(1 + 3 * i)] for i in range(len(SAMPLING))]


@pytest.fixture(scope="module")
def answers() -> list[tuple[int, ...]]:
    (texts,), _ = generate(ToyModel(context_length=256), REFERENCE, prompts=PROMPTS, sampling=SAMPLING)
    return texts


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_changes_what_is_drawn(name: str, answers: list[tuple[int, ...]]) -> None:
    model = ToyModel(context_length=256)
    setting = replace(SETTINGS[name], num_slots=90) if name == "a pool that retracts" else SETTINGS[name]
    rounds, core = generate(model, setting, answers, prompts=PROMPTS, sampling=SAMPLING)
    assert rounds == [answers] * SETTINGS[name].rounds
    if name == "a pool that retracts":
        assert core.stats().num_retracted > 0
    if name == "drafts":
        assert 0 < core.stats().grammar.accepted_drafts < core.stats().grammar.drafted_tokens


@pytest.mark.parametrize("asked", [{}, *ASKED], ids=str)
def test_each_sampler_changes_the_text(asked: dict[str, Any], answers: list[tuple[int, ...]]) -> None:
    if asked:
        plain = parse_sampling({"max_new_tokens": 20, "min_new_tokens": 20, "seed": asked["seed"]})
        at = ASKED.index(asked)
        (texts,), _ = generate(ToyModel(context_length=256), REFERENCE, prompts=[PROMPTS[at]], sampling=[plain])
        assert texts != [answers[at]]
    else:
        assert len(set(answers)) == len(answers)


@pytest.mark.parametrize("index", range(len(ASKED)))
def test_forced_tokens_change_no_text(index: int) -> None:
    texts = []
    for jump_forward in (True, False):
        core = make_core(num_slots=500, context_length=256)
        core._scheduler.verifier.jump_forward = jump_forward
        forced = ForcedTokens({i: 97 + i for i in (2, 3, 4, 9, 10)})
        request = GenerateRequest(uid=0, prompt=PROMPTS[index], sampling=SAMPLING[index])
        core._scheduler.add(Request(request, max_length=len(PROMPTS[index]) + 20, seed=index, grammar=forced))
        tokens: list[int] = []
        while core.has_work():
            for output in core.step():
                tokens += output.tokens
        texts.append((tokens, core.stats().grammar.accepted_drafts > 0))
    assert texts[0][0] == texts[1][0] and (texts[0][1], texts[1][1]) == (True, False)


def test_breakers_are_found_by_the_front_and_ranges_checked() -> None:
    text = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz ", k=3000))  # every pair of letters is in it

    async def texts() -> list[str]:
        engine = AsyncEngine(EngineConfig.of(model_path="toy", random_seed=1), in_process=True)
        await engine.start()
        found = []
        try:
            for breakers in ([], list("abcdefghijklmnopqrstuvwxyz ")):
                params = parse_sampling({
                    "temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True, "dry_multiplier": 50.0, "dry_allowed_length": 1,
                    "dry_sequence_breakers": breakers,
                })  # fmt: skip
                async with await engine.submit(text, params) as stream:
                    found.append((await stream.collect())[0].text)
            bad = msgspec.structs.replace(params, chain=msgspec.structs.replace(params.chain, dry_base=0.0))
            with pytest.raises(InvalidSampling, match="dry_base"):
                await engine.submit("a", bad)
        finally:
            await engine.close()
        return found

    free, broken = asyncio.run(texts())
    assert free != broken
