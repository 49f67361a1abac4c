"""Which leaf of the radix tree goes first when slots are needed.

A policy is one method, ``priority(node) -> tuple``; the smallest tuple goes first, and equal ones in order of creation.
``VictimQueue`` keeps the evictable leaves in that order while nodes change, so that finding a victim never walks the
tree.  ``docs/eviction.md`` says what each policy is for.
"""

from __future__ import annotations

import heapq
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from radixrt.config import nearest
from radixrt.errors import ConfigError


class NodeFacts(Protocol):
    """What a policy may look at.  Times are ticks of the tree's logical clock, which every match and insertion advances."""

    @property
    def last_access(self) -> int:
        """When it was last matched or, being locked, last let go."""

    @property
    def created(self) -> int:
        """When its tokens were inserted; both halves of a split keep it."""

    @property
    def hits(self) -> int:
        """How often it was matched."""

    @property
    def priority(self) -> int:
        """The highest priority of the insertions that went through it."""

    @property
    def start(self) -> int:
        """The position of its first token in the sequence."""

    @property
    def size(self) -> int:
        """How many tokens it holds."""

    @property
    def floor(self) -> float:
        """The highest first number among the priorities of all leaves that had been evicted when it was last used."""


class EvictionPolicy(Protocol):
    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        """Return the order of a leaf, at least one number; the smallest is evicted first.  Must depend on ``node`` alone."""


class LRU:
    """Least recently used first."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (node.last_access,)


class LFU:
    """Least often matched first."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (node.hits, node.last_access)


class SLRU:
    """Segmented LRU: what was matched ``protected_threshold`` times goes after all that was not."""

    def __init__(self, *, protected_threshold: int = 2) -> None:
        _require("protected_threshold", protected_threshold, at_least=1)
        self.protected_threshold = protected_threshold

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (node.hits >= self.protected_threshold, node.last_access)


class FIFO:
    """First stored first."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (node.created,)


class MRU:
    """Most recently used first: for scans in a circle that do not fit."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (-node.last_access,)


class FILO:
    """Last stored first: what filled the cache first stays."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (-node.created,)


class Priority:
    """Lowest request priority first, least recently used among equals."""

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        return (node.priority, node.last_access)


class Cost:
    """Least expected recompute cost a token first, with ageing: of the GreedyDual-Size-Frequency family.

    The floor plus the chance of being matched again times the mean cost of recomputing one of its tokens.  The chance is
    Laplace's (hits + 1) / (hits + 2).  A token at position p costs 1 + p / ``attention_length``: that is the position at
    which attending to all before costs as much as everything else a token needs.  After Cherkasova, "Improving WWW
    Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", 1998.
    """

    def __init__(self, *, attention_length: int = 16384) -> None:
        _require("attention_length", attention_length, at_least=1)
        self.attention_length = attention_length

    def priority(self, node: NodeFacts) -> tuple[float, ...]:
        chance = (node.hits + 1) / (node.hits + 2)
        cost = 1.0 + (node.start + (node.size - 1) / 2) / self.attention_length
        return (node.floor + chance * cost, node.last_access)


POLICIES: Mapping[str, Callable[..., EvictionPolicy]] = {
    "lru": LRU,
    "lfu": LFU,
    "slru": SLRU,
    "fifo": FIFO,
    "mru": MRU,
    "filo": FILO,
    "priority": Priority,
    "cost": Cost,
}


@dataclass(frozen=True)
class Probe:
    """The facts of some node, to try a policy with before it is needed."""

    last_access: int = 1
    created: int = 1
    hits: int = 0
    priority: int = 0
    start: int = 0
    size: int = 1
    floor: float = 0.0


def select(name: str, config: Mapping[str, Any] | None = None) -> EvictionPolicy:
    """Return the policy of that name, or of a class ``package.module:Policy``, built with ``config`` as keyword arguments.

    Importing a module runs its code, so a name must come from whoever starts the engine.  Raises ConfigError for an unknown
    name or key and for a class that is no policy.
    """
    kind = _load(name) if ":" in name else POLICIES.get(name)
    if kind is None:
        raise ConfigError(f"unknown eviction policy {name!r}; known: {', '.join(POLICIES)}, package.module:Policy{nearest(name, POLICIES)}")
    config = config or {}
    parameters = inspect.signature(kind).parameters
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in config:
        if key not in parameters and not open_ended:
            takes = f"it takes {', '.join(parameters)}" if parameters else "it takes none"
            raise ConfigError(f"eviction policy {name!r} has no option {key!r}; {takes}{nearest(key, parameters)}")
    try:
        policy = kind(**config)
        order = policy.priority(Probe())
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"eviction policy {name!r}: {error}") from error
    if not isinstance(order, tuple) or not order or not all(isinstance(number, int | float) for number in order):
        raise ConfigError(f"eviction policy {name!r}: priority(node) returned {order!r}, not a tuple of numbers")
    return policy


def _load(path: str) -> Callable[..., EvictionPolicy]:
    module, _, name = path.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"eviction policy {path!r} cannot be loaded: {error}") from error
    if not isinstance(kind, type) or not callable(getattr(kind, "priority", None)):
        raise ConfigError(f"eviction policy {path!r} is not a class with a method priority(node)")
    return kind


def _require(name: str, value: Any, *, at_least: int) -> None:
    if type(value) is not int or value < at_least:
        raise ConfigError(f"{name} must be an integer of at least {at_least}, got {value!r}")


class VictimQueue:
    """Evictable leaves, smallest priority first: O(log n) a change and a victim.

    A heap with lazy deletion: an entry counts only while it is the last one pushed for its leaf.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int]] = []
        self._current: dict[int, tuple[Any, int]] = {}

    def __len__(self) -> int:
        return len(self._current)

    def priority(self, leaf: int) -> Any:
        """The priority of a leaf, or None for one that is not here."""
        return self._current.get(leaf, (None,))[0]

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

    def peek(self) -> tuple[Any, int] | None:
        """Return (priority, leaf) of the leaf that goes first, or None."""
        while self._heap:
            entry = self._heap[0]
            if self._current.get(entry[1]) == entry:
                return entry
            heapq.heappop(self._heap)
        return None

    def clear(self) -> None:
        self._heap.clear()
        self._current.clear()
