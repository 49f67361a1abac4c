"""A compile service in virtual time: each grammar takes as long as it was told to, and may be refused in the end."""

from __future__ import annotations

import heapq

from radixrt.errors import GrammarError, RadixrtError
from radixrt.grammar.base import Grammar
from radixrt.grammar.compile.service import CompileStats, Job
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec


class SimulatedCompiler:
    """Stands for a ``CompileService``; ``num_wanted`` jobs are waited for by somebody."""

    def __init__(self) -> None:
        self.stats = CompileStats()
        self.num_wanted = 0
        self._now = 0.0
        self._plans: dict[str, tuple[float, Grammar | RadixrtError]] = {}
        self._running: list[tuple[float, int, Job]] = []  # soonest to be done first

    @property
    def vocabulary(self) -> Vocabulary:
        raise NotImplementedError("nothing here is text")

    @property
    def soonest(self) -> float:
        """When the next job is done; infinite when none is running."""
        return self._running[0][0] if self._running else float("inf")

    def plan(self, grammar: Grammar, *, seconds: float, refused: bool) -> GrammarSpec:
        """Return a spec that compiles to a grammar, or to an error, after so many seconds."""
        text = str(len(self._plans))
        self._plans[text] = seconds, GrammarError("refused") if refused else grammar
        return GrammarSpec("regex", text)

    def compile(self, spec: GrammarSpec) -> Job:
        seconds, _ = self._plans[spec.text]
        job = Job(spec, spec.text.encode(), self._now)
        job.wanted += 1
        self.num_wanted += 1
        heapq.heappush(self._running, (self._now + seconds, int(spec.text), job))
        self.advance(self._now)
        return job

    def release(self, job: Job) -> None:
        job.wanted -= 1
        assert job.wanted == 0, "who waits for a job lets go of it once"
        self.num_wanted -= 1

    def prepare(self) -> None:
        pass

    def advance(self, now: float) -> None:
        """Settle the jobs that are done by now, also those that nobody waits for any more."""
        self._now = now
        while self.soonest <= now:
            _, _, job = heapq.heappop(self._running)
            job.settle(self._plans[job.spec.text][1])

    def close(self) -> None:
        """Nothing runs that could be ended."""
