"""The dfs-weight order: down the tree depth first, into the branch first that most waiting requests end in.

The part of the radix tree that waiting requests match is mirrored here as a trie of their cached prefixes; branches that
nobody waits for have no weight and no say in the order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Container, Hashable, Iterator, Sequence

from radixrt.schedule.order import Sorted, Ticket, by_arrival
from radixrt.schedule.request import Request
from radixrt_kernels.ops import common_prefix_length


class Branch:
    """An edge of the trie, the tickets whose cached prefix ends at its end, and how many wait there or below.

    ``name``: what the parent knows it by, which is its first token, or the namespace at the top.
    """

    __slots__ = ("children", "key", "name", "parent", "ranked", "serial", "tickets", "weight")

    def __init__(self, name: Hashable, key: array[int], parent: Branch | None, serial: int) -> None:
        self.name = name
        self.key = key
        self.parent = parent
        self.serial = serial
        self.weight = 0
        self.tickets = Sorted(by_arrival)
        self.children: dict[Hashable, Branch] = {}
        self.ranked: list[tuple[int, int, Branch]] = []  # children, heaviest first; serials keep branches from being compared

    @property
    def rank(self) -> tuple[int, int, Branch]:
        return -self.weight, self.serial, self

    def weigh(self, change: int) -> None:
        """Count tickets that came or went, here and up to the root."""
        branch: Branch | None = self
        while branch is not None:
            parent = branch.parent
            if parent is not None and branch.weight:
                del parent.ranked[bisect_left(parent.ranked, branch.rank)]
            branch.weight += change
            if parent is not None and branch.weight:
                insort(parent.ranked, branch.rank)
            branch = parent

    def walk(self) -> Iterator[Ticket]:
        for _, _, child in self.ranked:
            yield from child.walk()
        yield from self.tickets


class DepthFirstByWeight:
    """Heavier branches first; whoever ends at a node comes after those below it."""

    uses_matches = True
    uses_levels = False
    shortest_first = False
    max_passes = 0

    def __init__(self) -> None:
        self._root = Branch(None, array("i"), None, 0)
        self._ends: dict[int, Branch] = {}
        self._serial = 0

    def add(self, ticket: Ticket) -> None:
        end = self._end(ticket.request.namespace, ticket.request.tokens[: ticket.matched])
        self._ends[ticket.request.uid] = end
        end.tickets.add(ticket)
        end.weigh(1)

    def remove(self, ticket: Ticket) -> None:
        end: Branch | None = self._ends.pop(ticket.request.uid)
        assert end is not None
        end.tickets.remove(ticket)
        end.weigh(-1)
        while end is not None and end.parent is not None and not end.weight:
            parent = end.parent
            del parent.children[end.name]
            end = parent

    def begin(self, running: Sequence[Request], computed: int) -> None:
        pass

    def first(self, skipped: Container[int]) -> Ticket | None:
        return next((ticket for ticket in self._root.walk() if ticket.request.uid not in skipped), None)

    def _end(self, namespace: Hashable, tokens: array[int]) -> Branch:
        """Return the branch that ends where these tokens do, made if need be."""
        branch = self._root.children.get(namespace) or self._grow(self._root, namespace, array("i"))
        length = 0
        while length < len(tokens):
            child = branch.children.get(tokens[length])
            if child is None:
                return self._grow(branch, tokens[length], tokens[length:])
            shared = common_prefix_length(child.key, 0, tokens, length)
            branch = child if shared == len(child.key) else self._split(child, shared)
            length += shared
        return branch

    def _grow(self, parent: Branch, name: Hashable, key: array[int]) -> Branch:
        self._serial += 1
        branch = parent.children[name] = Branch(name, key, parent, self._serial)
        return branch

    def _split(self, lower: Branch, at: int) -> Branch:
        parent = lower.parent
        assert parent is not None
        del parent.ranked[bisect_left(parent.ranked, lower.rank)]
        upper = self._grow(parent, lower.name, lower.key[:at])
        upper.serial, lower.serial = lower.serial, upper.serial
        upper.weight = lower.weight
        del lower.key[:at]
        lower.name, lower.parent = lower.key[0], upper
        upper.children[lower.name] = lower
        insort(parent.ranked, upper.rank)
        insort(upper.ranked, lower.rank)
        return upper
