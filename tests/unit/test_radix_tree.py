"""The radix tree, case by case, in Python and compiled."""

from __future__ import annotations

import time
from array import array

import pytest

from radixrt.cache import select_tree
from radixrt.cache.eviction import VictimQueue
from radixrt.cache.tree import Tree
from radixrt_kernels.ops import NATIVE


def ids(*values: int) -> array[int]:
    return array("i", values)


@pytest.fixture(params=["python", pytest.param("native", marks=pytest.mark.skipif(not NATIVE, reason="not built"))])
def tree(request: pytest.FixtureRequest) -> Tree:
    return select_tree("lru", native=request.param == "native")


def fill(tree: Tree, *texts: tuple[int, ...]) -> None:
    """Insert sequences whose slots are counted through: 0, 1, 2, …"""
    slot = tree.stats().evictable + tree.stats().locked
    for text in texts:
        tree.insert(ids(*text), ids(*range(slot, slot + len(text))))
        slot += len(text)


def test_a_split_keeps_both_halves_and_the_total(tree: Tree) -> None:
    fill(tree, (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 9, 10))
    assert tree.stats().evictable == 10
    assert tree.match(ids(1, 2, 3, 4, 999)).slots.tolist() == [0, 1, 2, 3]
    assert tree.stats().evictable == 10


def test_a_locked_prefix_survives_eviction(tree: Tree) -> None:
    fill(tree, (1, 2, 3, 4), (1, 2, 8, 9))
    tree.lock(tree.match(ids(1, 2, 3)).node)
    assert sorted(tree.evict(100)) == [3, 6, 7]
    assert tree.match_length(ids(1, 2, 3, 4)) == 3


def test_a_locked_handle_names_the_same_end_after_a_split(tree: Tree) -> None:
    fill(tree, (1, 2, 3, 4))
    node = tree.match(ids(1, 2, 3, 4)).node
    tree.lock(node)
    tree.match(ids(1, 2, 7))
    assert tree.insert(ids(5), ids(50), start=node).num_present == 0
    assert tree.match(ids(1, 2, 3, 4, 5)).slots.tolist() == [0, 1, 2, 3, 50]


def test_a_sequence_inserted_token_by_token_by_its_holder_is_one_node(tree: Tree) -> None:
    fill(tree, (1, 2))
    node = tree.match(ids(1, 2)).node
    tree.lock(node)
    for token in range(3, 50):
        assert tree.insert(ids(token), ids(token), start=node).node == node
    assert tree.stats().num_nodes == 1


def test_a_leaf_that_two_hold_does_not_grow_under_the_other(tree: Tree) -> None:
    fill(tree, (1, 2))
    node = tree.match(ids(1, 2)).node
    tree.lock(node)
    tree.lock(node)
    assert tree.insert(ids(3), ids(30), start=node).node != node
    assert tree.insert(ids(4), ids(40), start=node).num_present == 0
    assert tree.match(ids(1, 2, 4)).slots.tolist() == [0, 1, 40]


def test_eviction_trims_the_tail_of_the_least_recently_used_leaf(tree: Tree) -> None:
    fill(tree, (1, 1, 1, 1), (2, 2, 2, 2))
    tree.match(ids(1, 1, 1, 1))
    assert sorted(tree.evict(3)) == [5, 6, 7]
    assert tree.match_length(ids(2, 2)) == 1
    assert sorted(tree.evict(2)) == [3, 4]


def test_a_held_sequence_counts_as_used_until_it_is_let_go(tree: Tree) -> None:
    fill(tree, (1, 1), (2, 2))
    node = tree.match(ids(1, 1)).node
    tree.lock(node)
    tree.match(ids(2, 2))
    tree.match(ids(3))
    tree.unlock(node)
    assert sorted(tree.evict(2)) == [2, 3]


def test_namespaces_share_nothing_and_leave_nothing(tree: Tree) -> None:
    tree.insert(ids(1, 2), ids(0, 1), namespace=("salt",))
    assert tree.match_length(ids(1, 2)) == 0
    assert tree.match_length(ids(1, 2), namespace=("salt",)) == 2
    tree.evict(2)
    for salt in range(100):
        tree.match(ids(1, 2), namespace=(salt,))
    assert tree.stats().num_nodes == 0
    tree.check_invariants()


def test_unlocking_what_is_not_locked_is_an_error(tree: Tree) -> None:
    fill(tree, (1,))
    with pytest.raises(AssertionError):
        tree.unlock(tree.match(ids(1)).node)


def test_a_handle_whose_node_has_gone_is_noticed(tree: Tree) -> None:
    fill(tree, (1, 2))
    node = tree.match(ids(1, 2)).node
    tree.evict(2)
    fill(tree, (1, 2))
    with pytest.raises(KeyError):
        tree.lock(node)
    with pytest.raises(KeyError):
        tree.match(ids(3), start=node)


def test_what_is_pinned_goes_last_and_is_never_refused(tree: Tree) -> None:
    fill(tree, (1, 2, 3), (4, 5, 6))
    tree.pin(tree.match(ids(1, 2)).node)
    tree.match(ids(4, 5, 6))
    assert sorted(tree.evict(4)) == [2, 3, 4, 5], "what lies below a pin is not pinned"
    assert tree.stats().pinned == 2
    assert sorted(tree.evict(2)) == [0, 1]
    tree.check_invariants()


def test_a_pin_holds_what_eviction_has_left_of_its_path(tree: Tree) -> None:
    fill(tree, (1, 2), (1, 2, 3, 4))
    tree.pin(node := tree.match(ids(1, 2, 3, 4)).node)
    tree.evict(3)
    assert tree.stats().pinned == 1
    fill(tree, (1, 7))
    assert tree.stats().pinned == 1, "what grows there later is not pinned"
    tree.check_invariants()
    tree.unpin(node)
    assert tree.stats().pinned == 0
    tree.unpin(node)
    tree.check_invariants()


