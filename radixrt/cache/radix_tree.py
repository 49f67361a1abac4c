"""The radix tree: token ids to KV slots, one slot a token.

It is pure.  It knows no request, tensor, device, clock or metric; who computes K/V, and when, is not its business.  This
Python tree is the specification: easy to read, checked against a plain dictionary, and the place to try a new idea.
After "SGLang: Efficient Execution of Structured Language Model Programs", section 3.

Nodes are named by integer handles.  A handle that somebody has locked keeps naming the *end* of the same token sequence
for as long as the lock is held: a split puts the upper half into a new node, and only the sole holder's own insertion
may lengthen a locked leaf.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from radixrt.cache.eviction import LRU, EvictionPolicy, VictimQueue
from radixrt_kernels.ops import common_prefix_length

Tokens = array  # array("i"), of token ids or of slot ids


class Node:
    """An edge and its end: ``key[i]`` is stored in slot ``slots[i]``."""

    __slots__ = ("children", "created", "handle", "hits", "key", "last_access", "locks", "namespace", "parent", "slots")

    def __init__(self, handle: int, key: Tokens[int], slots: Tokens[int], parent: Node | None, tick: int) -> None:
        self.handle = handle
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_access = self.created = tick
        self.hits = 0
        self.namespace: Hashable = None  # of roots only


@dataclass(frozen=True, slots=True)
class Match:
    """``slots`` of the longest stored prefix; ``node`` ends exactly there."""

    node: int
    slots: Tokens[int]


@dataclass(frozen=True, slots=True)
class Insertion:
    """``slots`` the tree now holds for the inserted tokens, of which the first ``num_present`` were there before."""

    node: int
    slots: Tokens[int]
    num_present: int


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Sizes in tokens.  ``evictable`` ones lie in unlocked nodes, ``locked`` ones in locked nodes."""

    evictable: int
    locked: int
    num_nodes: int
    evicted: int


