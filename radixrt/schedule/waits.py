"""How long each waiting request waited, and for what.

A pass tags the few requests it has looked at with a reason of their own, and gives everybody else one common reason.  The
seconds under each common reason are summed once for all, so that a pass costs what it looked at, not what waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.schedule.request import Request

MEMORY = "memory"  # not enough KV slots
SLOTS = "slots"  # as many requests run as may
PREFIX = "prefix"  # a running request is about to compute what this one starts with
BUDGET = "budget"  # the steps are full
ORDER = "order"  # somebody ahead in the order waits for slots that are being kept for it
DELAYED = "delayed"  # small prompts are gathered into one step
PAUSED = "paused"  # the operator has stopped the engine for a while
GRAMMAR = "grammar"  # its grammar is being compiled; that comes before the queue, and is counted by whoever compiles

# Sums of seconds that cancel out leave less than this.
ROUNDING = 1e-9


class WaitClock:
    """Adds to ``Request.waits`` of every request between ``add`` and ``remove``.  Times are seconds and never go back."""

    def __init__(self) -> None:
        self._now = 0.0
        self._common = BUDGET
        self._totals: dict[str, float] = {}
        self._entered: dict[int, tuple[Request, dict[str, float]]] = {}
        self._own: dict[int, str] = {}

    def add(self, request: Request, now: float) -> None:
        self.advance(now)
        self._entered[request.uid] = (request, dict(self._totals))

    def remove(self, request: Request) -> None:
        """Settle the account of a request that has stopped waiting; unknown: nothing happens."""
        _, before = self._entered.pop(request.uid, (request, self._totals))
        self._own.pop(request.uid, None)
        for reason, total in self._totals.items():
            seconds = request.waits.pop(reason, 0.0) + total - before.get(reason, 0.0)
            if seconds > ROUNDING:
                request.waits[reason] = seconds

    def reason(self, uid: int) -> str:
        """What a waiting request waits for, by the last pass."""
        return self._own.get(uid, self._common)

    def passed(self, now: float, common: str, own: Mapping[int, str]) -> None:
        """A pass has been made: from ``now`` on everybody waits for ``common``, and those in ``own`` for their reason."""
        self.advance(now)
        self._common = common
        self._own = {uid: reason for uid, reason in own.items() if uid in self._entered and reason != common}

    def advance(self, now: float) -> None:
        """Count the seconds up to ``now`` under the reasons of the pass before."""
        seconds = now - self._now
        if seconds <= 0.0:
            return
        self._now = now
        self._totals[self._common] = self._totals.get(self._common, 0.0) + seconds
        for uid, reason in self._own.items():
            waits = self._entered[uid][0].waits
            waits[reason] = waits.get(reason, 0.0) + seconds
            waits[self._common] = waits.get(self._common, 0.0) - seconds
