"""A fake device: slots that hold tokens, and samples that are hashes of what is read back through them.

Work is queued as on a device stream and done in order, at once or as late as it can be, so that a step computes while
the host decides the next one.  Faults are raised where a real device would raise them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from radixrt.cache.slots import PageTable
from radixrt.schedule.masks import MaskArena
from radixrt.schedule.step import RowResult, ScheduledRow, ScheduledStep
from radixrt.sim.faults import Faults, SimulatedFault
from radixrt.sim.model import VOCAB_SIZE, HashModel, stored_value
from radixrt.types import TokenLogprob

NEVER_WRITTEN = -(1 << 40)


class SimulatedRunner:
    """Answers steps with hashes.

    ``is_late()`` tells, whenever work is queued, whether the device lags behind or has done everything so far.
    ``faults`` may strike as a forward pass or sampling is queued, on the device, and at the logits of a row.
    """

    def __init__(
        self, model: HashModel, pages: PageTable, num_slots: int, *, is_late: Callable[[], bool], faults: Faults
    ) -> None:
        self.model = model
        self.pages = pages
        self.kv = np.full(num_slots, NEVER_WRITTEN, dtype=np.int64)
        self.last_tokens = [0] * len(pages.rows)
        self.is_late = is_late
        self.faults = faults
        self.masks = MaskArena(VOCAB_SIZE)
        self._queue: deque[Callable[[], None]] = deque()

    def forward(self, step: ScheduledStep) -> SimulatedStep:
        """Queue the forward pass of a step."""
        self.faults.raise_at("forward")
        return SimulatedStep(self, step)

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self.is_late():
            self.run()

    def run(self) -> None:
        """Do all that is queued."""
        while self._queue:
            self._queue.popleft()()


class SimulatedStep:
    """A step whose forward pass is queued: snapshots of its rows of the page table and of the tokens the host knows."""

    def __init__(self, runner: SimulatedRunner, step: ScheduledStep) -> None:
        self._runner = runner
        self._step = step
        self._masks: np.ndarray | None = None
        self._contexts: list[list[int]] = []
        self._results: list[RowResult] = []
        self._broken = runner.faults.strikes("device")
        pages = runner.pages.rows
        self._rows = [(row, pages[row.row, : row.end].copy(), row.request.tokens[row.start : row.end]) for row in step.rows]
        runner.submit(self._forward)

    def sample(self) -> None:
        """Queue the sampling; the step before has been committed."""
        self._runner.faults.raise_at("sample")
        self._masks = self._runner.masks.fill(self._step)
        self._runner.submit(self._sample)

    def results(self) -> Sequence[RowResult]:
        """Do what is queued, and return one result a row."""
        self._runner.run()
        if self._broken:
            raise SimulatedFault("device")
        return self._results

    def _forward(self) -> None:
        if self._broken:
            return  # nothing is written: whoever reads these slots reads what was there before
        runner, kv = self._runner, self._runner.kv
        for row, slots, known in self._rows:  # every store before any read
            if len(known) < row.count:
                assert len(known) == row.count - 1, "at most the newest token is still on the device"
                known.append(runner.last_tokens[row.row])
            if row.count == 1:
                kv[slots[row.start]] = stored_value(known[0], namespace_of(row))
            else:
                kv[slots[row.start :]] = np.frombuffer(known, dtype=np.int32).astype(np.int64) + stored_value(0, namespace_of(row))
        for row, slots, _ in self._rows:
            first = min(row.sample_from, row.score_from) if row.score_from < row.score_to else row.sample_from
            if first > row.end:
                self._contexts.append([])
                continue
            stored = kv[slots]
            contexts = [runner.model.read(stored[:first])]
            for position in range(first, row.end):
                contexts.append(runner.model.extend(contexts[-1], position, int(stored[position])))
            self._contexts.append(contexts)

    def _sample(self) -> None:
        if self._broken:
            return
        model, at = self._runner.model, 0
        for (row, _, _), contexts in zip(self._rows, self._contexts, strict=True):
            request = row.request
            num_samples = row.num_samples
            sampled = contexts[len(contexts) - num_samples :]
            if self._masks is None or request.grammar is None:
                tokens = [model.choose(context, request.seed) for context in sampled]
            else:
                words = self._masks[at : at + num_samples, 0].tolist()
                tokens = [model.choose(context, request.seed, allowed_by(word)) for context, word in zip(sampled, words, strict=True)]
            at += num_samples
            if num_samples:
                self._runner.last_tokens[row.row] = max(tokens[-1], 0)
                if self._runner.faults.strikes("logits"):
                    tokens[0] = -1
            self._results.append(self._result(row, contexts, sampled, tokens))

    def _result(self, row: ScheduledRow, contexts: list[int], sampled: list[int], tokens: list[int]) -> RowResult:
        request, model = row.request, self._runner.model
        if request.logprobs is None:
            return RowResult(tokens)
        first = row.end + 1 - len(contexts)
        scored = [
            TokenLogprob(model.score(contexts[position - first], request.tokens[position]), request.tokens[position])
            for position in range(row.score_from, row.score_to)
        ]
        logprobs = [TokenLogprob(model.score(context, token), token) for context, token in zip(sampled, tokens, strict=True)]
        return RowResult(tokens, logprobs, scored)


def namespace_of(row: ScheduledRow) -> int:
    """The number of a namespace: simulated ones are named by numbers."""
    return int(row.request.namespace[0]) if row.request.namespace else 0


@cache
def allowed_by(word: int) -> tuple[int, ...] | None:
    """The tokens of a mask of one word; None when all are allowed."""
    return None if word == -1 else tuple(token for token in range(VOCAB_SIZE) if word >> token & 1)
