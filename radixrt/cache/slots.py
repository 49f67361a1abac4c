"""Free slots, and the rows that say which slot holds each position of a running sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np


class SlotAllocator:
    """The slots nobody holds: a stack, so that what was used last, and is warm in the caches, is used again first."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = array("i", range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> array[int]:
        """Take ``count`` slots; the caller has made sure that so many are free."""
        assert 0 <= count <= len(self._free), "[allocate] not enough free slots"
        at = len(self._free) - count
        taken = self._free[at:]
        del self._free[at:]
        return taken

    def free(self, slots: Iterable[int]) -> None:
        self._free.extend(slots)

    def free_slots(self) -> array[int]:
        """A copy of the free list, for the ledger."""
        return self._free[:]

    def clear(self) -> None:
        """Take every slot back."""
        self._free = array("i", range(self.num_slots - 1, -1, -1))


class PageTable:
    """One row a running sequence; ``rows[r, p]`` is the slot of position p.  Host memory: a step takes a snapshot.

    ``views`` are the same rows, for the few slots that a decoding sequence changes in a step: a slice costs a fifth of numpy's.
    """

    def __init__(self, num_rows: int, max_length: int) -> None:
        self.rows = np.zeros((num_rows, max_length), dtype=np.int32)
        self.views: list[memoryview[int]] = [row.data for row in self.rows]
        self.clear()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take_row(self) -> int:
        return self._free.pop()

    def give_row(self, row: int) -> None:
        assert row not in self._free, "[give_row] row is free already"
        self._free.append(row)

    def snapshot(self, rows: Sequence[int], length: int) -> np.ndarray:
        """Return a copy of the first ``length`` places of some rows."""
        if len(rows) == 1:  # a slice costs a fifth of an index
            return self.rows[rows[0] : rows[0] + 1, :length].copy()
        return np.ascontiguousarray(self.rows[rows, :length])

    def clear(self) -> None:
        """Take every row back."""
        self._free = list(range(len(self.rows) - 1, -1, -1))
