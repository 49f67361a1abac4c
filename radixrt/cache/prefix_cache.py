"""Who holds which slot: the tree, the free slots and the page-table rows kept in one ledger.

A running sequence holds a ``Lease``: a page-table row whose first ``num_shared`` slots are the tree's, kept there by a
lock on ``node``, and whose other slots are its own.  Every operation keeps

    free + owned by leases + held by the tree == all slots, each exactly once.

Only the scheduler calls this, and only with counts of tokens whose K/V is computed by steps already launched: steps run
in order, so whoever is handed a slot later reads what was written before.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from radixrt.cache.radix_tree import RadixTree
from radixrt.cache.slots import PageTable, SlotAllocator

Tokens = array


@dataclass(slots=True)
class Lease:
    """What one running sequence holds.  Positions [0, num_shared) are shared, [num_shared, length) its own."""

    row: int
    namespace: Hashable
    node: int
    num_shared: int
    length: int


class PrefixCache:
    """Admit, extend, publish and release sequences of tokens over ``num_slots`` slots.

    With ``enabled=False`` nothing is ever matched or stored: every sequence owns all its slots.
    """

    def __init__(self, *, tree: RadixTree, num_slots: int, num_rows: int, max_length: int, enabled: bool = True) -> None:
        self.tree = tree
        self.slots = SlotAllocator(num_slots)
        self.page_table = PageTable(num_rows, max_length)
        self.enabled = enabled

    @property
    def num_slots(self) -> int:
        return self.slots.num_slots

    @property
    def num_available(self) -> int:
        """Slots that an ``extend`` can get, by eviction if need be."""
        return self.slots.num_free + self.tree.stats().evictable

    def match_length(self, tokens: Tokens[int], namespace: Hashable) -> int:
        """Return how many leading tokens are cached, changing nothing."""
        return self.tree.match_length(tokens, namespace=namespace) if self.enabled else 0

    def admit(self, tokens: Tokens[int], namespace: Hashable) -> Lease | None:
        """Open a lease on the longest cached prefix of ``tokens``; None when no row is free."""
        if not self.page_table.num_free:
            return None
        found = self.tree.match(tokens if self.enabled else tokens[:0], namespace=namespace)
        self.tree.lock(found.node)
        lease = Lease(self.page_table.take_row(), namespace, found.node, len(found.slots), len(found.slots))
        self.page_table.rows[lease.row, : lease.length] = found.slots
        return lease

    def extend(self, lease: Lease, count: int) -> bool:
        """Give the lease ``count`` more slots, evicting if need be; False, with nothing changed, when there are not enough."""
        missing = count - self.slots.num_free
        if missing > 0:
            if self.num_available < count:
                return False
            self.slots.free(self.tree.evict(missing))
        end = lease.length + count
        self.page_table.rows[lease.row, lease.length : end] = self.slots.allocate(count)
        lease.length = end
        return True

    def publish(self, lease: Lease, tokens: Tokens[int], length: int) -> None:
        """Store the first ``length`` tokens of the sequence, so that others share them.

        What somebody else has stored meanwhile is taken from there, and the lease's own copy is freed.
        """
        if not self.enabled or length <= lease.num_shared:
            return
        assert length <= lease.length
        old, shared = lease.node, lease.num_shared
        row = self.page_table.rows[lease.row]
        stored = self.tree.insert(tokens[shared:length], array("i", row[shared:length].tobytes()), start=old)
        if stored.num_present:
            self.slots.free(row[shared : shared + stored.num_present].tolist())
            row[shared : shared + stored.num_present] = stored.slots[: stored.num_present]
        self._move_lock(lease, stored.node, length)

    def adopt(self, lease: Lease, tokens: Tokens[int], length: int) -> int:
        """Re-match and take over what others computed of these tokens; returns how many of them the lease now covers.

        ``length`` positions of the lease are computed; its slots beyond them must not exist.  The lease is unchanged
        unless the tree covers more than ``length``.
        """
        if not self.enabled or lease.num_shared + self.tree.match_length(tokens[lease.num_shared :], start=lease.node) <= length:
            return length
        shared = lease.num_shared
        found = self.tree.match(tokens[shared:], start=lease.node)
        row = self.page_table.rows[lease.row]
        self.slots.free(row[shared : lease.length].tolist())
        covered = shared + len(found.slots)
        row[shared:covered] = found.slots
        self._move_lock(lease, found.node, covered)
        lease.length = covered
        return covered

    def truncate(self, lease: Lease, length: int) -> None:
        """Give back the slots of positions from ``length`` on; they must be the lease's own."""
        assert length >= lease.num_shared, "[truncate] shared slots are the tree's"
        if length < lease.length:
            self.slots.free(self.page_table.rows[lease.row, length : lease.length].tolist())
            lease.length = length

    def release(self, lease: Lease, tokens: Tokens[int], length: int) -> None:
        """Close the lease; its first ``length`` tokens stay cached, the rest is freed."""
        self.publish(lease, tokens, length)
        self.truncate(lease, lease.num_shared)
        self.tree.unlock(lease.node)
        self.page_table.give_row(lease.row)

    def clear(self) -> None:
        """Forget every cached token; every lease is void."""
        self.tree.clear()
        self.slots.clear()
        self.page_table.clear()

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

    def _move_lock(self, lease: Lease, node: int, num_shared: int) -> None:
        if node != lease.node:
            self.tree.lock(node)
            self.tree.unlock(lease.node)
            lease.node = node
        lease.num_shared = num_shared
