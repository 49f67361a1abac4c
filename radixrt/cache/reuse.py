"""How long cached prefixes lie unused before somebody needs them again: what tells whether a larger pool would pay."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from radixrt.cache.tree import Tokens

# Upper bounds of the histogram, in seconds; one more count is for what lies above.
BOUNDS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

# Times are kept at every so many tokens, to the last of which a match counts; shorter matches are not worth counting.
STRIDE = 16


class ReuseGaps:
    """A histogram of the time from the last use of a matched prefix to the match.

    ``now`` is set by the owner, in seconds of a clock that does not go back and starts above 0.  A slot is in use, or holds
    nothing, while its time is 0: from the match to the end of the sequence that was matched.
    """

    def __init__(self, num_slots: int) -> None:
        self.now = 0.0
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self._used = np.zeros(num_slots)

    def note_match(self, slots: np.ndarray) -> None:
        """These slots, from the first token on, were found for a new sequence."""
        marks = slots[STRIDE - 1 :: STRIDE]
        if len(marks):
            last = self._used[marks[-1]]
            gap = self.now - float(last) if last else 0.0
            self.counts[bisect_left(BOUNDS, gap)] += 1
            self.seconds += gap
            self._used[marks] = 0.0

    def note_end(self, slots: np.ndarray) -> None:
        """A sequence that used these slots, from the first token on, has ended."""
        self._used[slots[STRIDE - 1 :: STRIDE]] = self.now

    def note_evicted(self, slots: Tokens) -> None:
        """These slots hold nothing any more."""
        self._used[np.frombuffer(slots, np.int32)] = 0.0
