"""The order of a step's lines: decide, launch, take in the step before, sample.  Knows no model, tensor, clock or thread.

The engine core drives a model through it and the simulator a fake, so that both live the same overlap and the same
failures.  A step that fails ends its own requests, and the one launched on top of it is dropped: steps run in order, so
whatever it still writes is written before anything later reads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from radixrt.errors import EngineStopped
from radixrt.schedule.scheduler import Scheduler
from radixrt.schedule.step import RowResult, ScheduledStep
from radixrt.types import TokenOutput

logger = logging.getLogger(__name__)

# Gives a block of this name to whoever records times.
Span = Callable[[str], AbstractContextManager[object]]

# Failed steps in a row after which the fault is the engine's and not one step's.
MAX_FAILED_STEPS = 3


class Launched(Protocol):
    """A step whose forward pass is queued."""

    def sample(self) -> None:
        """Queue its sampling; every step before it has been committed."""

    def results(self) -> Sequence[RowResult]:
        """Wait for the samples, one result a row; raises what the step raised."""


class StepRunner(Protocol):
    def forward(self, step: ScheduledStep) -> Launched:
        """Queue the forward pass of a step that has rows."""


class Flight:
    """A step on its way.  Whatever goes wrong on the way is raised where its results are taken, and nowhere before."""

    def __init__(self, step: ScheduledStep, runner: StepRunner) -> None:
        self.step = step
        self._launched: Launched | None = None
        self._error: Exception | None = None
        try:
            self._launched = runner.forward(step)
        except Exception as error:
            self._error = error

    def sample(self) -> None:
        if self._launched is not None:
            try:
                self._launched.sample()
            except Exception as error:
                self._error = error

    def results(self) -> Sequence[RowResult]:
        if self._error is not None:
            raise self._error
        assert self._launched is not None
        return self._launched.results()


class StepLoop:
    """Drives a scheduler and a runner, one step a call; with ``overlap`` one step is in flight between calls."""

    def __init__(self, scheduler: Scheduler, runner: StepRunner, *, overlap: bool, span: Span | None = None) -> None:
        self.overlap = overlap
        nothing = nullcontext()
        self._span: Span = span or (lambda _: nothing)
        self.steps = self.failed_steps = 0
        self._scheduler = scheduler
        self._runner = runner
        self._in_flight: Flight | None = None
        self._failures_in_row = 0

    def has_work(self) -> bool:
        return self._in_flight is not None or self._scheduler.has_work()

    def step(self, now: float) -> list[TokenOutput]:
        """Launch the next step and take in the one before (or, without overlap, itself); ``now`` is in seconds.

        Raises EngineStopped when the third step in a row fails.
        """
        self.steps += 1
        before, self._in_flight = self._in_flight, None
        try:
            with self._span("schedule"):
                step = self._scheduler.schedule(now)  # decide: slots are allocated, prefixes published
        except Exception as error:  # half a decision: nothing that the scheduler holds can be trusted
            return self._fail(None, error)
        outputs: list[TokenOutput] = []
        with self._span("launch"):
            flight = Flight(step, self._runner) if step.rows else None  # queued on the stream
        if before is not None and not self._commit(before, outputs):  # host work that hides under that forward pass
            flight = None  # it was launched on top of a step that failed, and reads what that one never wrote
        if flight is not None:
            with self._span("sampling"):
                flight.sample()  # queued on the stream; needs the tokens just committed
            if self.overlap:
                self._in_flight = flight
            else:
                self._commit(flight, outputs)
        return outputs + self._scheduler.take_ended()

    def _commit(self, flight: Flight, outputs: list[TokenOutput]) -> bool:
        """Take in a step; False when it failed."""
        try:
            with self._span("wait"):
                results = flight.results()
            with self._span("commit"):
                outputs += self._scheduler.commit(flight.step, results)
        except Exception as error:
            outputs += self._fail(flight.step, error)
            return False
        self._failures_in_row = 0
        return True

    def _fail(self, step: ScheduledStep | None, error: Exception) -> list[TokenOutput]:
        self.failed_steps += 1
        self._failures_in_row += 1
        logger.error("a step failed: %s", json.dumps(self._summary(step)), exc_info=error)
        if self._failures_in_row >= MAX_FAILED_STEPS:
            raise EngineStopped(f"{self._failures_in_row} steps in a row failed: {type(error).__name__}") from error
        if step is None:
            return self._scheduler.fail_all("internal error")
        return self._scheduler.fail(step, "internal error")

    def _summary(self, step: ScheduledStep | None) -> dict[str, object]:
        """What the log may say of a failed step: ids and counts, no tokens."""
        rows = [] if step is None else [(r.request.uid, r.start, r.count, r.num_samples) for r in step.rows]
        return {"rows": rows, "running": len(self._scheduler.running), "waiting": len(self._scheduler.waiting)}
