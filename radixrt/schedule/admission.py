"""Who may start now: one pass over the waiting requests."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.schedule import waits
from radixrt.schedule.budget import Budget
from radixrt.schedule.delayer import PrefillDelayer
from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.order import Ticket
from radixrt.schedule.queue import WaitingQueue
from radixrt.schedule.request import Request
from radixrt.schedule.room import Room
from radixrt.schedule.waits import WaitClock

# Requests that a pass skips before it ends, and passes in which one request is skipped before nobody overtakes it.
MAX_SKIPPED = 16
MAX_SKIPS = 64


class Start(Protocol):
    def __call__(self, ticket: Ticket, lease: Lease, count: int) -> None:
        """Run a request on its lease, which has slots for the ``count`` tokens it computes first."""


class Admission:
    """Takes requests out of the queue when there are places, tokens and slots for them, and notes why the others wait."""

    def __init__(
        self, *, cache: PrefixCache, waiting: WaitingQueue, estimate: OutputEstimate, max_running: int, delayer: PrefillDelayer | None
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._estimate = estimate
        self._max_running = max_running
        self._delayer = delayer
        self._waits = WaitClock()

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._waiting.add(request, now)
        self._waits.add(request, now)

    def remove(self, request: Request) -> None:
        """Let a request wait no longer, whatever becomes of it."""
        self._waiting.remove(request)
        self._waits.remove(request)

    def waits_for(self, request: Request) -> str:
        """The reason, of ``radixrt.schedule.waits``, why a request waits."""
        return self._waits.reason(request.uid)

    def advance(self, now: float) -> None:
        """Count what everybody has waited until now."""
        self._waits.advance(now)

    def hold(self, now: float, reason: str = waits.MEMORY) -> None:
        """Make no pass; by default because there are no slots even for those that run."""
        self._waits.passed(now, reason, {})

    def fill(self, running: Sequence[Request], budget: Budget, start: Start, now: float, sent_back: Sequence[int] = ()) -> None:
        """Start waiting requests in the order of the policy while there are places, tokens and slots.

        A request that does not fit is skipped, with slots kept for it; one that may not be passed over any more ends the
        pass.  ``running`` grows as requests start; ``sent_back``: uids that are not to come back in this pass.
        """
        if not self._waiting:
            return
        own = dict.fromkeys(sent_back, waits.MEMORY)
        max_skipped = len(own) + MAX_SKIPPED
        admitted: list[Request] = []
        room: Room | None = None
        common = waits.DELAYED if self._delays(running, now) else ""
        while not common:
            if len(running) >= self._max_running:
                common = waits.SLOTS
            elif budget.is_spent:
                own |= dict.fromkeys(self._followers(running, own), waits.PREFIX)
                common = waits.BUDGET
            elif len(own) >= max_skipped:
                common = waits.ORDER
            elif (ticket := self._waiting.first(own)) is None:
                common = waits.BUDGET
            elif (lease := self._open(ticket, room := room or Room(self._cache, self._estimate, running))) is None:
                own[ticket.request.uid] = waits.MEMORY
                ticket.skips += 1
                if ticket.overdue or ticket.skips > MAX_SKIPS:
                    common = waits.ORDER
            else:
                missing = ticket.request.missing(lease.length)
                count = budget.chunk(missing)
                if (missing and not count) or not self._cache.extend(lease, count):
                    self._cache.release(lease, ticket.request.tokens, lease.num_shared)
                    common = waits.BUDGET
                    continue
                self.remove(ticket.request)
                start(ticket, lease, count)
                budget.take_prefill(count)
                room.take(ticket.request)
                admitted.append(ticket.request)
        self._waiting.passed(admitted)
        self._waits.passed(now, common, own)

    def _open(self, ticket: Ticket, room: Room) -> Lease | None:
        """Open the lease of a waiting request if there is room for all of it; else keep room for it."""
        request, cached = ticket.request, self._waiting.matched(ticket)
        if room.fits(request, cached):  # by what is cached, before anything is touched
            lease = self._cache.admit(request.matchable, request.namespace, priority=request.priority)
            if lease is not None:
                if room.fits(request, cached := lease.length):  # its own prefix, now locked, no longer counts as room
                    return lease
                self._cache.release(lease, request.tokens, lease.num_shared)
        room.keep(request, cached)
        return None

    def _delays(self, running: Sequence[Request], now: float) -> bool:
        """Whether small prompts are to wait for more, so as not to hold up those that run."""
        if self._delayer is None:
            return False
        if not running or any(request.prefilling for request in running):
            self._delayer.reset()
            return False
        seen: dict[int, int] = {}
        while sum(seen.values()) < self._delayer.min_tokens and (ticket := self._waiting.first(seen)) is not None:
            seen[ticket.request.uid] = ticket.request.missing(self._waiting.matched(ticket))
        return self._delayer.holds(sum(seen.values()), now)

    def _followers(self, running: Sequence[Request], skipped: Container[int]) -> list[int]:
        """Return those at the head of the queue that go on with what a running request is about to compute."""
        leaders = [request for request in running if request.prefilling]
        if not leaders:
            return []
        head = (ticket.request for ticket in self._waiting.head(MAX_SKIPPED) if ticket.request.uid not in skipped)
        return [request.uid for request in head if any(request.follows(leader) for leader in leaders)]