class RadixTree:
    """One tree a namespace; nothing is ever shared across namespaces.

    Tokens and slots go in and out as ``array("i")``.  ``start`` continues from a node instead of the namespace's root:
    the tokens are then those below it.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self._policy: EvictionPolicy = policy or LRU()
        self._victims = VictimQueue()
        self._nodes: dict[int, Node] = {}
        self._roots: dict[Hashable, Node] = {}
        self._next_handle = 0
        self._last_root = 0  # a root made by a match that found nothing and that nobody locked is dropped with the next one
        self._clock = 0
        self._evictable = self._locked = self._evicted = 0

    def match(self, tokens: Tokens[int], *, namespace: Hashable = None, start: int | None = None) -> Match:
        """Find the longest stored prefix of ``tokens``, splitting a node if it ends inside one, and mark it as used."""
        self._clock += 1
        node = self._start(namespace, start)
        slots = array("i")
        while len(slots) < len(tokens) and (child := node.children.get(tokens[len(slots)])) is not None:
            shared = common_prefix_length(child.key, 0, tokens, len(slots))
            if shared < len(child.key):
                child = self._split(child, shared)
            slots.extend(child.slots)
            self._touch(child)
            node = child
            if shared < len(child.key):
                break
        return Match(node.handle, slots)

    def match_length(self, tokens: Tokens[int], *, namespace: Hashable = None, start: int | None = None) -> int:
        """Return how many leading tokens are stored, changing nothing: neither structure nor order of eviction."""
        node = self._roots.get(namespace) if start is None else self._nodes[start]
        length = 0
        while node is not None and length < len(tokens):
            node = node.children.get(tokens[length])
            if node is not None:
                shared = common_prefix_length(node.key, 0, tokens, length)
                length += shared
                if shared < len(node.key):
                    break
        return length

    def insert(
        self, tokens: Tokens[int], slots: Tokens[int], *, namespace: Hashable = None, start: int | None = None
    ) -> Insertion:
        """Store tokens with their slots.  Where tokens are stored already the tree keeps its own slots.

        The slots beyond ``num_present`` become the tree's.  When ``start`` is a leaf that only the caller has locked, it
        grows in place: a sequence that is inserted token by token stays one node.
        """
        assert len(tokens) == len(slots), "[insert] one slot a token"
        found = self.match(tokens, namespace=namespace, start=start)
        num_present = len(found.slots)
        if num_present == len(tokens):
            return Insertion(found.node, found.slots, num_present)
        node = self._nodes[found.node]
        new_key, new_slots = tokens[num_present:], slots[num_present:]
        if node.handle == start and node.parent is not None and not node.children and node.locks == 1:
            node.key.extend(new_key)
            node.slots.extend(new_slots)
            node.last_access = self._clock
            self._locked += len(new_key)
        else:
            leaf = self._add(new_key, new_slots, node)
            self._victims.discard(node.handle)
            self._evictable += len(new_key)
            self._requeue(leaf)
            node = leaf
        found.slots.extend(new_slots)
        return Insertion(node.handle, found.slots, num_present)

    def lock(self, node: int) -> None:
        """Keep a node and everything above it from eviction; locks count."""
        at: Node | None = self._nodes[node]
        while at is not None:
            if at.locks == 0:
                self._evictable -= len(at.key)
                self._locked += len(at.key)
                self._victims.discard(at.handle)
            at.locks += 1
            at = at.parent

    def unlock(self, node: int) -> None:
        """Take back one ``lock`` and mark the path as used until now; at zero the handle may vanish at any later call."""
        at: Node | None = self._nodes[node]
        while at is not None:
            assert at.locks > 0, "[unlock] node is not locked"
            at.locks -= 1
            at.last_access = self._clock
            parent = at.parent
            if at.locks == 0:
                self._locked -= len(at.key)
                self._evictable += len(at.key)
                if parent is None:
                    self._drop_empty_root(at)
                else:
                    self._requeue(at)
            at = parent

    def evict(self, num_slots: int) -> Tokens[int]:
        """Give up the slots of ``num_slots`` tokens, or of as many as are evictable.

        Leaves go in the policy's order, each from its tail: the last leaf gives only what is still needed.
        """
        freed = array("i")
        while len(freed) < num_slots and (victim := self._victims.peek()) is not None:
            node = self._nodes[victim]
            keep = max(0, len(node.key) - (num_slots - len(freed)))
            freed.extend(node.slots[keep:])
            if keep:
                del node.key[keep:], node.slots[keep:]
            else:
                self._remove(node)
        self._evictable -= len(freed)
        self._evicted += len(freed)
        return freed

    def clear(self) -> None:
        """Forget everything, locks included; every handle is void.  The caller owns all slots again."""
        self._nodes.clear()
        self._roots.clear()
        self._victims.clear()
        self._evictable = self._locked = 0

    def stats(self) -> TreeStats:
        return TreeStats(self._evictable, self._locked, len(self._nodes) - len(self._roots), self._evicted)

    def stored_slots(self) -> Tokens[int]:
        """Every slot the tree holds, in no particular order; for the ledger."""
        slots = array("i")
        for node in self._nodes.values():
            slots.extend(node.slots)
        return slots

    def check_invariants(self) -> None:
        """Raise AssertionError unless structure, counters and the queue of victims agree with a walk over all nodes."""
        evictable = locked = 0
        for node in self.walk():
            assert self._nodes[node.handle] is node
            assert len(node.key) == len(node.slots)
            for token, child in node.children.items():
                assert child.parent is node and child.key[0] == token
            held_below = sum(child.locks for child in node.children.values())
            assert node.locks >= held_below, "a lock holds every ancestor"
            if node.parent is None:
                assert not node.key and (node.children or node.locks or node.handle == self._last_root), "an empty root is dropped"
                continue
            assert node.key, "only a root is empty"
            assert (node.handle in self._victims) == (not node.locks and not node.children)
            if node.locks:
                locked += len(node.key)
            else:
                evictable += len(node.key)
        assert len(list(self.walk())) == len(self._nodes)
        assert (evictable, locked) == (self._evictable, self._locked)

    def walk(self) -> Iterator[Node]:
        """Every node, roots included, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _start(self, namespace: Hashable, start: int | None) -> Node:
        if start is not None:
            return self._nodes[start]
        root = self._roots.get(namespace)
        if root is None:
            if (last := self._nodes.get(self._last_root)) is not None:
                self._drop_empty_root(last)
            root = self._roots[namespace] = self._add(array("i"), array("i"), None)
            root.namespace = namespace
            self._last_root = root.handle
        return root

    def _add(self, key: Tokens[int], slots: Tokens[int], parent: Node | None) -> Node:
        self._next_handle += 1
        node = self._nodes[self._next_handle] = Node(self._next_handle, key, slots, parent, self._clock)
        if parent is not None:
            parent.children[key[0]] = node
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge; the new upper node takes the first ``at`` tokens and is returned, ``node`` keeps the rest and its handle."""
        parent = node.parent
        assert parent is not None and 0 < at < len(node.key)
        upper = self._add(node.key[:at], node.slots[:at], parent)
        upper.locks, upper.hits = node.locks, node.hits
        upper.last_access, upper.created = node.last_access, node.created
        del node.key[:at], node.slots[:at]
        node.parent = upper
        upper.children[node.key[0]] = node
        return upper

    def _touch(self, node: Node) -> None:
        node.last_access = self._clock
        node.hits += 1
        self._requeue(node)

    def _requeue(self, node: Node) -> None:
        if not node.locks and not node.children:
            self._victims.push(node.handle, self._policy.priority(node))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        self._victims.discard(node.handle)
        del self._nodes[node.handle]
        del parent.children[node.key[0]]
        if parent.parent is None:
            self._drop_empty_root(parent)
        else:
            self._requeue(parent)

    def _drop_empty_root(self, root: Node) -> None:
        if not root.children and not root.locks:
            del self._roots[root.namespace]
            del self._nodes[root.handle]
