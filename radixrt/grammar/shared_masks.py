"""What the requests of a grammar share by place: masks, and ways to an end, made once for each and kept while there is room.

Both are functions of the grammar and of what ``Outline`` leaves of the text, so whoever comes to a place where another request
has been reads its mask, which costs a copy.  Places and what leads from one to the other are kept as an automaton that grows
with what requests visit.  Room is one for all grammars of a vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict, deque
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
MAX_STEPS = 32
"""How many tokens it is kept for where they lead from a spot."""
BEYOND = 32
"""How much longer than the shortest whole text a way is looked for that requests share."""

T = TypeVar("T")


class Way(NamedTuple):
    """Tokens from a place to an end; None where none were found.  ``is_greedy``: each is the first choice at its place."""

    tokens: tuple[int, ...] | None
    is_greedy: bool


class Spot:
    """A place that requests have been at: its mask, once somebody made it, and the spots that tokens lead to from here.

    Who follows tokens from spot to spot neither makes places nor looks them up.  ``home``: the spots of its grammar, in which it
    is found while ``is_kept``.
    """

    __slots__ = ("_home", "is_kept", "mask", "place", "steps", "was_used")

    def __init__(self, place: Place, home: dict[Place, Spot]) -> None:
        self.place = place
        self.mask: np.ndarray | None = None
        self.steps: dict[int, Spot] = {}
        self.was_used = False
        """Since room was last looked for."""
        self.is_kept = True
        self._home = home
        home[place] = self

    def forget(self) -> None:
        """Give up what the spot holds, and its place."""
        self.is_kept = False
        self.mask, self.steps = None, {}
        if self._home.get(self.place) is self:
            del self._home[self.place]


class SharedMasks:
    """The masks and ways of one grammar; safe to use from several threads."""

    def __init__(self, outline: Outline, vocabulary: Vocabulary) -> None:
        self.outline = outline
        self.reach = 0
        """How many tokens a way may have that requests share: it depends on the grammar alone."""
        self._name = next(_names)
        self._spots: dict[Place, Spot] = {}
        self._kept, self._ways, self._closing = _kept.setdefault(
            vocabulary, (_Spots(max(MAX_BYTES // max(4 * vocabulary.num_words, 1), 1)), _Recent(MAX_WAYS), _Recent(MAX_CLOSING))
        )

    def know(self, shortest: int) -> None:
        """Take in how many tokens the shortest whole text has."""
        self.reach = shortest + BEYOND

    def start(self) -> Spot:
        """The spot before any text."""
        return self._spot(self.outline.start())

    def after(self, spot: Spot | None, token: int, spelled: bytes) -> Spot | None:
        """Return the spot that a token leads to; None when it is too far from the start."""
        if spot is None:
            return None
        found = spot.steps.get(token)
        if found is None or not found.is_kept:
            place = self.outline.after(spot.place, spelled)
            if place is None:
                return None
            found = self._spot(place)
            if len(spot.steps) >= MAX_STEPS:
                spot.steps = {}
            spot.steps[token] = found
        return found

    def keep(self, spot: Spot | None, row: np.ndarray) -> None:
        """Remember a copy of the mask of a spot."""
        if spot is not None:
            self._spot(spot.place).mask = row.copy()

    def _spot(self, place: Place) -> Spot:
        spot = self._spots.get(place)
        if spot is None:
            spot = Spot(place, self._spots)
            self._kept.add(spot)
        return spot

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


class _Spots:
    """Spots in the order they came, of which as many are kept as there is room for; who was used meanwhile stays another round
    (the clock algorithm, Corbató 1968)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._spots: deque[Spot] = deque()
        self._lock = Lock()

    def add(self, spot: Spot) -> None:
        with self._lock:
            self._spots.append(spot)
            while len(self._spots) > self._most:
                oldest = self._spots.popleft()
                if oldest.was_used:
                    oldest.was_used = False
                    self._spots.append(oldest)
                else:
                    oldest.forget()


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
_kept: WeakKeyDictionary[Vocabulary, tuple[_Spots, _Recent[Way], _Recent[Closing]]] = WeakKeyDictionary()
