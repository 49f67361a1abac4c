"""A node of the radix tree, and the walk along stored tokens that everything which looks for a sequence shares."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import TYPE_CHECKING

from radixrt.cache.tree import Tokens
from radixrt_kernels.ops import common_prefix_length

if TYPE_CHECKING:
    from radixrt.cache.watch import Place


class Node:
    """An edge and its end: ``key[i]`` is stored in slot ``slots[i]`` and lies ``start + i`` tokens below the root.

    ``pins`` counts those that end here or below, ``pin_ends`` those that end here by the handle they were given.
    """

    __slots__ = (
        "children",
        "created",
        "floor",
        "handle",
        "hits",
        "key",
        "last_access",
        "locks",
        "namespace",
        "parent",
        "pin_ends",
        "pins",
        "places",
        "priority",
        "slots",
        "start",
    )

    def __init__(self, handle: int, key: array[int], slots: array[int], parent: Node | None, tick: int) -> None:
        self.handle = handle
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.start: int = 0 if parent is None else parent.end
        self.locks = self.pins = 0
        self.pin_ends: dict[int, int] | None = None
        self.places: dict[int, Place] | None = None
        self.last_access = self.created = tick
        self.hits = self.priority = 0
        self.floor = 0.0
        self.namespace: Hashable = None  # of roots only

    @property
    def size(self) -> int:
        return len(self.key)

    @property
    def end(self) -> int:
        return self.start + len(self.key)


def advance(node: Node | None, offset: int, tokens: Tokens, length: int) -> tuple[Node | None, int, int]:
    """Follow ``tokens[length:]`` from ``offset`` tokens into the edge of a node for as long as they are stored.

    Returns the place where they leave what is stored, as a node and an offset, and how many of the tokens are then known.
    """
    while node is not None and length < len(tokens):
        if offset == len(node.key):
            if (child := node.children.get(tokens[length])) is None:
                break
            node, offset = child, 0
        shared = common_prefix_length(node.key, offset, tokens, length)
        offset += shared
        length += shared
        if offset < len(node.key):
            break
    return node, offset, length
