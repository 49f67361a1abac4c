"""What the requests of a grammar share by place: masks, and ways to an end, made once for each and kept while there is room.

Both are functions of the grammar and of what ``Outline`` leaves of the text, so whoever comes to a place where another request
has been reads its mask, which costs a copy.  Room is one for all grammars of a vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.vocabulary import Vocabulary

MAX_BYTES = 32 << 20
"""How much the masks of all grammars of a vocabulary may take, their keys aside."""
MAX_WAYS = 8192
"""How many ways to an end are kept for a vocabulary."""
BEYOND = 32
"""How much longer than the shortest whole text a way is looked for that requests share."""

T = TypeVar("T")


class SharedMasks:
    """The masks and ways of one grammar; safe to use from several threads."""

    def __init__(self, outline: Outline, vocabulary: Vocabulary) -> None:
        self.outline = outline
        self._reach = 0
        self._name = next(_names)
        self._masks, self._ways = _kept.setdefault(
            vocabulary, (_Recent(max(MAX_BYTES // max(4 * vocabulary.num_words, 1), 1)), _Recent(MAX_WAYS))
        )

    def know(self, shortest: int) -> None:
        """Take in how many tokens the shortest whole text has."""
        self._reach = shortest + BEYOND

    def read(self, place: Place | None, row: np.ndarray) -> bool:
        """Copy the mask of a place to a row, if it is there."""
        known = None if place is None else self._masks.get((self._name, place))
        if known is None:
            return False
        row[:] = known
        return True

    def keep(self, place: Place | None, row: np.ndarray) -> None:
        """Remember a copy of the mask of a place."""
        if place is not None:
            self._masks.put((self._name, place), row.copy())

    def way(self, place: Place | None, search: Callable[[int], Sequence[int] | None]) -> Sequence[int] | None:
        """Return the way from a place to an end, as ``search`` finds it in so many tokens; None where none is, or none is kept.

        How far is looked depends on the grammar alone: what one request finds is what every other would have found.
        """
        if place is None or not self.outline.forgets:
            return None
        known = self._ways.get((self._name, place))
        if known is None:
            found = search(self._reach)
            known = (None if found is None else tuple(found),)
            self._ways.put((self._name, place), known)
        return known[0]


class _Recent(Generic[T]):
    """The values used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            if (value := self._values.get(key)) is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: T) -> None:
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._most:
                self._values.popitem(last=False)


_names = count()
_kept: WeakKeyDictionary[Vocabulary, tuple[_Recent[np.ndarray], _Recent[tuple[tuple[int, ...] | None]]]] = WeakKeyDictionary()
