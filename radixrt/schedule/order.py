"""The order of waiting requests: a ticket for each, the seam of what orders them, and the order by a value of the ticket.

A policy keeps the tickets of all that waits and names the one to try first.  It is told of every change, so that naming
it does not cost a look at all of them.  Ties keep the order of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Protocol, TypeAlias

from radixrt.schedule.request import Request


class Ticket:
    """One request's place in the queue.

    ``matched``: leading tokens that are cached, kept up to date for policies that use matches.  ``level``: class of
    priority, smaller first; the same for all when priorities are off.  ``overdue``: it has been passed over as often as
    it may be.  ``skips``: passes in which it did not fit.  ``computed``: prefill tokens that had been computed when it came.
    """

    __slots__ = ("computed", "level", "matched", "num_tokens", "overdue", "request", "skips")

    def __init__(self, request: Request, *, level: int = 0, matched: int = 0, computed: int = 0) -> None:
        self.request = request
        self.num_tokens = len(request.tokens)  # as it was queued: a step in flight may still add one
        self.level = level
        self.matched = matched
        self.computed = computed
        self.overdue = False
        self.skips = 0

    @property
    def uncached(self) -> int:
        return self.num_tokens - self.matched


class SchedulePolicy(Protocol):
    """``uses_matches``: tickets are to carry cached lengths, and are added anew when theirs changes.  ``uses_levels``:
    priorities are obeyed.  ``shortest_first``: also a prompt that is being computed leaves room in a step to those with less to
    compute.  ``max_passes``: how often one may be passed over, 0 for ever."""

    uses_matches: bool
    uses_levels: bool
    shortest_first: bool
    max_passes: int

    def add(self, ticket: Ticket) -> None: ...

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket, which is as it was when it was added."""

    def begin(self, running: Sequence[Request], computed: int) -> None:
        """A pass begins: these run, and so many prefill tokens have been computed since the start."""

    def first(self, skipped: Container[int]) -> Ticket | None:
        """Return the ticket to try first, of those whose uid is not in ``skipped``."""


Rank: TypeAlias = tuple[int, bool, float]  # level, not overdue, value


class Sorted:
    """Smallest ``value`` of a ticket first, where only the ticket itself decides.

    Levels go before values, and in a level whoever is overdue goes before all others, by arrival.  Tickets of the same rank
    queue up by themselves: a change of the cache moves many at once from one length to another, and few lengths are shared.
    """

    uses_levels = True

    def __init__(
        self, value: Callable[[Ticket], float], *, uses_matches: bool = False, shortest_first: bool = False, max_passes: int = 0
    ) -> None:
        self.uses_matches = uses_matches
        self.shortest_first = shortest_first
        self.max_passes = max_passes
        self._value = value
        self._ranks: list[Rank] = []
        self._queues: dict[Rank, list[int]] = {}  # arrivals, which are unique
        self._by_arrival: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[Ticket]:
        return (self._by_arrival[arrival] for rank in self._ranks for arrival in self._queues[rank])

    def add(self, ticket: Ticket) -> None:
        rank = self._rank(ticket)
        queue = self._queues.get(rank)
        if queue is None:
            queue = self._queues[rank] = []
            insort(self._ranks, rank)
        arrival = ticket.request.arrival
        insort(queue, arrival)
        self._by_arrival[arrival] = ticket

    def remove(self, ticket: Ticket) -> None:
        rank = self._rank(ticket)
        queue = self._queues.get(rank, [])
        arrival = ticket.request.arrival
        at = bisect_left(queue, arrival)
        assert at < len(queue) and queue[at] == arrival, "[remove] a ticket has changed in the queue"
        del queue[at], self._by_arrival[arrival]
        if not queue:
            del self._queues[rank]
            del self._ranks[bisect_left(self._ranks, rank)]

    def begin(self, running: Sequence[Request], computed: int) -> None:
        pass

    def first(self, skipped: Container[int]) -> Ticket | None:
        return next((ticket for ticket in self if ticket.request.uid not in skipped), None)

    def _rank(self, ticket: Ticket) -> Rank:
        return (ticket.level, False, 0.0) if ticket.overdue else (ticket.level, True, self._value(ticket))


def by_arrival(ticket: Ticket) -> float:
    return 0.0


def by_match(ticket: Ticket) -> float:
    """Longest cached prefix first ("SGLang", section 3): what is in the cache is used before it is evicted."""
    return -ticket.matched


def by_output(ticket: Ticket) -> float:
    """Longest output first."""
    return -(ticket.request.max_length - ticket.request.num_prompt)


def by_uncached(ticket: Ticket) -> float:
    """Least to compute first."""
    return ticket.uncached
