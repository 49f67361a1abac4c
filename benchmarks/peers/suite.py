"""The order of things: every repetition of a workload visits all servers in turn, so that what the machine does meanwhile meets all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from peers.client import Answer, Server
from peers.figures import Figures, floor_share, medians, of_answers, of_machine
from peers.machine import MemoryProbe, Processes
from peers.session import Session
from peers.words import Vocabulary, Words
from peers.workloads import Workload

WARM_UP_SCALE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    model_bytes: what one token of one stream reads of the model, 0 when nobody knows.  one_at_a_time: the other servers'
    processes stand still meanwhile.
    """

    workloads: Sequence[Workload]
    repeats: int = 3
    warm_ups: int = 1
    seed: str = "0"
    scale: float = 1.0
    concurrency: int | None = None
    model_bytes: int = 0
    one_at_a_time: bool = False


@dataclass(slots=True)
class Result:
    """All repetitions of one workload on one server.  error: the first one seen."""

    workload: Workload
    label: str
    runs: list[Figures] = field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> Figures:
        """The median of each figure."""
        return medians(self.runs)

    @property
    def values(self) -> list[float]:
        """What the workload is judged by, of each repetition in which no request failed."""
        return [run[self.workload.headline] for run in self.runs if self.workload.headline in run and not run["errors"]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": self.workload.name, "about": self.workload.about, "headline": self.workload.headline, "server": self.label,
            "median": self.median, "runs": self.runs, "error": self.error,
        }  # fmt: skip


@dataclass(slots=True)
class Progress:
    """Whom to tell: that a repetition begins, that an answer came, that a repetition has its figures."""

    begins: Callable[[str, str, str], None] = lambda workload, label, what: None
    heard: Callable[[Answer], None] = lambda answer: None
    ended: Callable[[Result], None] = lambda result: None


class Suite:
    """Servers, side by side."""

    def __init__(
        self, servers: Sequence[Server], vocabulary: Vocabulary, plan: Plan, progress: Progress, pids: Sequence[int | None] = ()
    ) -> None:
        self._servers = servers
        self._vocabulary = vocabulary
        self._plan = plan
        self._progress = progress
        self._processes = [Processes(server.base_url, pid) for server, pid in zip(servers, pids or [None] * len(servers), strict=True)]
        self._memory = MemoryProbe()
        self.results: list[Result] = []
        self.bandwidths: list[float] = []

    async def run(self) -> None:
        """Measure everything, workload by workload; what is done when this is cancelled stands in ``results``."""
        try:
            for workload in self._plan.workloads:
                await self._measure(workload)
        finally:
            self._memory.close()

    async def _measure(self, workload: Workload) -> None:
        for warm_up in range(self._plan.warm_ups):
            for at, server in enumerate(self._servers):
                self._progress.begins(workload.name, server.label, "warm-up")
                session = self._session(at, workload, f"warm-up {warm_up}", WARM_UP_SCALE * self._plan.scale)
                with self._others_still(at):
                    await workload.run(session)
        results = [Result(workload, server.label) for server in self._servers]
        for repeat in range(self._plan.repeats):
            for at, result in enumerate(results):
                self._progress.begins(workload.name, result.label, f"{repeat + 1}/{self._plan.repeats}")
                with self._others_still(at):
                    result.runs.append(await self._repeat(at, result, repeat))
                if repeat == 0:
                    self.results.append(result)
                self._progress.ended(result)

    async def _repeat(self, at: int, result: Result, repeat: int) -> Figures:
        bandwidth = self._memory.gigabytes_s()
        session = self._session(at, result.workload, f"repeat {repeat}", self._plan.scale)
        session.heard = self._progress.heard
        processes = self._processes[at]
        before, begin = processes.use(), time.monotonic()
        await result.workload.run(session)
        seconds, after = time.monotonic() - begin, processes.use()
        bandwidth = max(bandwidth, self._memory.gigabytes_s())
        self.bandwidths.append(bandwidth)
        result.error = result.error or next((answer.error for answer in session.answers if answer.error), "")
        figures = of_answers(result.workload, session.answers, seconds, session.inexact) | of_machine(before, after, seconds)
        figures["memory_gb_s"] = bandwidth
        if self._plan.model_bytes and session.concurrency == 1:
            figures |= floor_share(figures, self._plan.model_bytes, bandwidth)
        return figures

    @contextmanager
    def _others_still(self, at: int) -> Iterator[None]:
        """A server that has nothing to do may poll all the same."""
        with ExitStack() as stack:
            if self._plan.one_at_a_time:
                for processes in self._processes:
                    if processes.pid != self._processes[at].pid:
                        stack.enter_context(processes.still())
            yield

    def _session(self, at: int, workload: Workload, part: str, scale: float) -> Session:
        # One server may be given twice, to see the noise; it must not meet what it was asked before.
        twin = [server.base_url for server in self._servers[:at]].count(self._servers[at].base_url)
        words = Words(self._vocabulary, f"{self._plan.seed} {workload.name} {part} {twin}")
        concurrency = workload.concurrency if workload.concurrency == 1 else self._plan.concurrency or workload.concurrency
        return Session(self._servers[at], words, concurrency, scale)
