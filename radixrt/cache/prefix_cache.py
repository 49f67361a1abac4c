"""Who holds which slot: the tree, the free slots and the page-table rows kept in one ledger.

A running sequence holds a ``Lease``: a page-table row whose first ``num_shared`` slots are the tree's, kept there by a
lock on ``node``, and whose other slots are its own.  Every operation keeps

    free + owned by leases + held by the tree == all slots, each exactly once.

Only the scheduler calls this, and only with counts of tokens whose K/V is computed by steps already launched: steps run
in order, so whoever is handed a slot later reads what was written before.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from radixrt.cache.kv_events import BlockLog
from radixrt.cache.pins import PinBoard
from radixrt.cache.reuse import ReuseGaps
from radixrt.cache.slots import PageTable, SlotAllocator
from radixrt.cache.tree import Tokens, Tree
from radixrt.types import Divergence

# What is evicted at once is at least this part of all slots: a cache that lost its tail token by token would be looked at anew
# by everybody who waits for it, each time.
EVICTION_BATCH = 256


@dataclass(slots=True)
class Lease:
    """What one running sequence holds.  Positions [0, num_shared) are shared, [num_shared, length) its own."""

    row: int
    namespace: Hashable
    node: int
    num_shared: int
    length: int
    priority: int = 0


class PrefixCache:
    """Admit, extend, publish and release sequences of tokens over ``num_slots`` slots.

    With ``enabled=False`` nothing is ever matched or stored: every sequence owns all its slots.  ``pins``, ``blocks`` and
    ``reuse`` are told what happens when there are any.
    """

    def __init__(self, *, tree: Tree, num_slots: int, num_rows: int, max_length: int, enabled: bool = True) -> None:
        self.tree = tree
        self.slots = SlotAllocator(num_slots)
        self.page_table = PageTable(num_rows, max_length)
        self.enabled = enabled
        self.pins: PinBoard | None = None
        self.blocks: BlockLog | None = None
        self.reuse: ReuseGaps | None = None

    @property
    def num_slots(self) -> int:
        return self.slots.num_slots

    @property
    def num_available(self) -> int:
        """Slots that an ``extend`` can get, by eviction if need be."""
        return self.slots.num_free + self.tree.stats().evictable

    def available(self, most: int) -> int:
        """Slots that an ``extend`` can get, up to ``most``."""
        free = self.slots.num_free
        return most if free >= most else min(most, self.num_available)

    def match_length(self, tokens: Tokens, namespace: Hashable) -> int:
        """Return how many leading tokens are cached, changing nothing."""
        return self.tree.match_length(tokens, namespace=namespace) if self.enabled else 0

    def watch(self, key: int, tokens: Tokens, namespace: Hashable) -> int:
        """Follow how many leading ``tokens`` are cached, from now on under a key of the caller's, and return how many are.

        The tokens are borrowed until ``unwatch`` and must not change.
        """
        return self.tree.watch(key, tokens, namespace=namespace) if self.enabled else 0

    def unwatch(self, key: int) -> None:
        if self.enabled:
            self.tree.unwatch(key)

    def take_changed(self) -> list[tuple[int, int]]:
        """Return (key, cached length) of everything watched of which another length is cached than was last told."""
        return self.tree.take_changed() if self.enabled else []

    def admit(self, tokens: Tokens, namespace: Hashable, *, priority: int = 0) -> Lease | None:
        """Open a lease on the longest cached prefix of ``tokens``; None when no row is free.

        ``priority``: what it stores is worth to a cache that is evicted by priority.
        """
        if not self.page_table.num_free:
            return None
        found = self.tree.match(tokens if self.enabled else tokens[:0], namespace=namespace)
        self.tree.lock(found.node)
        lease = Lease(self.page_table.take_row(), namespace, found.node, len(found.slots), len(found.slots), priority)
        self.page_table.views[lease.row][: lease.length] = found.slots
        return lease

    def note_admitted(self, lease: Lease, tokens: Tokens) -> None:
        """Take note that a lease just opened is being used: its prefix has been needed once more."""
        if self.pins is not None:
            self.pins.note_match(tokens, lease.namespace, lease.num_shared)
        if self.reuse is not None:
            self.reuse.note_match(self.page_table.rows[lease.row, : lease.num_shared])

    def make_room(self, count: int) -> None:
        """Evict so that ``count`` slots are free, or as many as can be: once for many sequences that are about to extend."""
        missing = count - self.slots.num_free
        if missing > 0:
            self._evict(missing)

    def extend(self, lease: Lease, count: int) -> bool:
        """Give the lease ``count`` more slots, evicting if need be; False, with nothing changed, when there are not enough."""
        missing = count - self.slots.num_free
        if missing > 0:
            if self.tree.stats().evictable < missing:
                return False
            self._evict(missing)
        end = lease.length + count
        self.page_table.views[lease.row][lease.length : end] = self.slots.allocate(count)
        lease.length = end
        return True

    def publish(self, lease: Lease, tokens: Tokens, length: int) -> None:
        """Store the first ``length`` tokens of the sequence, so that others share them.

        What somebody else has stored meanwhile is taken from there, and the lease's own copy is freed.
        """
        if not self.enabled or length <= lease.num_shared:
            return
        assert length <= lease.length
        old, shared = lease.node, lease.num_shared
        row = self.page_table.views[lease.row]
        stored = self.tree.insert(tokens[shared:length], row[shared:length], start=old, priority=lease.priority)
        if stored.num_present:
            self.slots.free(row[shared : shared + stored.num_present])
            row[shared : shared + stored.num_present] = stored.slots[: stored.num_present]
        if self.blocks is not None:
            self.blocks.stored(tokens, self.page_table.rows[lease.row], shared + stored.num_present, length, lease.namespace)
        self._move_lock(lease, stored.node, length)

    def adopt(self, lease: Lease, tokens: Tokens, length: int) -> int:
        """Re-match and take over what others computed of these tokens; returns how many of them the lease now covers.

        ``length`` positions of the lease are computed; its slots beyond them must not exist.  The lease is unchanged
        unless the tree covers more than ``length``.
        """
        if not self.enabled or lease.num_shared + self.tree.match_length(tokens[lease.num_shared :], start=lease.node) <= length:
            return length
        shared = lease.num_shared
        found = self.tree.match(tokens[shared:], start=lease.node)
        row = self.page_table.views[lease.row]
        self.slots.free(row[shared : lease.length])
        covered = shared + len(found.slots)
        row[shared:covered] = found.slots
        self._move_lock(lease, found.node, covered)
        lease.length = covered
        return covered

    def truncate(self, lease: Lease, length: int) -> None:
        """Give back the slots of positions from ``length`` on; they must be the lease's own."""
        assert length >= lease.num_shared, "[truncate] shared slots are the tree's"
        if length < lease.length:
            self.slots.free(self.page_table.views[lease.row][length : lease.length])
            lease.length = length

    def release(self, lease: Lease, tokens: Tokens, length: int, *, num_prompt: int = 0) -> None:
        """Close the lease; its first ``length`` tokens stay cached, the rest is freed.

        The first ``num_prompt`` of them are marked as used after the others: what was asked outlives what was answered.
        """
        self.publish(lease, tokens, length)
        self.truncate(lease, lease.num_shared)
        if self.reuse is not None:
            self.reuse.note_end(self.page_table.rows[lease.row, : lease.num_shared])
        self.tree.unlock(lease.node)
        self.page_table.give_row(lease.row)
        if self.enabled and 0 < num_prompt < length:
            self.tree.match(memoryview(tokens)[:num_prompt], namespace=lease.namespace)

    def holds_same(self, one: Lease | None, other: Lease | None, length: int) -> bool:
        """Whether two leases hold the same slots for their first ``length`` positions."""
        if one is None or other is None or length == 0 or min(one.length, other.length) < length:
            return False
        rows = self.page_table.rows  # a slot has one place in the tree, so whoever shares it shares all before it
        return bool(rows[one.row, length - 1] == rows[other.row, length - 1])

    def num_exclusive(self, leases: Sequence[Lease]) -> list[int]:
        """Return how many slots of each lease no other of them holds: what closing it alone would make evictable or free."""
        rows = [self.page_table.rows[lease.row, : lease.length] for lease in leases]
        holders = np.bincount(np.concatenate(rows), minlength=self.num_slots) if rows else np.zeros(0, dtype=np.int64)
        return [int((holders[row] == 1).sum()) for row in rows]

    def clear(self) -> None:
        """Forget every cached token; every lease is void."""
        self.tree.clear()
        self.slots.clear()
        self.page_table.clear()
        if self.pins is not None:
            self.pins.clear()
        if self.blocks is not None:
            self.blocks.cleared()

    def divergence(self, tokens: Tokens, namespace: Hashable) -> Divergence:
        """Say where ``tokens`` leave what is cached, changing nothing."""
        return Divergence(*self.tree.divergence(tokens, namespace=namespace)) if self.enabled else Divergence(0)

    def drop_tail(self, tokens: Tokens, namespace: Hashable, keep: int) -> None:
        """Forget the end of a sequence beyond its first ``keep`` tokens, as far as nobody uses, pins or goes on from it."""
        self._free_evicted(self.tree.drop_tail(tokens, namespace=namespace, keep=keep))

    def check_invariants(self, leases: Iterable[Lease]) -> None:
        """Raise AssertionError unless each slot is held exactly once and every lease reads what the tree stores."""
        ledger = [self.slots.free_slots(), self.tree.stored_slots()]
        num_locks = 0
        for lease in leases:
            num_locks += 1
            assert 0 <= lease.num_shared <= lease.length
            ledger.append(array("i", self.page_table.rows[lease.row, lease.num_shared : lease.length].tobytes()))
        counts = np.bincount(np.concatenate([np.frombuffer(part, dtype=np.int32) for part in ledger if part]), minlength=self.num_slots)
        assert len(counts) == self.num_slots and (counts == 1).all(), "slot ledger does not balance"
        assert num_locks + self.page_table.num_free == len(self.page_table.rows), "row ledger does not balance"
        self.tree.check_invariants()
        assert num_locks or not self.tree.stats().locked, "tokens are locked, but nobody runs"

    def _evict(self, num_slots: int) -> None:
        num_slots = max(num_slots, self.num_slots // EVICTION_BATCH)
        if self.pins is not None:
            self.pins.make_room(num_slots)
        self._free_evicted(self.tree.evict(num_slots))

    def _free_evicted(self, slots: Tokens) -> None:
        if self.blocks is not None:
            self.blocks.removed(slots)
        if self.reuse is not None:
            self.reuse.note_evicted(slots)
        self.slots.free(slots)

    def _move_lock(self, lease: Lease, node: int, num_shared: int) -> None:
        if node != lease.node:
            self.tree.lock(node)
            self.tree.unlock(lease.node)
            lease.node = node
        lease.num_shared = num_shared
