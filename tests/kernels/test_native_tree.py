"""What only the compiled tree can get wrong: memory, borrowed buffers, handles and the numbers behind namespaces.

That it answers like the Python tree is the property test's business.
"""

from __future__ import annotations

import gc
import sys
from array import array

import numpy as np
import pytest

from radixrt_kernels import ops

needs_native = pytest.mark.skipif(not ops.NATIVE, reason="not built")


def ids(*values: int) -> array[int]:
    return array("i", values)


@needs_native
@pytest.mark.parametrize("wrong", [[1, 2], b"1234", array("q", [1]), array("f", [1.0]), np.zeros(2, np.int64), np.zeros((2, 2), np.int32)])
def test_tokens_of_another_kind_are_refused(wrong: object) -> None:
    tree = ops.native_radix_tree("lru")
    for name, args in (("match", [wrong]), ("insert", [wrong, ids(1, 2)]), ("insert", [ids(1, 2), wrong]), ("watch", [1, wrong])):
        with pytest.raises(TypeError, match="int32"):
            getattr(tree, name)(*args)
    tree.check_invariants()
    assert tree.stats().num_nodes == 0


@needs_native
def test_tokens_and_slots_may_differ_in_number_only_by_mistake() -> None:
    tree = ops.native_radix_tree("lru")
    with pytest.raises(AssertionError, match="one slot a token"):
        tree.insert(ids(1, 2), ids(1))


@needs_native
@pytest.mark.parametrize("handle", [-1, 0, 1 << 62, (1 << 63) - 1])
def test_a_handle_nobody_gave_out_is_refused(handle: int) -> None:
    tree = ops.native_radix_tree("lru")
    tree.insert(ids(1), ids(1))
    for call in (tree.lock, tree.unlock, tree.pin):
        with pytest.raises(KeyError):
            call(handle)
    tree.unpin(handle)


@needs_native
def test_watched_tokens_stay_while_they_are_watched_and_no_longer() -> None:
    tree = ops.native_radix_tree("lru")
    tokens = ids(1, 2, 3)
    tree.watch(1, memoryview(tokens)[:2])
    with pytest.raises(BufferError):
        tokens.append(4)
    tree.unwatch(1)
    tokens.append(4)
    count = sys.getrefcount(tokens)
    tree.watch(2, tokens)
    del tree
    gc.collect()
    assert sys.getrefcount(tokens) == count
    tokens.append(5)


@needs_native
def test_namespaces_are_forgotten_when_nothing_is_left_of_them() -> None:
    tree = ops.native_radix_tree("lru")
    names = [("salt", str(i)) for i in range(1000)]
    counts = [sys.getrefcount(name) for name in names]
    for i, name in enumerate(names):
        tree.insert(ids(1, i), ids(2 * i, 2 * i + 1), namespace=name)
        tree.watch(i, ids(1), namespace=name)
    assert tree.num_namespaces() == 1001
    assert [facts["namespace"] for facts in tree.describe(names[7])] == [names[7]]
    tree.evict(2000)
    assert tree.num_namespaces() == 1001, "they are watched"
    for i in range(1000):
        tree.unwatch(i)
    for name in names:
        tree.match(ids(1), namespace=name)
    assert tree.num_namespaces() <= 2
    tree.match(ids(1))
    tree.clear()
    assert tree.num_namespaces() == 1
    del name
    assert [sys.getrefcount(name) for name in names] == counts


@needs_native
def test_a_namespace_that_cannot_be_hashed_is_refused() -> None:
    tree = ops.native_radix_tree("lru")
    with pytest.raises(TypeError, match="unhashable"):
        tree.match(ids(1), namespace=["a"])
    tree.check_invariants()


@needs_native
def test_nodes_take_little_room_and_give_it_back() -> None:
    tree = ops.native_radix_tree("lru")
    for i in range(20_000):
        tree.insert(ids(i, 1, 2, 3), ids(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3))
    assert tree.memory_bytes() / 20_000 < 400
    tree.clear()
    assert tree.memory_bytes() < 100_000
