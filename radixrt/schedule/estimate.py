"""How long the outputs will get, and what that means for the pool.

``OutputEstimate`` learns from the outputs that have ended; ``Forecast`` adds up what the running requests will still take
and when they will give it back.  Both guess: a wrong guess costs a retraction or an idle slot, never an answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import accumulate

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
        self._requests: list[tuple[int, int]] = []  # (growth, own slots before it grows), soonest to end first once sorted
        self._peaks: Peaks | None = None

    def add(self, *, held: int, pending: int, growth: int) -> None:
        self._pending += pending
        self._requests.append((growth, held + pending))
        self._peaks = None

    def peak(self, *, pending: int = 0, growth: int = 0) -> int:
        """Return how many slots will be missing at the worst moment if nothing is given back but by those that end.

        With ``pending`` and ``growth`` of one more request counted in.
        """
        peaks = self._peaks = self._peaks or Peaks(self._sorted())
        return self._pending + pending + (peaks.worst(pending, growth) if pending or growth else peaks.alone)

    def when(self, need: int, available: int) -> tuple[int, int]:
        """Return after how many steps ``need`` slots will be free, and how many more are free then.

        ``available``: slots that are free or evictable now.
        """
        given_back = 0
        for i, (growth, own) in enumerate(self._sorted()):
            given_back += own
            free = available - self._pending + given_back - growth * (len(self._requests) - 1 - i)
            if free >= need:
                return growth, free - need
        return 0, max(0, available - need)

    def _sorted(self) -> list[tuple[int, int]]:
        self._requests.sort()
        return self._requests


class Peaks:
    """The moments at which each of some requests is about to end, and how one more request changes the worst of them.

    At such a moment everybody who is still there has grown as far as the one that ends, and those before it have given back
    their own.  One more request counts among those that are still there at the moments before its end, and has given back
    its own at those after it; so the answer lies in three maxima, two of them over what is known beforehand.
    """

    def __init__(self, requests: list[tuple[int, int]]) -> None:
        """``requests``: (growth, own slots before it grows), soonest to end first."""
        self._growths = [growth for growth, _ in requests]
        self._given_back = list(accumulate((own for _, own in requests), initial=0))
        taken = [growth * (len(requests) - i) - self._given_back[i] for i, growth in enumerate(self._growths)]
        with_one_more = (growth + slots for growth, slots in zip(self._growths, taken, strict=True))
        self._before = list(accumulate(with_one_more, max, initial=0))  # of those ahead of a place
        self._after = list(accumulate(reversed(taken), max, initial=0))[::-1]  # of those from a place on
        self.alone = self._after[0]

    def worst(self, own: int, growth: int) -> int:
        """Slots taken at the worst moment, now among them, less what everybody takes at once, with one more request."""
        at = bisect_left(self._growths, growth)
        its_end = growth * (len(self._growths) + 1 - at) - self._given_back[at]
        return max(self._before[at], its_end, self._after[at] - own)
