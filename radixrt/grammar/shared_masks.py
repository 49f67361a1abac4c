"""What the requests of a grammar share by place: masks, and ways to an end, made once for each and kept while there is room.

Both are functions of the grammar and of what ``Outline`` leaves of the text, so whoever comes to a place where another request
has been reads its mask, which costs a copy.  Room is one for all grammars of a vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from itertools import count
from threading import Lock
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.string_masks import Closing
from radixrt.grammar.vocabulary import Vocabulary

MAX_BYTES = 32 << 20
"""How much the masks of all grammars of a vocabulary may take, their keys aside."""
MAX_WAYS = 8192
"""How many ways to an end are kept for a vocabulary."""
MAX_CLOSING = 1024
"""For how many beginnings of strings it is kept what closes them; each takes a mask."""
BEYOND = 32
"""How much longer than the shortest whole text a way is looked for that requests share."""

T = TypeVar("T")


class Way(NamedTuple):
    """Tokens from a place to an end; None where none were found.  ``is_greedy``: each is the first choice at its place."""

    tokens: tuple[int, ...] | None
    is_greedy: bool


class SharedMasks:
    """The masks and ways of one grammar; safe to use from several threads."""

    def __init__(self, outline: Outline, vocabulary: Vocabulary) -> None:
        self.outline = outline
        self.reach = 0
        """How many tokens a way may have that requests share: it depends on the grammar alone."""
        self._name = next(_names)
        self._masks, self._ways, self._closing = _kept.setdefault(
            vocabulary, (_Recent(max(MAX_BYTES // max(4 * vocabulary.num_words, 1), 1)), _Recent(MAX_WAYS), _Recent(MAX_CLOSING))
        )

    def know(self, shortest: int) -> None:
        """Take in how many tokens the shortest whole text has."""
        self.reach = shortest + BEYOND

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

    def closing(self, text: bytes) -> Closing | None:
        """What closes the strings that begin behind an outline's text, None where that is not kept."""
        return self._closing.get((self._name, text))

    def keep_closing(self, text: bytes, closing: Closing) -> None:
        self._closing.put((self._name, text), closing)

    def knows_ways(self, place: Place | None) -> bool:
        """Whether the ways from a place are those of every text that leads there."""
        return place is not None and self.outline.forgets

    def way(self, place: Place) -> Way | None:
        """The way from a place to an end, None where none is kept."""
        return self._ways.get((self._name, place))

    def keep_way(self, place: Place, way: Way) -> None:
        self._ways.put((self._name, place), way)


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
_kept: WeakKeyDictionary[Vocabulary, tuple[_Recent[np.ndarray], _Recent[Way], _Recent[Closing]]] = WeakKeyDictionary()
