"""The requests that wait, in the order they are to be tried, and their ageing.

The queue follows the tree: each request's tokens are watched there, and it moves when what is cached of them changes.

Nobody waits for ever.  Under a policy with ``max_passes`` a request's *turn* has come when ``PATIENCE`` times as many
requests have been admitted since its arrival as were waiting then: first come, first served would have run it by now.
Those that are in the queue at that time may still go ahead of it, in the order of the policy; a pass that admits one that has
come since passes it over.  After ``max_passes`` such passes, or fewer where its turn came soon, it is overdue and goes first.
So a crowd that comes at once is served as the policy likes, and an endless stream of newcomers holds nobody up.

Under priorities, ``aging`` seconds of waiting count as one step of priority.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Container, Iterator, Sequence

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.schedule.order import SchedulePolicy, Ticket
from radixrt.schedule.request import Request
from radixrt.schedule.room import Room

# How many times its wait under first come, first served a request may be made to wait before passes are counted.
PATIENCE = 1.5
# How many passes it is then passed over for each that it has waited, but not fewer than so many: a short wait is no harm.
GRACE = 0.3
MIN_GRACE = 8


class WaitingQueue:
    """Waiting requests.  Iterates by arrival; ``first`` follows the policy.

    ``aging``: seconds that make up for one step of priority, None for never.
    """

    def __init__(self, cache: PrefixCache, policy: SchedulePolicy, *, aging: float | None = None) -> None:
        self._cache = cache
        self._policy = policy
        self._aging = aging
        self._tickets: dict[int, Ticket] = {}
        self._by_age: list[tuple[float, int]] = []  # (when its level rises next, uid)
        self._by_turn: list[tuple[int, int, int]] = []  # (admissions at which its turn comes, uid, passes when it came)
        # Those whose turn has come, by how often they may be passed over: (first arrival that passes it over, uid).
        self._due: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
        self._newest: list[int] = []  # the latest arrival that a pass admitted, of the max_passes passes where it was the latest
        self._admissions = self._passes = self._arrivals = self._computed = 0

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def shortest_first(self) -> bool:
        return self._policy.shortest_first

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted((ticket.request for ticket in self._tickets.values()), key=lambda request: request.arrival))

    def __contains__(self, request: Request) -> bool:
        return request.uid in self._tickets

    def add(self, request: Request, now: float) -> None:
        """Queue a request."""
        ticket = Ticket(request, level=self._level(request, now), computed=self._computed)
        if self._policy.uses_matches:
            # For one that has run, a step in flight may still bring a token: a copy lets it grow.
            tokens = request.matchable if request.admitted is None else request.tokens[: max(0, request.match_limit)]
            ticket.matched = self._cache.watch(request.uid, tokens, request.namespace)
        if self._policy.max_passes:
            ahead = len(self._tickets) if request.admitted is None else 0
            heapq.heappush(self._by_turn, (self._admissions + math.ceil(PATIENCE * ahead), request.uid, self._passes))
        self._tickets[request.uid] = ticket
        self._policy.add(ticket)
        self._arrivals = max(self._arrivals, request.arrival + 1)
        self._count_turns()
        if self._aging:
            heapq.heappush(self._by_age, (self._rises(request, ticket.level), request.uid))

    def remove(self, request: Request) -> None:
        """Take a request out, whatever becomes of it."""
        self._policy.remove(self._tickets.pop(request.uid))
        if self._policy.uses_matches:
            self._cache.unwatch(request.uid)

    def begin(self, now: float, running: Sequence[Request], computed: int) -> None:
        """A pass begins: let those age whose time has come.  ``computed``: prefill tokens computed since the start."""
        self._computed = computed
        while self._by_age and self._by_age[0][0] <= now:
            ticket = self._tickets.get(heapq.heappop(self._by_age)[1])
            if ticket is not None:
                self._policy.remove(ticket)
                ticket.level = self._level(ticket.request, now)
                self._policy.add(ticket)
                heapq.heappush(self._by_age, (self._rises(ticket.request, ticket.level), ticket.request.uid))
        self._policy.begin(running, computed)

    def first(self, skipped: Container[int]) -> Ticket | None:
        """Return whom to try first, as the tree is now, of those whose uid is not in ``skipped``."""
        if self._policy.uses_matches:
            for uid, matched in self._cache.take_changed():
                ticket = self._tickets[uid]
                self._policy.remove(ticket)
                ticket.matched = matched
                self._policy.add(ticket)
        return self._policy.first(skipped)

    def passed(self, admitted: Sequence[Request]) -> None:
        """A pass has ended, and these requests were admitted in it."""
        if not admitted or not self._policy.max_passes:
            return
        self._admissions += len(admitted)
        self._passes += 1
        insort(self._newest, max(request.arrival for request in admitted))
        del self._newest[: -self._policy.max_passes]
        for grace, due in self._due.items():
            # Arrivals from a mark on are admitted only after the mark was made: so these passes are those since its turn.
            while due and len(self._newest) >= grace and self._newest[-grace] >= due[0][0]:
                ticket = self._tickets.get(due.popleft()[1])
                if ticket is not None and not ticket.overdue:
                    self._policy.remove(ticket)
                    ticket.overdue = True
                    self._policy.add(ticket)
        self._count_turns()

    def matched(self, ticket: Ticket) -> int:
        """Return how many leading tokens of a waiting request are cached."""
        if self._policy.uses_matches:
            return ticket.matched
        return self._cache.match_length(ticket.request.matchable, ticket.request.namespace)

    def head(self, count: int) -> Iterator[Ticket]:
        """Yield the first tickets in the order of the policy."""
        seen: set[int] = set()
        while len(seen) < count and (ticket := self.first(seen)) is not None:
            seen.add(ticket.request.uid)
            yield ticket

    def shorter(self, request: Request, places: int, room: Room) -> int:
        """Return how many tokens of a step belong to waiting prompts before they belong to ``request``, which runs.

        To those among the first ``places`` that have less to compute than it, no lower priority, and room, which they take.
        """
        total = 0
        for ticket in self.head(places):
            if ticket.uncached >= request.num_new or ticket.level > request.admitted_level or not room.fits(ticket.request, ticket.matched):
                break
            room.take(ticket.request)
            total += ticket.uncached
        return total

    def worst(self) -> Ticket | None:
        """Return whose priority is the lowest, the latest arrival of several, of those that have not run yet."""
        fresh = (ticket for ticket in self._tickets.values() if ticket.request.admitted is None)
        return max(fresh, key=lambda ticket: (ticket.level, ticket.request.arrival), default=None)

    def _count_turns(self) -> None:
        while self._by_turn and self._by_turn[0][0] <= self._admissions:
            _, uid, came = heapq.heappop(self._by_turn)
            if uid in self._tickets:
                grace = MIN_GRACE
                while grace < GRACE * (self._passes - came):
                    grace *= 2
                self._due[min(grace, self._policy.max_passes)].append((self._arrivals, uid))

    def _level(self, request: Request, now: float) -> int:
        if not self._policy.uses_levels:
            return 0
        return request.level - (int((now - request.arrived) / self._aging) if self._aging else 0)

    def _rises(self, request: Request, level: int) -> float:
        assert self._aging is not None
        return request.arrived + (request.level - level + 1) * self._aging
