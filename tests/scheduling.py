"""A scheduler driven by hand: no model, every request generates the same token until its limit or its own length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixrt.cache import eviction
from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.schedule import policy
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import Scheduler
from radixrt.schedule.step import RowResult, ScheduledStep
from radixrt.types import Finish, GenerateRequest, SamplingParams, TokenOutput

STOP = 999
FILL = 998


class Drive:
    """``lengths``: uid -> tokens after which a request stops by itself; without one it runs to its limit, and that is known."""

    def __init__(
        self, *, num_slots: int = 1000, max_running: int = 8, budget: int = 64, name: str = "fcfs", max_passes: int = 64,
        eviction_policy: str = "lru", **options: Any,
    ) -> None:
        tree = RadixTree(eviction.select(eviction_policy))
        cache = PrefixCache(tree=tree, num_slots=num_slots, num_rows=max_running, max_length=num_slots)
        order = policy.select(name, max_passes=max_passes, seed=0)
        self.scheduler = Scheduler(cache=cache, policy=order, token_budget=budget, max_running=max_running, **options)
        self.now = 0.0
        self.lengths: dict[int, int] = {}
        self.requests: dict[int, Request] = {}
        self.finished: dict[int, Finish] = {}
        self.tokens: dict[int, list[int]] = {}
        self.started: list[int] = []
        self.last: dict[int, TokenOutput] = {}

    def add(self, uid: int, prompt: Sequence[int], max_new: int = 4, *, length: int | None = None, **options: Any) -> Request:
        given = GenerateRequest(uid=uid, prompt=list(prompt), sampling=SamplingParams(max_new_tokens=max_new), **options)
        if length is not None:
            self.lengths[uid] = length
        stop_ids = frozenset() if length is None else frozenset({STOP})
        request = Request(given, max_length=len(prompt) + max_new, stop_ids=stop_ids)
        self.scheduler.add(request, self.now)
        self.requests[uid] = request
        self.tokens[uid] = []
        return request

    def results(self, step: ScheduledStep) -> list[RowResult]:
        results = []
        for row in step.rows:
            stop_at = row.request.num_prompt + self.lengths.get(row.request.uid, 1 << 30) - 1
            results.append(RowResult([STOP if position == stop_at else FILL for position in range(row.sample_from, row.end + 1)]))
        return results

    def step(self, seconds: float = 1.0) -> ScheduledStep:
        """Schedule a step and take its results in; ``seconds`` pass after it."""
        step = self.scheduler.schedule(self.now)
        self.started += [row.request.uid for row in step.rows if row.request.uid not in self.started]
        for output in self.scheduler.commit(step, self.results(step)):
            assert output.uid not in self.finished, "nothing comes after the end"
            self.tokens[output.uid] += output.tokens
            self.last[output.uid] = output
            if output.finish is not None:
                self.finished[output.uid] = output.finish
        self.scheduler.check_invariants()
        self.now += seconds
        return step

    def drain(self, steps: int = 5000) -> None:
        for _ in range(steps):
            if not self.scheduler.has_work():
                return
            self.step()
        raise AssertionError("the scheduler never came to rest")

    def running(self) -> list[int]:
        return sorted(request.uid for request in self.scheduler.running)


def counts(step: ScheduledStep) -> dict[int, int]:
    """Tokens a step computes, by uid."""
    return {row.request.uid: row.count for row in step.rows}
