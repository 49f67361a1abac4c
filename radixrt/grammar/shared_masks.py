"""Masks that the requests of a grammar share: made once for each place in it, and kept while there is room.

A mask is a function of the grammar and of what ``Outline`` leaves of the text, so whoever comes to a place where another request
has been reads its mask, which costs a copy.  Room is one for all grammars of a vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.vocabulary import Vocabulary

MAX_BYTES = 32 << 20
"""How much the masks of all grammars of a vocabulary may take, their keys aside."""


class SharedMasks:
    """The masks of one grammar; safe to use from several threads."""

    def __init__(self, outline: Outline, vocabulary: Vocabulary) -> None:
        self.outline = outline
        self._name = next(_names)
        self._kept = _kept.setdefault(vocabulary, _Kept(vocabulary.num_words))

    def read(self, place: Place | None, row: np.ndarray) -> bool:
        """Copy the mask of a place to a row, if it is there."""
        known = None if place is None else self._kept.get((self._name, place))
        if known is None:
            return False
        row[:] = known
        return True

    def keep(self, place: Place | None, row: np.ndarray) -> None:
        """Remember a copy of the mask of a place."""
        if place is not None:
            self._kept.put((self._name, place), row.copy())


class _Kept:
    """The masks used last."""

    def __init__(self, num_words: int) -> None:
        self._most = max(MAX_BYTES // max(4 * num_words, 1), 1)
        self._rows: OrderedDict[tuple[int, Place], np.ndarray] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[int, Place]) -> np.ndarray | None:
        with self._lock:
            if (row := self._rows.get(key)) is not None:
                self._rows.move_to_end(key)
            return row

    def put(self, key: tuple[int, Place], row: np.ndarray) -> None:
        with self._lock:
            self._rows[key] = row
            if len(self._rows) > self._most:
                self._rows.popitem(last=False)


_names = count()
_kept: WeakKeyDictionary[Vocabulary, _Kept] = WeakKeyDictionary()
