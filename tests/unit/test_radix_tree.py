"""The radix tree, case by case."""

from __future__ import annotations

from array import array

import pytest

from radixrt.cache.eviction import VictimQueue
from radixrt.cache.radix_tree import RadixTree


def ids(*values: int) -> array[int]:
    return array("i", values)


def filled(*texts: tuple[int, ...]) -> RadixTree:
    tree = RadixTree()
    slot = 0
    for text in texts:
        tree.insert(ids(*text), ids(*range(slot, slot + len(text))))
        slot += len(text)
    return tree


def test_a_split_keeps_both_halves_and_the_total() -> None:
    tree = filled((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 9, 10))
    assert tree.stats().evictable == 10
    assert tree.match(ids(1, 2, 3, 4, 999)).slots.tolist() == [0, 1, 2, 3]
    assert tree.stats().evictable == 10


def test_a_locked_prefix_survives_eviction() -> None:
    tree = filled((1, 2, 3, 4), (1, 2, 8, 9))
    tree.lock(tree.match(ids(1, 2, 3)).node)
    assert sorted(tree.evict(100)) == [3, 6, 7]
    assert tree.match_length(ids(1, 2, 3, 4)) == 3


def test_a_locked_handle_names_the_same_end_after_a_split() -> None:
    tree = filled((1, 2, 3, 4))
    node = tree.match(ids(1, 2, 3, 4)).node
    tree.lock(node)
    tree.match(ids(1, 2, 7))
    assert tree.insert(ids(5), ids(50), start=node).num_present == 0
    assert tree.match(ids(1, 2, 3, 4, 5)).slots.tolist() == [0, 1, 2, 3, 50]


def test_a_sequence_inserted_token_by_token_by_its_holder_is_one_node() -> None:
    tree = filled((1, 2))
    node = tree.match(ids(1, 2)).node
    tree.lock(node)
    for token in range(3, 50):
        assert tree.insert(ids(token), ids(token), start=node).node == node
    assert tree.stats().num_nodes == 1


def test_a_leaf_that_two_hold_does_not_grow_under_the_other() -> None:
    tree = filled((1, 2))
    node = tree.match(ids(1, 2)).node
    tree.lock(node)
    tree.lock(node)
    assert tree.insert(ids(3), ids(30), start=node).node != node
    assert tree.insert(ids(4), ids(40), start=node).num_present == 0
    assert tree.match(ids(1, 2, 4)).slots.tolist() == [0, 1, 40]


def test_eviction_trims_the_tail_of_the_least_recently_used_leaf() -> None:
    tree = filled((1, 1, 1, 1), (2, 2, 2, 2))
    tree.match(ids(1, 1, 1, 1))
    assert sorted(tree.evict(3)) == [5, 6, 7]
    assert tree.match_length(ids(2, 2)) == 1
    assert sorted(tree.evict(2)) == [3, 4]


def test_a_held_sequence_counts_as_used_until_it_is_let_go() -> None:
    tree = filled((1, 1), (2, 2))
    node = tree.match(ids(1, 1)).node
    tree.lock(node)
    tree.match(ids(2, 2))
    tree.match(ids(3))
    tree.unlock(node)
    assert sorted(tree.evict(2)) == [2, 3]


def test_namespaces_share_nothing_and_leave_nothing() -> None:
    tree = RadixTree()
    tree.insert(ids(1, 2), ids(0, 1), namespace=("salt",))
    assert tree.match_length(ids(1, 2)) == 0
    assert tree.match_length(ids(1, 2), namespace=("salt",)) == 2
    tree.evict(2)
    for salt in range(100):
        tree.match(ids(1, 2), namespace=(salt,))
    assert len(list(tree.walk())) <= 1
    tree.check_invariants()


def test_unlocking_what_is_not_locked_is_an_error() -> None:
    tree = filled((1,))
    with pytest.raises(AssertionError):
        tree.unlock(tree.match(ids(1)).node)


def test_victims_come_in_order_of_their_newest_priority() -> None:
    queue = VictimQueue()
    for leaf, priority in ((1, 5), (2, 3), (3, 4), (2, 9), (3, 4)):
        queue.push(leaf, (priority,))
    queue.discard(3)
    order = []
    while (leaf := queue.peek()) is not None:
        order.append(leaf)
        queue.discard(leaf)
    assert order == [1, 2]


def test_the_queue_does_not_grow_with_changes() -> None:
    queue = VictimQueue()
    for tick in range(10_000):
        queue.push(tick % 10, (tick,))
    assert len(queue._heap) < 200
