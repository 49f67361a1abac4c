"""Programs of model calls, and ``Player``, which says when each call may start.

A program is a small graph of calls: a call's prompt may hold what an earlier call of the same program generated, and
waits for it, as people and tools make it wait.  Knows no scheduler, server or clock: whoever plays it passes the time in.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

Tokens = array  # array("i") of token ids


@dataclass(frozen=True, slots=True)
class Output:
    """A place in a prompt for all that call number ``call`` of the same program generated."""

    call: int


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a program.

    ``prompt`` is the concatenation of its parts.  ``num_output`` tokens come back, however many more ``limit`` would allow.
    The call starts ``gap`` seconds after the last of ``after``, and of the calls in its prompt, has ended.
    ``kind`` is a label to report figures by; "" lets the report tell hot from cold by what could have been cached.
    ``output`` is what the simulated model says, when a trace tells.
    """

    prompt: tuple[Tokens[int] | Output, ...]
    num_output: int
    limit: int = 0
    after: tuple[int, ...] = ()
    gap: float = 0.0
    kind: str = ""
    namespace: tuple[str, ...] = ()
    output: Tokens[int] | None = None

    @property
    def max_new_tokens(self) -> int:
        return max(self.limit, self.num_output)

    @property
    def waits_for(self) -> frozenset[int]:
        return frozenset(self.after) | {part.call for part in self.prompt if isinstance(part, Output)}


@dataclass(frozen=True, slots=True)
class Program:
    """Calls that belong together; ``start`` seconds after the workload began it may begin."""

    calls: tuple[Call, ...]
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs to play, at most ``parallel`` of them at once (None: as they start), on a pool of ``pool`` tokens unless told otherwise."""

    name: str
    programs: Sequence[Program]
    pool: int
    parallel: int | None = None

    @property
    def num_calls(self) -> int:
        return sum(len(program.calls) for program in self.programs)

    @property
    def longest(self) -> int:
        """Length in tokens of the longest prompt with everything it may generate."""
        return max(_length(program, call) + call.max_new_tokens for program in self.programs for call in program.calls)


def _length(program: Program, call: Call) -> int:
    return sum(program.calls[part.call].num_output if isinstance(part, Output) else len(part) for part in call.prompt)


@dataclass(frozen=True, slots=True)
class Started:
    """A call that may be sent: its number, where it is from, its whole prompt, and since when it could have been sent."""

    uid: int
    program: int
    index: int
    call: Call
    prompt: Tokens[int]
    due: float


class Player:
    """Plays a workload: ``take_due`` gives the calls whose time has come, ``end`` takes in what one generated."""

    def __init__(self, workload: Workload) -> None:
        self._programs = workload.programs
        self._parallel = workload.parallel
        order = sorted(range(len(workload.programs)), key=lambda i: workload.programs[i].start)
        self._unstarted = deque(order)
        self._outputs: dict[tuple[int, int], Tokens[int]] = {}
        self._blocked: dict[tuple[int, int], int] = {}  # call -> how many calls it still waits for
        self._waiters: dict[tuple[int, int], list[int]] = {}
        self._open: Counter[int] = Counter()  # program -> calls that have not ended
        self._due: list[tuple[float, int, int]] = []
        self._next_uid = 0

    @property
    def done(self) -> bool:
        return not self._unstarted and not self._open

    def next_due(self) -> float | None:
        """Return when the next call may start if nothing ends before; None when all wait for others, or are done."""
        times = [self._due[0][0]] if self._due else []
        if self._unstarted and self._may_begin():
            times.append(self._programs[self._unstarted[0]].start)
        return min(times, default=None)

    def take_due(self, now: float) -> list[Started]:
        """Return the calls that may start by ``now`` and were not returned yet, in order."""
        while self._unstarted and self._may_begin() and self._programs[self._unstarted[0]].start <= now:
            self._begin(self._unstarted.popleft(), now)
        started = []
        while self._due and self._due[0][0] <= now:
            due, program, index = heapq.heappop(self._due)
            call = self._programs[program].calls[index]
            prompt: Tokens[int] = array("i")
            for part in call.prompt:
                prompt.extend(self._outputs[program, part.call] if isinstance(part, Output) else part)
            started.append(Started(self._next_uid, program, index, call, prompt, due))
            self._next_uid += 1
        return started

    def end(self, started: Started, output: Sequence[int], now: float) -> None:
        """Take in that a call has ended at ``now`` with these tokens."""
        program, calls = started.program, self._programs[started.program].calls
        self._outputs[program, started.index] = array("i", output)
        for waiter in self._waiters.pop((program, started.index), ()):
            self._blocked[program, waiter] -= 1
            if not self._blocked[program, waiter]:
                del self._blocked[program, waiter]
                heapq.heappush(self._due, (now + calls[waiter].gap, program, waiter))
        self._open[program] -= 1
        if not self._open[program]:
            del self._open[program]
            for index in range(len(calls)):
                del self._outputs[program, index]

    def _may_begin(self) -> bool:
        return self._parallel is None or len(self._open) < self._parallel

    def _begin(self, program: int, now: float) -> None:
        calls = self._programs[program].calls
        start = now if self._parallel is not None else self._programs[program].start
        self._open[program] = len(calls)
        for index, call in enumerate(calls):
            waits_for = call.waits_for
            assert all(other < index for other in waits_for), "calls wait for earlier calls only"
            if not waits_for:
                heapq.heappush(self._due, (start + call.gap, program, index))
                continue
            self._blocked[program, index] = len(waits_for)
            for other in waits_for:
                self._waiters.setdefault((program, other), []).append(index)
