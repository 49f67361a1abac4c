"""Prefixes that are to stay cached for a while: which, until when, and which is given up first.

Pins are soft.  They hold a share of the pool at most, they end by themselves unless they are used, and when slots are
needed and nothing else is left to evict they are given up, the one that would have ended first going first.  So a pin
never refuses a running request anything.  Time is an argument, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass

from radixrt.cache.tree import Tokens, Tree
from radixrt.errors import RequestError

# More pins than this are a misuse: each admission compares its prompt with every pin of its namespace.
MAX_PINS = 256


@dataclass(slots=True)
class Pin:
    """``key`` holds the tokens as bytes; ``node`` ends where they end."""

    id: str
    namespace: Hashable
    key: bytes
    num_tokens: int
    node: int
    ttl: float
    expires: float


class PinBoard:
    """The pins of one tree.

    Args:
        budget: most tokens that all pins together may hold; a token that several share counts once.
        max_ttl: longest time, in seconds, that a pin lasts without being used.
    """

    def __init__(self, tree: Tree, *, budget: int, max_ttl: float) -> None:
        self.budget = budget
        self.max_ttl = max_ttl
        self._tree = tree
        self._pins: dict[str, Pin] = {}
        self._spaces: dict[Hashable, dict[str, Pin]] = {}
        self._hit: dict[str, Pin] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def num_tokens(self) -> int:
        """Tokens that are pinned."""
        return self._num_tokens

    def pin(self, id: str, tokens: Tokens, *, namespace: Hashable, ttl: float, now: float) -> Pin | None:
        """Pin what is cached of ``tokens``, under a name that replaces what was pinned under it before; None when nothing is.

        Other pins make way, those that would end first going first, when the budget or the number of pins is used up.
        Raises RequestError for more tokens than the budget.
        """
        self.tick(now)
        found = self._tree.match(tokens, namespace=namespace)
        num_tokens = len(found.slots)
        if num_tokens > self.budget:
            raise RequestError(f"Pins may hold {self.budget} tokens together, this one has {num_tokens}.", code="pin_budget")
        self.unpin(id)
        if not num_tokens:
            return None
        ttl = min(ttl, self.max_ttl)
        pin = Pin(id, namespace, array("i", tokens[:num_tokens]).tobytes(), num_tokens, found.node, ttl, now + ttl)
        self._tree.pin(pin.node)
        self._pins[id] = pin
        self._spaces.setdefault(namespace, {})[id] = pin
        self._count()
        while self._num_tokens > self.budget or len(self._pins) > MAX_PINS:
            self._give_up(min((other for other in self._pins.values() if other is not pin), key=_end))
        return pin

    def unpin(self, id: str) -> bool:
        """End a pin; its tokens stay cached like any others.  False when there is none of that name."""
        pin = self._pins.get(id)
        if pin is not None:
            self._give_up(pin)
        return pin is not None

    def note_match(self, tokens: Tokens, namespace: Hashable, matched: int) -> None:
        """A request was found to have its first ``matched`` tokens cached: pins inside them are renewed with the next ``tick``."""
        space = self._spaces.get(namespace)
        if space:
            data = memoryview(tokens).cast("B")
            for pin in space.values():
                if pin.num_tokens <= matched and data[: len(pin.key)] == pin.key:
                    self._hit[pin.id] = pin

    def tick(self, now: float) -> None:
        """Renew what was used since the last call, and end what has had its time."""
        if not self._pins:
            return
        for pin in self._hit.values():
            pin.expires = now + pin.ttl
        self._hit.clear()
        for pin in [pin for pin in self._pins.values() if pin.expires <= now]:
            self._give_up(pin)

    def make_room(self, num_slots: int) -> None:
        """Give up pins, those that would end first going first, until ``num_slots`` can be evicted without any."""
        while self._pins:
            stats = self._tree.stats()
            if stats.evictable - stats.pinned >= num_slots:
                break
            self._give_up(min(self._pins.values(), key=_end))

    def clear(self) -> None:
        """Forget every pin: the tree has been emptied."""
        self._pins.clear()
        self._spaces.clear()
        self._hit.clear()
        self._num_tokens = 0

    def _give_up(self, pin: Pin) -> None:
        self._tree.unpin(pin.node)
        del self._pins[pin.id]
        self._hit.pop(pin.id, None)
        space = self._spaces[pin.namespace]
        del space[pin.id]
        if not space:
            del self._spaces[pin.namespace]
        self._count()

    def _count(self) -> None:
        """Count tokens once however many pins share them: in order, a pin shares most with the one before it."""
        self._num_tokens = 0
        for space in self._spaces.values():
            before = b""
            for key in sorted(pin.key for pin in space.values()):
                self._num_tokens += (len(key) - _shared_bytes(before, key)) // array("i").itemsize
                before = key


def _end(pin: Pin) -> tuple[float, str]:
    return pin.expires, pin.id


def _shared_bytes(a: bytes, b: bytes) -> int:
    """Length of the common prefix, in whole tokens."""
    low, high, size = 0, min(len(a), len(b)), array("i").itemsize
    if a[:high] == b[:high]:
        return high // size * size
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low // size * size
