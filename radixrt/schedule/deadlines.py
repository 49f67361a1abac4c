"""Requests that wait or run too long."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Deadlines:
    """The seconds a request has until it is first admitted, and from then until it ends; None for ever."""

    def __init__(self, *, waiting: float | None = None, running: float | None = None) -> None:
        self._waiting = waiting
        self._running = running
        self._heap: list[tuple[float, int, bool]] = []

    def arrive(self, uid: int, now: float) -> None:
        if self._waiting is not None:
            heapq.heappush(self._heap, (now + self._waiting, uid, False))

    def start(self, uid: int, now: float) -> None:
        """A request has been admitted for the first time."""
        if self._running is not None:
            heapq.heappush(self._heap, (now + self._running, uid, True))

    def take_expired(self, now: float) -> Iterator[tuple[int, bool]]:
        """Yield (uid, whether it was admitted) of every deadline that has passed, also of requests that have ended since."""
        while self._heap and self._heap[0][0] <= now:
            _, uid, started = heapq.heappop(self._heap)
            yield uid, started

    def message(self, *, started: bool) -> str:
        if started:
            return f"the request ran for more than {self._running:g} seconds"
        return f"the request waited for more than {self._waiting:g} seconds"
