"""How long the outputs will get, and what that means for the pool.

``OutputEstimate`` learns from the outputs that have ended; ``Forecast`` adds up what the running requests will still take
and when they will give it back.  Both guess: a wrong guess costs a retraction or an idle slot, never an answer.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

import numpy as np

from radixrt.schedule.request import Request

# Finished outputs that are remembered, and how many of them it takes before they are believed.
WINDOW = 512
ENOUGH = 16
# Part of what a request may generate that is expected of it before anything has been learnt, and the quantile after.
BASE_LEVEL = 0.7
# Longest output expected of a request that may generate more, before anything has been learnt.
LONGEST_GUESS = 4096
# Steps after which a rise of the level by a retraction has worn off.
DECAY_STEPS = 600
# Slots kept for a running request that has outlived every expectation (times conservativeness).
MIN_GROWTH = 8


class OutputEstimate:
    """Expected output lengths: a quantile of what has ended, given what is already there.

    The quantile rises halfway to the maximum with each retraction and sinks back slowly, so that one wrong guess is not
    followed by a storm of them.  ``conservativeness`` scales where it rests.
    """

    def __init__(self, conservativeness: float = 1.0) -> None:
        self._base = self._level = min(1.0, BASE_LEVEL * conservativeness)
        self._least = max(1, round(MIN_GROWTH * conservativeness))
        self._window: deque[int] = deque()
        self._sorted: list[int] = []

    @property
    def level(self) -> float:
        return self._level

    def learn(self, num_output: int) -> None:
        """An output has ended by itself or at its limit after so many tokens."""
        self._window.append(num_output)
        insort(self._sorted, num_output)
        if len(self._window) > WINDOW:
            self._sorted.pop(bisect_right(self._sorted, self._window.popleft()) - 1)

    def retracted(self) -> None:
        self._level += (1.0 - self._level) / 2

    def stepped(self) -> None:
        if self._level > self._base:
            self._level = max(self._base, self._level - (1.0 - self._base) / DECAY_STEPS)

    def remaining(self, request: Request) -> int:
        """Return how many more tokens the request is expected to generate."""
        room = request.max_length - request.num_verified
        if request.is_exact:
            return room
        done = request.num_verified - request.num_prompt
        if len(self._window) < ENOUGH:
            expected = int(self._level * min(room + done, LONGEST_GUESS)) - done
        else:
            longer = bisect_right(self._sorted, done)
            index = longer + int(self._level * (len(self._sorted) - longer))
            expected = (self._sorted[min(index, len(self._sorted) - 1)] if longer < len(self._sorted) else 2 * done) - done
        return min(room, max(expected, self._least))


class Forecast:
    """The slots of running requests from now on, a token each a step.

    Each request has ``pending`` slots that it takes at once (the rest of its prompt), grows for ``growth`` steps, and then
    gives back what is its own: ``held``, pending and grown.
    """

    def __init__(self) -> None:
        self._pending = 0
        self._requests: list[tuple[int, int]] = []  # (growth, own slots before it grows), soonest to end first

    def add(self, *, held: int, pending: int, growth: int) -> None:
        self._pending += pending
        insort(self._requests, (growth, held + pending))

    def peak(self, *, pending: int = 0, growth: int = 0) -> int:
        """Return how many slots will be missing at the worst moment if nothing is given back but by those that end.

        With ``pending`` and ``growth`` of one more request counted in.
        """
        requests = self._requests
        if pending or growth:
            requests = requests.copy()
            insort(requests, (growth, pending))
        if not requests:
            return 0
        growths, own = np.array(requests).T
        before = np.cumsum(own) - own
        taken = growths * np.arange(len(requests), 0, -1) - before
        return self._pending + pending + max(0, int(taken.max()))

    def when(self, need: int, available: int) -> tuple[int, int]:
        """Return after how many steps ``need`` slots will be free, and how many more are free then.

        ``available``: slots that are free or evictable now.
        """
        given_back = 0
        for i, (growth, own) in enumerate(self._requests):
            given_back += own
            free = available - self._pending + given_back - growth * (len(self._requests) - 1 - i)
            if free >= need:
                return growth, free - need
        return 0, max(0, available - need)
