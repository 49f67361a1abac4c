"""Pins over a real tree and a real prefix cache: what they keep, when they end, and who makes way."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Protocol

import pytest

from radixrt.cache import select_tree
from radixrt.cache.pins import PinBoard
from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.errors import RequestError
from radixrt_kernels.ops import NATIVE

NUM_SLOTS = 100


class Make(Protocol):
    def __call__(self, *, budget: int = 50, max_ttl: float = 100.0) -> tuple[PrefixCache, PinBoard]: ...


@pytest.fixture(params=[False, True] if NATIVE else [False], ids=lambda native: "native" if native else "python")
def make(request: pytest.FixtureRequest) -> Make:
    return functools.partial(build, native=request.param)


def build(*, native: bool, budget: int = 50, max_ttl: float = 100.0) -> tuple[PrefixCache, PinBoard]:
    cache = PrefixCache(tree=select_tree("lru", native=native), num_slots=NUM_SLOTS, num_rows=4, max_length=NUM_SLOTS)
    cache.pins = PinBoard(cache.tree, budget=budget, max_ttl=max_ttl)
    return cache, cache.pins


def store(cache: PrefixCache, tokens: Sequence[int], namespace: str | None = None, *, others: Sequence[Lease] = ()) -> None:
    """Compute a sequence and let it go, while others hold leases."""
    sequence = array("i", tokens)
    lease = cache.admit(sequence, namespace)
    assert lease is not None
    assert cache.extend(lease, len(sequence) - lease.length)
    cache.release(lease, sequence, len(sequence))
    cache.check_invariants(others)


def cached(cache: PrefixCache, tokens: Sequence[int]) -> int:
    return cache.match_length(array("i", tokens), None)


def pin(board: PinBoard, id: str, tokens: Sequence[int], *, ttl: float = 10.0, now: float = 0.0) -> int:
    found = board.pin(id, array("i", tokens), namespace=None, ttl=ttl, now=now)
    return 0 if found is None else found.num_tokens


def test_pinned_prefix_outlives_younger_ones(make: Make) -> None:
    cache, board = make()
    store(cache, range(20))
    assert pin(board, "a", range(20)) == 20
    for start in (100, 200, 300, 400, 500):
        store(cache, range(start, start + 60))
    assert cached(cache, range(20)) == 20
    assert board.num_tokens == 20


def test_unpinned_prefix_goes_like_any_other(make: Make) -> None:
    cache, board = make()
    store(cache, range(20))
    pin(board, "a", range(20))
    assert board.unpin("a")
    assert not board.unpin("a")
    for start in (100, 200):
        store(cache, range(start, start + 60))
    assert cached(cache, range(20)) < 20


def test_only_what_is_cached_is_pinned(make: Make) -> None:
    cache, board = make()
    assert pin(board, "a", range(5)) == 0
    assert len(board) == 0
    store(cache, range(5))
    assert pin(board, "a", range(9)) == 5


def test_a_pin_ends_when_its_time_is_up(make: Make) -> None:
    cache, board = make()
    store(cache, range(5))
    pin(board, "a", range(5), ttl=10, now=3)
    board.tick(12.9)
    assert len(board) == 1
    board.tick(13)
    assert len(board) == 0
    assert cache.tree.stats().pinned == 0


def test_ttl_has_an_upper_bound(make: Make) -> None:
    cache, board = make(max_ttl=7)
    store(cache, range(5))
    pin(board, "a", range(5), ttl=1000)
    board.tick(7)
    assert len(board) == 0


@pytest.mark.parametrize(
    ("tokens", "namespace", "renewed"),
    [
        (range(20), None, True), (range(10), None, True), (range(9), None, False), ([*range(9), 77], None, False),
        (range(20), "b", False), (range(50, 65), None, False),
    ],
)
def test_a_pin_is_renewed_by_whoever_uses_all_of_it(make: Make, tokens: Sequence[int], namespace: str | None, renewed: bool) -> None:
    cache, board = make()
    for space in (None, "b"):
        store(cache, range(20), space)
        store(cache, range(50, 65), space)
    pin(board, "a", range(10), ttl=10)
    board.tick(8)
    lease = cache.admit(array("i", tokens), namespace)
    assert lease is not None
    cache.note_admitted(lease, array("i", tokens))
    cache.release(lease, array("i", tokens), lease.length)
    board.tick(9)
    board.tick(15)
    assert len(board) == renewed
    board.tick(19)
    assert len(board) == 0


def test_a_pin_is_not_renewed_by_a_request_that_computes_it_again(make: Make) -> None:
    cache, board = make()
    store(cache, range(20))
    pin(board, "a", range(10), ttl=10)
    board.note_match(array("i", range(20)), None, 9)  # as one that wants the logprobs of its prompt
    board.tick(9)
    board.tick(10)
    assert len(board) == 0


def test_the_same_name_replaces_what_it_named(make: Make) -> None:
    cache, board = make()
    store(cache, range(10))
    store(cache, range(100, 110))
    pin(board, "a", range(10))
    pin(board, "a", range(100, 110))
    assert (len(board), board.num_tokens, cache.tree.stats().pinned) == (1, 10, 10)


def test_shared_tokens_count_once(make: Make) -> None:
    cache, board = make()
    store(cache, range(30))
    store(cache, [*range(20), *range(100, 105)])
    pin(board, "a", range(30))
    pin(board, "b", range(20))
    pin(board, "c", [*range(20), *range(100, 105)])
    assert board.num_tokens == cache.tree.stats().pinned == 35
    board.unpin("a")
    assert board.num_tokens == cache.tree.stats().pinned == 25


def test_more_than_the_budget_is_refused_and_changes_nothing(make: Make) -> None:
    cache, board = make(budget=15)
    store(cache, range(20))
    store(cache, range(100, 110))
    pin(board, "b", range(100, 110))
    with pytest.raises(RequestError) as refused:
        pin(board, "a", range(20))
    assert refused.value.code == "pin_budget"
    assert (len(board), board.num_tokens) == (1, 10)


def test_the_pin_that_would_end_first_makes_way_in_the_budget(make: Make) -> None:
    cache, board = make(budget=25)
    for start in (0, 100, 200):
        store(cache, range(start, start + 10))
    pin(board, "long", range(10), ttl=90)
    pin(board, "short", range(100, 110), ttl=10)
    pin(board, "new", range(200, 210), ttl=5)
    assert not board.unpin("short")
    assert board.unpin("long")
    assert board.unpin("new")


def test_pins_never_refuse_a_running_request_and_the_first_to_end_goes_first(make: Make) -> None:
    cache, board = make(budget=100)
    for start in (0, 100, 200):
        store(cache, range(start, start + 30))
    pin(board, "long", range(30), ttl=90)
    pin(board, "short", range(100, 130), ttl=10)
    pin(board, "middle", range(200, 230), ttl=20)
    lease = cache.admit(array("i", range(500, 501)), None)
    assert lease is not None
    assert cache.extend(lease, 50)  # 10 are free, 30 come from the first, 10 from the second
    assert (board.unpin("short"), cached(cache, range(100, 130))) == (False, 0)
    assert (cached(cache, range(30)), cached(cache, range(200, 230))) == (30, 20)
    assert cache.extend(lease, 50)
    assert len(board) == 0
    assert not cache.extend(lease, 1)
    cache.check_invariants([lease])


def test_pins_in_use_by_running_requests_are_not_given_up_for_room_that_is_there(make: Make) -> None:
    cache, board = make(budget=100)
    store(cache, range(50))
    pin(board, "a", range(50))
    lease = cache.admit(array("i", range(50)), None)
    assert lease is not None
    store(cache, range(100, 140), others=[lease])
    store(cache, range(200, 240), others=[lease])  # takes the place of the one before, while the pinned prefix is locked
    assert len(board) == 1


def test_clearing_the_cache_forgets_the_pins(make: Make) -> None:
    cache, board = make()
    store(cache, range(10))
    pin(board, "a", range(10))
    cache.clear()
    assert (len(board), board.num_tokens) == (0, 0)
    board.tick(1000)
    store(cache, range(10))
    assert pin(board, "a", range(10)) == 10


def test_a_grown_sequence_does_not_grow_the_pin(make: Make) -> None:
    cache, board = make()
    sequence = array("i", range(10))
    lease = cache.admit(sequence, None)
    assert lease is not None
    cache.extend(lease, 10)
    cache.publish(lease, sequence, 10)
    pin(board, "a", range(10))
    longer = array("i", range(40))
    cache.extend(lease, 30)
    cache.release(lease, longer, 40)
    assert cache.tree.stats().pinned == 10
    store(cache, range(500, 590))
    assert cached(cache, range(40)) == 10
