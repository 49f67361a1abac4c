"""Workloads of the step-loop specification, run on the real engine core with the toy model.

The toy's next token is a hash of the context read back through the KV slots, so one wrong slot changes the text.  Every
setting of cache, overlap, jump-forward, drafts, token budget and pool size must give the same text, and the ledgers are
checked after every step.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from radixrt import attention
from radixrt.config import CacheConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.grammar.bitmask import allow_only
from radixrt.models.toy import END_OF_TEXT, ToyModel
from radixrt.schedule.request import Request
from radixrt.types import FinishReason, GenerateRequest, SamplingParams

Text = tuple[int, ...]


class ForcedTokens:
    """A grammar that leaves no choice at some places of the output and every choice elsewhere."""

    def __init__(self, forced: Mapping[int, int]) -> None:
        self._forced = forced
        self._accepted: list[int] = []

    def accept(self, token: int) -> bool:
        if self._forced.get(len(self._accepted), token) != token:
            return False
        self._accepted.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self._accepted)
        del self._accepted[len(self._accepted) - num_tokens :]

    def fill_mask(self, row: np.ndarray) -> None:
        if (token := self._forced.get(len(self._accepted))) is not None:
            allow_only(row, [token])

    def draft(self, max_tokens: int) -> list[int]:
        at = len(self._accepted)
        return list(itertools.takewhile(lambda t: t >= 0, (self._forced.get(at + i, -1) for i in range(max_tokens))))

    def is_finished(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return True

    def fork(self) -> ForcedTokens:
        other = ForcedTokens(self._forced)
        other._accepted = list(self._accepted)
        return other

    def forced_bytes(self, limit: int) -> bytes:
        return b""

    def close(self, max_tokens: int) -> list[int]:
        return []


@dataclass
class OracleDrafter:
    """Guesses from the known answers, wrong at random."""

    answers: Sequence[Text]
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    right: float = 0.8

    def draft(self, tokens: Sequence[int], max_tokens: int) -> list[int]:
        if self.rng.random() < 0.3:
            return []
        known = tuple(tokens)
        for answer in self.answers:
            if answer[: len(known)] == known:
                ahead = answer[len(known) : len(known) + min(max_tokens, self.rng.randrange(1, 5))]
                return [t if self.rng.random() < self.right else self.rng.randrange(1, 256) for t in ahead]
        return []


@dataclass(frozen=True)
class Arrival:
    request: GenerateRequest
    forced: Mapping[int, int]


def workload(seed: int, num_requests: int = 14) -> list[Arrival]:
    """Requests that share prefixes of one base text; a third of them constrained, some sampled, some penalised."""
    rng = random.Random(seed)
    base = [rng.randrange(1, 256) for _ in range(12)]
    arrivals = []
    for uid in range(num_requests):
        prompt = base[: rng.randrange(1, 12)] + [rng.randrange(1, 256) for _ in range(rng.randrange(1, 9))]
        max_new = rng.randrange(1, 14)
        forced = {i: rng.randrange(1, 256) for i in range(max_new) if uid % 3 == 0 and rng.random() < 0.5}
        sampling = SamplingParams(
            max_new_tokens=max_new,
            temperature=(0.0, 1.0, 0.7)[uid % 3],
            top_p=0.9 if uid % 4 == 1 else 1.0,
            top_k=20 if uid % 5 == 2 else -1,
            frequency_penalty=0.5 if uid % 4 == 0 else 0.0,
            repetition_penalty=1.2 if uid % 4 == 2 else 1.0,
            min_new_tokens=min(2, max_new) if uid % 6 == 1 else 0,
            seed=uid,
        )
        arrivals.append(Arrival(GenerateRequest(uid=uid, prompt=prompt, sampling=sampling), forced))
    return arrivals


@dataclass
class Outcome:
    """Texts (prompt and output) and finish reasons by uid, and the core for its counters."""

    texts: dict[int, Text]
    reasons: dict[int, FinishReason]
    core: EngineCore


def make_core(
    *, cache: bool = True, overlap: bool = True, budget: int = 64, num_slots: int = 400, max_running: int = 6, policy: str = "fcfs",
    context_length: int = 64, **schedule: object,
) -> EngineCore:
    return EngineCore.build(
        model=ToyModel(context_length=context_length),
        backend=attention.select_backend("torch_sdpa"),
        cache=CacheConfig(kv_cache_dtype="float32", disable_radix_cache=not cache),
        schedule=ScheduleConfig(
            schedule_policy=policy, chunked_prefill_size=budget, max_running_requests=max_running, disable_overlap_schedule=not overlap,
            **schedule,  # type: ignore[arg-type]
        ),
        num_slots=num_slots,
        device=torch.device("cpu"),
    )


def run(
    seed: int, *, jump: bool = True, answers: Sequence[Text] | None = None, num_slots: int = 400, aborts: bool = False, **settings: object
) -> Outcome:
    """Run a workload to its end, checking the ledgers after every step.  Little output is expected, so that small pools retract.

    ``answers``: texts for an oracle drafter.  ``aborts``: abort a random request now and then.
    """
    core = make_core(num_slots=num_slots, schedule_conservativeness=0.0, **settings)  # type: ignore[arg-type]
    scheduler = core._scheduler
    scheduler.verifier.jump_forward = jump
    scheduler.verifier.drafter = None if answers is None else OracleDrafter(answers)
    arrivals, rng = workload(seed), random.Random(seed)
    texts: dict[int, list[int]] = {a.request.uid: list(a.request.prompt) for a in arrivals}
    reasons: dict[int, FinishReason] = {}
    try:
        for _ in range(3000):
            if arrivals and rng.random() < 0.6:
                add(core, arrivals.pop(0))
            if aborts and rng.random() < 0.05:
                core.abort(rng.choice(list(texts)))
            for output in core.step():
                assert output.uid not in reasons, "nothing comes after the end"
                texts[output.uid] += output.tokens
                if output.finish:
                    reasons[output.uid] = output.finish.reason
            core.check_invariants()
            if not arrivals and not core.has_work():
                break
        assert len(reasons) == len(texts), "some request never finished"
        stats = core.stats()
        assert stats.failed_steps == 0
        assert stats.free_tokens + stats.cached_tokens == stats.capacity_tokens, "something is still held"
        return Outcome({uid: tuple(text) for uid, text in texts.items()}, reasons, core)
    finally:
        core.close()


def add(core: EngineCore, arrival: Arrival) -> None:
    request = arrival.request
    core._scheduler.add(
        Request(
            request,
            max_length=len(request.prompt) + (request.sampling.max_new_tokens or 0),
            stop_ids=frozenset({END_OF_TEXT}),
            seed=request.sampling.seed or 0,
            grammar=ForcedTokens(arrival.forced) if arrival.forced else None,
        )
    )


SETTINGS = [
    {"cache": cache, "overlap": overlap, "jump": jump, "draft": draft, "budget": budget, "num_slots": num_slots}
    for cache, overlap, jump, draft, budget, num_slots in itertools.product(
        (False, True), (False, True), (False, True), (False, True), (3, 64), (40, 400)
    )
]


def check_seed(seed: int, settings: Sequence[Mapping[str, object]] = SETTINGS) -> list[Outcome]:
    """Run every setting and raise AssertionError unless all give the text of the plainest one."""
    reference = run(seed, cache=False, overlap=False, jump=False, budget=64, num_slots=400)
    answers = list(reference.texts.values())
    outcomes = []
    for setting in settings:
        options = dict(setting)
        outcome = run(seed, answers=answers if options.pop("draft") else None, **options)  # type: ignore[arg-type]
        assert outcome.texts == reference.texts, ("text differs", seed, setting)
        assert outcome.reasons == reference.reasons, ("finish differs", seed, setting)
        outcomes.append(outcome)
    return outcomes
