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
from typing import Any

from radixrt.cache import views
from radixrt.cache.eviction import LRU, EvictionPolicy, VictimQueue
from radixrt.cache.node import Node, advance
from radixrt.cache.tree import Insertion, Match, Tokens, TreeStats
from radixrt.cache.watch import Watchers
from radixrt_kernels.ops import common_prefix_length


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
        self._floor = 0.0
        self._evictable = self._locked = self._pinned = self._evicted = 0
        self._watchers = Watchers()
        self._pin_ends: dict[int, Node] = {}

    def match(self, tokens: Tokens, *, namespace: Hashable = None, start: int | None = None) -> Match:
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

    def match_length(self, tokens: Tokens, *, namespace: Hashable = None, start: int | None = None) -> int:
        """Return how many leading tokens are stored, changing nothing: neither structure nor order of eviction."""
        node = self._roots.get(namespace) if start is None else self._nodes[start]
        return advance(node, len(node.key) if node else 0, tokens, 0)[2]

    def insert(
        self, tokens: Tokens, slots: Tokens, *, namespace: Hashable = None, start: int | None = None, priority: int = 0
    ) -> Insertion:
        """Store tokens with their slots.  Where tokens are stored already the tree keeps its own slots.

        The slots beyond ``num_present`` become the tree's.  When ``start`` is a leaf that only the caller has locked and
        where no pin ends, it grows in place: a sequence that is inserted token by token stays one node.  Every node from
        the root to the end of the tokens takes ``priority`` unless its own is higher.
        """
        assert len(tokens) == len(slots), "[insert] one slot a token"
        found = self.match(tokens, namespace=namespace, start=start)
        node = self._nodes[found.node]
        num_present = len(found.slots)
        if num_present < len(tokens):
            new_key, new_slots = array("i", tokens[num_present:]), array("i", slots[num_present:])
            if node.handle == start and node.parent is not None and not node.children and node.locks == 1 and not node.pin_ends:
                self._grow(node, new_key, new_slots)
            else:
                node = self._hang(new_key, new_slots, node, priority)
            found.slots.extend(new_slots)
        self._raise_priority(self._nodes[found.node], priority)
        return Insertion(node.handle, found.slots, num_present)

    def lock(self, node: int) -> None:
        """Keep a node and everything above it from eviction; locks count."""
        at: Node | None = self._nodes[node]
        while at is not None:
            if at.locks == 0:
                self._evictable -= len(at.key)
                self._locked += len(at.key)
                self._pinned -= len(at.key) if at.pins else 0
                self._victims.discard(at.handle)
            at.locks += 1
            at = at.parent

    def unlock(self, node: int) -> None:
        """Take back one ``lock`` and mark the path as used until now; at zero the handle may vanish at any later call."""
        at: Node | None = self._nodes[node]
        while at is not None:
            assert at.locks > 0, "[unlock] node is not locked"
            at.locks -= 1
            at.last_access, at.floor = self._clock, self._floor
            parent = at.parent
            if at.locks == 0:
                self._locked -= len(at.key)
                self._evictable += len(at.key)
                self._pinned += len(at.key) if at.pins else 0
                if parent is None:
                    self._drop_empty_root(at)
                else:
                    self._requeue(at)
            at = parent

    def pin(self, node: int) -> None:
        """Let a node and everything above it go only when nothing else is left; pins count."""
        end = self._nodes[node]
        if end.parent is None:
            return
        end.pin_ends = end.pin_ends or {}
        end.pin_ends[node] = end.pin_ends.get(node, 0) + 1
        self._pin_ends[node] = end
        self._count_pins(end, +1)

    def unpin(self, node: int) -> None:
        """Take back one ``pin``; what eviction has taken of the path meanwhile is no longer pinned, and is no error."""
        end = self._pin_ends.get(node)
        if end is None:
            return
        assert end.pin_ends is not None
        end.pin_ends[node] -= 1
        if not end.pin_ends[node]:
            del end.pin_ends[node], self._pin_ends[node]
        self._count_pins(end, -1)

    def evict(self, num_slots: int) -> array[int]:
        """Give up the slots of ``num_slots`` tokens, or of as many as are evictable.

        Leaves go in the policy's order, pinned ones last, each from its tail: the last leaf gives only what is still needed.
        """
        freed = array("i")
        while len(freed) < num_slots and (victim := self._victims.peek()) is not None:
            (_, first, *_), handle = victim
            self._floor = max(self._floor, first)
            node = self._nodes[handle]
            self._cut(node, max(0, len(node.key) - (num_slots - len(freed))), freed)
        return freed

    def drop_tail(self, tokens: Tokens, *, namespace: Hashable = None, keep: int) -> array[int]:
        """Give up the end of a stored sequence, leaf first, down to its first ``keep`` tokens; returns the freed slots.

        Only what nobody locks, pins or goes on from: where ``tokens`` ends inside an edge, that edge is somebody else's.
        """
        freed = array("i")
        node, offset, _ = advance(self._roots.get(namespace), 0, tokens, 0)
        if node is not None and offset == len(node.key):
            while node.parent is not None and node.end > keep and not (node.children or node.locks or node.pins):
                parent = node.parent
                self._cut(node, max(0, keep - node.start), freed)
                node = parent
        return freed

    def clear(self) -> None:
        """Forget everything, locks and pins included; every handle is void.  The caller owns all slots again."""
        self._nodes.clear()
        self._roots.clear()
        self._victims.clear()
        self._pin_ends.clear()
        self._watchers.cleared()
        self._evictable = self._locked = self._pinned = 0

    def watch(self, key: int, tokens: Tokens, *, namespace: Hashable = None) -> int:
        """Remember a sequence under a key of the caller's and return how many of its leading tokens are stored.

        The tokens are borrowed until ``unwatch(key)`` and must not change; a ``memoryview`` of them will do.
        """
        return self._watchers.add(key, tokens, namespace, self._roots.get(namespace))

    def unwatch(self, key: int) -> None:
        """Forget a watched sequence; an unknown key is no error."""
        self._watchers.discard(key)

    def take_changed(self) -> list[tuple[int, int]]:
        """Return (key, length) of every watched sequence of which another length is stored than was last told."""
        return self._watchers.take_changed()

    def watched_path(self, key: int) -> list[int]:
        """The nodes that a watched sequence is matched through, from the root's child down."""
        path = []
        at = self._watchers[key].place.node
        while at is not None and at.parent is not None:
            path.append(at.handle)
            at = at.parent
        return path[::-1]

    def divergence(self, tokens: Tokens, *, namespace: Hashable = None, limit: int = 8) -> tuple[int, list[int]]:
        """Return how many leading tokens are stored and up to ``limit`` tokens that follow these in the tree.

        Where several sequences follow, the most recently used one is shown.  Changes nothing.
        """
        return views.divergence(self._roots.get(namespace), tokens, limit)

    def describe(self, namespace: Hashable = None, *, depth: int = 1 << 30, min_tokens: int = 0) -> list[dict[str, Any]]:
        """Return plain facts of each node, parents before children and larger subtrees first; roots are not shown.

        ``namespace``: only this one; None for all.  ``depth``: how many levels.  ``min_tokens``: leave out subtrees with
        fewer tokens.  Walks the whole tree.
        """
        roots = self._roots.values() if namespace is None else filter(None, [self._roots.get(namespace)])
        return [facts for root in roots for facts in views.describe(root, depth, min_tokens)]

    def stats(self) -> TreeStats:
        return TreeStats(self._evictable, self._locked, len(self._nodes) - len(self._roots), self._evicted, self._pinned)

    def stored_slots(self) -> array[int]:
        """Every slot the tree holds, in no particular order; for the ledger."""
        slots = array("i")
        for node in self._nodes.values():
            slots.extend(node.slots)
        return slots

    def check_invariants(self) -> None:
        """Raise AssertionError unless structure, counters and the queue of victims agree with a walk over all nodes."""
        evictable = locked = pinned = 0
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
            assert node.start == node.parent.end
            assert node.pins == sum((node.pin_ends or {}).values()) + sum(child.pins for child in node.children.values())
            assert all(self._pin_ends[handle] is node for handle in node.pin_ends or ())
            assert all(child.priority <= node.priority for child in node.children.values())
            order = None if node.locks or node.children else self._order(node)
            assert self._victims.priority(node.handle) == order, "evictable leaves are queued in the policy's order"
            pinned += len(node.key) if node.pins and not node.locks else 0
            if node.locks:
                locked += len(node.key)
            else:
                evictable += len(node.key)
        assert len(list(self.walk())) == len(self._nodes)
        assert (evictable, locked, pinned) == (self._evictable, self._locked, self._pinned)
        for watcher in self._watchers:
            assert watcher.length == self.match_length(watcher.tokens, namespace=watcher.namespace), "watchers are up to date"

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

    def _add(self, key: array[int], slots: array[int], parent: Node | None) -> Node:
        self._next_handle += 1
        node = self._nodes[self._next_handle] = Node(self._next_handle, key, slots, parent, self._clock)
        node.floor = self._floor
        if parent is not None:
            parent.children[key[0]] = node
        return node

    def _grow(self, node: Node, key: array[int], slots: array[int]) -> None:
        old_end = node.end
        node.key.extend(key)
        node.slots.extend(slots)
        node.last_access, node.floor = self._clock, self._floor
        self._locked += len(key)
        self._watchers.grew(node, old_end)

    def _hang(self, key: array[int], slots: array[int], parent: Node, priority: int) -> Node:
        leaf = self._add(key, slots, parent)
        leaf.priority = priority
        self._victims.discard(parent.handle)
        self._evictable += len(key)
        self._requeue(leaf)
        self._watchers.added(parent, leaf)
        return leaf

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge; the new upper node takes the first ``at`` tokens and is returned, ``node`` keeps the rest and its handle."""
        parent = node.parent
        assert parent is not None and 0 < at < len(node.key)
        upper = self._add(node.key[:at], node.slots[:at], parent)
        upper.locks, upper.pins, upper.hits, upper.priority = node.locks, node.pins, node.hits, node.priority
        upper.last_access, upper.created, upper.floor = node.last_access, node.created, node.floor
        del node.key[:at], node.slots[:at]
        node.parent = upper
        node.start += at
        upper.children[node.key[0]] = node
        self._watchers.split(upper, node)
        self._requeue(node)
        return upper

    def _touch(self, node: Node) -> None:
        node.last_access, node.floor = self._clock, self._floor
        node.hits += 1
        self._requeue(node)

    def _raise_priority(self, node: Node, priority: int) -> None:
        # Nobody has a lower priority than those below it, so the rest of the path is done where one is high enough.
        at: Node | None = node
        while at is not None and at.priority < priority:
            at.priority = priority
            self._requeue(at)
            at = at.parent

    def _count_pins(self, node: Node, count: int) -> None:
        at: Node = node
        while at.parent is not None:
            was_pinned = at.pins > 0
            at.pins += count
            if not at.locks:
                self._pinned += len(at.key) * ((at.pins > 0) - was_pinned)
            self._requeue(at)
            at = at.parent

    def _order(self, node: Node) -> tuple[float, ...]:
        return (node.pins > 0, *self._policy.priority(node))

    def _requeue(self, node: Node) -> None:
        if not node.locks and not node.children and node.parent is not None:
            self._victims.push(node.handle, self._order(node))

    def _cut(self, leaf: Node, keep: int, freed: array[int]) -> None:
        """Give up the slots of an unlocked leaf beyond its first ``keep`` tokens."""
        lost = leaf.slots[keep:]
        freed.extend(lost)
        self._evictable -= len(lost)
        self._pinned -= len(lost) if leaf.pins else 0
        self._evicted += len(lost)
        if keep:
            del leaf.key[keep:], leaf.slots[keep:]
            self._watchers.trimmed(leaf)
            self._requeue(leaf)
        else:
            self._remove(leaf)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        self._victims.discard(node.handle)
        self._watchers.removed(node)
        del self._nodes[node.handle]
        del parent.children[node.key[0]]
        self._inherit_pins(node, parent)
        if parent.parent is None:
            self._drop_empty_root(parent)
        else:
            self._requeue(parent)

    def _inherit_pins(self, node: Node, parent: Node) -> None:
        """What is left of a pinned path is its parent's end."""
        for handle, count in (node.pin_ends or {}).items():
            if parent.parent is None:
                del self._pin_ends[handle]
            else:
                parent.pin_ends = parent.pin_ends or {}
                parent.pin_ends[handle] = parent.pin_ends.get(handle, 0) + count
                self._pin_ends[handle] = parent

    def _drop_empty_root(self, root: Node) -> None:
        if not root.children and not root.locks:
            del self._roots[root.namespace]
            del self._nodes[root.handle]
