"""Which leaf of the radix tree goes first when slots are needed.

A policy is one method, ``priority(node) -> tuple``; the smallest tuple goes first.  ``VictimQueue`` keeps the evictable
leaves in that order while nodes change, so that finding a victim never walks the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from radixrt.errors import ConfigError


class NodeFacts(Protocol):
    """What a policy may look at.  Times are ticks of the tree's logical clock."""

    @property
    def last_access(self) -> int: ...
    @property
    def created(self) -> int: ...
    @property
    def hits(self) -> int: ...


class EvictionPolicy(Protocol):
    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        """Return the order of a leaf; the smallest is evicted first.  Must depend on ``node`` alone."""


class LRU:
    """Least recently matched first."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (node.last_access,)


POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": LRU}


def select(name: str) -> EvictionPolicy:
    """Return the policy of that name, or raise ConfigError naming those there are."""
    if name not in POLICIES:
        raise ConfigError(f"unknown eviction policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name]()


class VictimQueue:
    """Evictable leaves, smallest priority first: O(log n) a change and a victim.

    A heap with lazy deletion: an entry counts only while it is the last one pushed for its leaf.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int]] = []
        self._current: dict[int, tuple[Any, int]] = {}

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, leaf: int) -> bool:
        return leaf in self._current

    def push(self, leaf: int, priority: tuple[float, ...]) -> None:
        """Add a leaf, or give it a new priority."""
        entry = (priority, leaf)
        if self._current.get(leaf) == entry:
            return
        self._current[leaf] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 64 + 4 * len(self._current):
            self._heap = list(self._current.values())
            heapq.heapify(self._heap)

    def discard(self, leaf: int) -> None:
        self._current.pop(leaf, None)

    def peek(self) -> int | None:
        """Return the leaf that goes first, or None."""
        while self._heap:
            entry = self._heap[0]
            if self._current.get(entry[1]) == entry:
                return entry[1]
            heapq.heappop(self._heap)
        return None

    def clear(self) -> None:
        self._heap.clear()
        self._current.clear()
