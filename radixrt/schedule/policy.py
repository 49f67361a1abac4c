"""The schedule policies by name, and those whose order is more than a value of the ticket."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np

from radixrt.errors import ConfigError
from radixrt.schedule.dfs_weight import DepthFirstByWeight
from radixrt.schedule.order import SchedulePolicy, Sorted, Ticket, by_arrival, by_match, by_output, by_uncached
from radixrt.schedule.request import Request

DEFAULT_MAX_PASSES = 64


class HighestResponseRatioNext:
    """Largest ratio of prefill tokens waited through to tokens still to be computed first (Hansen's HRRN, in tokens)."""

    uses_matches = True
    uses_levels = False
    shortest_first = False
    max_passes = 0

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._tickets: list[Ticket] = []
        self._values = np.zeros((3, 64))  # computed at arrival, uncached, uid
        self._computed = 0

    def add(self, ticket: Ticket) -> None:
        row = self._rows[ticket.request.uid] = len(self._tickets)
        self._tickets.append(ticket)
        if row == self._values.shape[1]:
            self._values = np.concatenate((self._values, np.zeros_like(self._values)), axis=1)
        self._values[:, row] = ticket.computed, ticket.uncached, ticket.request.uid

    def remove(self, ticket: Ticket) -> None:
        row = self._rows.pop(ticket.request.uid)
        last = self._tickets.pop()
        if last is not ticket:
            self._tickets[row], self._rows[last.request.uid] = last, row
            self._values[:, row] = self._values[:, len(self._tickets)]

    def begin(self, running: Sequence[Request], computed: int) -> None:
        self._computed = computed

    def first(self, skipped: Container[int]) -> Ticket | None:
        since, uncached, uids = self._values[:, : len(self._tickets)]
        ratios = np.where(uncached > 0, (self._computed - since) / np.maximum(uncached, 1), np.inf)
        for _ in range(len(self._tickets)):
            best = np.flatnonzero(ratios == ratios.max())
            row = int(best[np.argmin(uids[best])])
            if self._tickets[row].request.uid not in skipped:
                return self._tickets[row]
            ratios[row] = -1.0
        return None


class RoutingKey:
    """Requests whose key already runs first, the most frequent key before others; then everybody else."""

    uses_matches = False
    uses_levels = False
    shortest_first = False
    max_passes = 0

    def __init__(self) -> None:
        self._all = Sorted(by_arrival)
        self._by_key: dict[str, Sorted] = defaultdict(lambda: Sorted(by_arrival))
        self._running: list[str] = []

    def add(self, ticket: Ticket) -> None:
        self._all.add(ticket)
        self._by_key[ticket.request.routing_key].add(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._all.remove(ticket)
        key = ticket.request.routing_key
        self._by_key[key].remove(ticket)
        if not self._by_key[key]:
            del self._by_key[key]

    def begin(self, running: Sequence[Request], computed: int) -> None:
        counts = Counter(request.routing_key for request in running if request.routing_key)
        self._running = sorted(counts, key=lambda key: (-counts[key], key))

    def first(self, skipped: Container[int]) -> Ticket | None:
        for key in self._running:
            if key in self._by_key and (ticket := self._by_key[key].first(skipped)) is not None:
                return ticket
        return self._all.first(skipped)


class Random:
    """Any one first."""

    uses_matches = False
    uses_levels = False
    shortest_first = False
    max_passes = 0

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._tickets: list[Ticket] = []
        self._rows: dict[int, int] = {}

    def add(self, ticket: Ticket) -> None:
        self._rows[ticket.request.uid] = len(self._tickets)
        self._tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        row = self._rows.pop(ticket.request.uid)
        last = self._tickets.pop()
        if last is not ticket:
            self._tickets[row], self._rows[last.request.uid] = last, row

    def begin(self, running: Sequence[Request], computed: int) -> None:
        pass

    def first(self, skipped: Container[int]) -> Ticket | None:
        for _ in range(8):
            if self._tickets and (ticket := self._random.choice(self._tickets)).request.uid not in skipped:
                return ticket
        left = [ticket for ticket in self._tickets if ticket.request.uid not in skipped]
        return self._random.choice(left) if left else None


POLICIES: Mapping[str, Callable[[int, int | None], SchedulePolicy]] = {
    "lpm": lambda max_passes, seed: Sorted(by_match, uses_matches=True, max_passes=max_passes),
    "fcfs": lambda max_passes, seed: Sorted(by_arrival),
    "priority": lambda max_passes, seed: Sorted(by_arrival),
    "lof": lambda max_passes, seed: Sorted(by_output),
    "shortest-prefill-first": lambda max_passes, seed: Sorted(by_uncached, uses_matches=True, shortest_first=True),
    "dfs-weight": lambda max_passes, seed: DepthFirstByWeight(),
    "hrrn": lambda max_passes, seed: HighestResponseRatioNext(),
    "routing-key": lambda max_passes, seed: RoutingKey(),
    "random": lambda max_passes, seed: Random(seed),
}


def select(name: str, *, max_passes: int = DEFAULT_MAX_PASSES, seed: int | None = None) -> SchedulePolicy:
    """Return a new policy of that name, or raise ConfigError naming those there are.

    ``max_passes``: how often ``lpm`` may pass one over.  ``seed``: of ``random``.
    """
    if name not in POLICIES:
        raise ConfigError(f"unknown schedule policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name](max_passes, seed)