def test_a_pinned_leaf_does_not_grow_under_its_pin(tree: Tree) -> None:
    fill(tree, (1, 2))
    node = tree.match(ids(1, 2)).node
    tree.pin(node)
    tree.lock(node)
    assert tree.insert(ids(3), ids(30), start=node).node != node
    tree.unlock(node)
    assert tree.stats().pinned == 2


def test_a_watched_sequence_is_told_once_of_each_new_length(tree: Tree) -> None:
    assert tree.watch(7, ids(1, 2, 3, 4)) == 0
    fill(tree, (1, 2, 9))
    assert tree.take_changed() == [(7, 2)]
    assert tree.take_changed() == []
    fill(tree, (1, 2, 3, 4, 5))
    assert tree.take_changed() == [(7, 4)]
    tree.evict(100)
    assert tree.take_changed() == [(7, 0)]
    tree.unwatch(7)
    fill(tree, (1, 2))
    assert tree.take_changed() == []


def test_a_change_that_is_taken_back_is_not_told(tree: Tree) -> None:
    fill(tree, (1, 2))
    assert tree.watch(7, ids(1, 2, 3)) == 2
    fill(tree, (1, 2, 3))
    assert list(tree.drop_tail(ids(1, 2, 3), keep=2)) == [4]
    assert tree.take_changed() == []


def test_a_watched_leaf_that_grows_token_by_token_is_followed(tree: Tree) -> None:
    fill(tree, (1, 2))
    node = tree.match(ids(1, 2)).node
    tree.lock(node)
    tree.watch(7, ids(1, 2, 3, 4))
    tree.watch(8, ids(1, 2, 3, 9))
    for token, told in ((3, [(7, 3), (8, 3)]), (4, [(7, 4)]), (5, [])):
        tree.insert(ids(token), ids(token), start=node)
        assert sorted(tree.take_changed()) == told
        node = tree.match(ids(1, 2, 3, 4, 5)).node


def test_watching_reads_the_callers_tokens_in_place(tree: Tree) -> None:
    fill(tree, (1, 2, 3))
    assert tree.watch(7, memoryview(ids(0, 1, 2, 5))[1:]) == 2
    assert len(tree.watched_path(7)) == 1


def test_ten_thousand_watchers_of_a_hot_node_cost_nothing_when_another_goes_on_from_it(tree: Tree) -> None:
    fill(tree, tuple(range(100)))
    for key in range(10_000):
        tree.watch(key, ids(*range(100), 1_000_000 + key))
    start = time.perf_counter()
    for token in range(200):
        fill(tree, (*range(100), token))
        assert tree.take_changed() == []
    assert (time.perf_counter() - start) / 200 < 1e-3
    fill(tree, (*range(100), 1_000_042))
    assert tree.take_changed() == [(42, 101)]


def test_where_a_sequence_leaves_what_is_stored_is_shown(tree: Tree) -> None:
    fill(tree, (1, 2, 3, 4, 5), (1, 2, 3, 7, 8, 9))
    assert tree.divergence(ids(1, 2, 6), limit=2) == (2, [3, 7])
    assert tree.divergence(ids(1, 2, 3), limit=2) == (3, [7, 8]), "the path used last is shown"
    assert tree.divergence(ids(1, 2, 3, 4, 5)) == (5, [])
    assert tree.divergence(ids(5)) == (0, [1, 2, 3, 7, 8, 9])
    assert tree.divergence(ids(1), namespace="other") == (0, [])


def test_the_tree_is_described_from_the_top_and_the_largest_first(tree: Tree) -> None:
    fill(tree, (1, 2, 3), (1, 2, 4, 5, 6), (9,))
    shown = tree.describe()
    assert [(facts["first_tokens"], facts["tokens"], facts["subtree_tokens"], facts["children"]) for facts in shown] == [
        ([1, 2], 2, 6, 2), ([4, 5, 6], 3, 3, 0), ([3], 1, 1, 0), ([9], 1, 1, 0),
    ]
    assert [facts["parent"] for facts in shown] == [None, shown[0]["handle"], shown[0]["handle"], None]
    assert len(tree.describe(depth=1)) == 2
    assert len(tree.describe(min_tokens=2)) == 2
    assert tree.describe("other") == []


def test_the_end_of_a_sequence_is_dropped_unless_somebody_needs_it(tree: Tree) -> None:
    fill(tree, (1, 2, 3, 4), (1, 2, 5, 6))
    assert sorted(tree.drop_tail(ids(1, 2, 3, 4), keep=3)) == [3]
    assert list(tree.drop_tail(ids(1, 2), keep=0)) == [], "others go on from there"
    tree.lock(tree.match(ids(1, 2, 5, 6)).node)
    assert list(tree.drop_tail(ids(1, 2, 5, 6), keep=0)) == []
    assert sorted(tree.drop_tail(ids(1, 2, 3), keep=0)) == [2]
    tree.check_invariants()


def test_victims_come_in_order_of_their_newest_priority() -> None:
    queue = VictimQueue()
    for leaf, priority in ((1, 5), (2, 3), (3, 4), (2, 9), (3, 4)):
        queue.push(leaf, (priority,))
    queue.discard(3)
    order = []
    while (first := queue.peek()) is not None:
        order.append(first[1])
        queue.discard(first[1])
    assert order == [1, 2]


def test_the_queue_does_not_grow_with_changes() -> None:
    queue = VictimQueue()
    for tick in range(10_000):
        queue.push(tick % 10, (tick,))
    assert len(queue._heap) < 200
