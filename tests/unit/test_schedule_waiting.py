"""The waiting queue ages, the wait clock knows for what a request waited, and deadlines pass."""

from __future__ import annotations

import math

import pytest

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.schedule import policy, waits
from radixrt.schedule.deadlines import Deadlines
from radixrt.schedule.delayer import PrefillDelayer
from radixrt.schedule.queue import MIN_GRACE, PATIENCE, WaitingQueue
from radixrt.schedule.request import Request
from radixrt.schedule.waits import WaitClock
from radixrt.types import GenerateRequest, SamplingParams


def request(uid: int, *, priority: int = 0, arrived: float = 0.0) -> Request:
    made = Request(GenerateRequest(uid=uid, prompt=[uid, 1, 2], sampling=SamplingParams(), priority=priority), max_length=10)
    made.arrival, made.arrived, made.level = uid, arrived, -priority
    return made


def queue(name: str = "fcfs", *, aging: float | None = None, max_passes: int = 0) -> WaitingQueue:
    cache = PrefixCache(tree=RadixTree(), num_slots=100, num_rows=4, max_length=100)
    return WaitingQueue(cache, policy.select(name, max_passes=max_passes), aging=aging)


def order(waiting: WaitingQueue) -> list[int]:
    return [ticket.request.uid for ticket in waiting.head(100)]


def test_a_low_priority_that_has_waited_long_enough_overtakes_a_high_one() -> None:
    waiting = queue(aging=10.0)
    waiting.add(request(0, priority=0), 0.0)
    waiting.add(request(1, priority=3, arrived=5.0), 5.0)
    waiting.begin(20.0, [], 0)
    assert order(waiting) == [1, 0]
    waiting.add(request(2, priority=3, arrived=31.0), 31.0)
    waiting.begin(31.0, [], 0)
    assert order(waiting) == [1, 0, 2], "three steps of priority are thirty seconds"


def test_without_ageing_a_low_priority_waits_for_ever() -> None:
    waiting = queue()
    waiting.add(request(0, priority=0), 0.0)
    waiting.begin(1e9, [], 0)
    waiting.add(request(1, priority=1, arrived=1e9), 1e9)
    assert order(waiting) == [1, 0]


def hot(uid: int) -> Request:
    made = Request(GenerateRequest(uid=uid, prompt=[9, 1, 2], sampling=SamplingParams()), max_length=10)
    made.arrival = uid
    return made


def admit(waiting: WaitingQueue) -> int:
    """A pass that admits the first."""
    ticket = waiting.first(())
    assert ticket is not None
    waiting.remove(ticket.request)
    waiting.passed([ticket.request])
    return ticket.request.uid


def with_hot_prefix(max_passes: int) -> WaitingQueue:
    waiting = queue("lpm", max_passes=max_passes)
    waiting._cache.tree.insert(hot(0).tokens, waiting._cache.slots.allocate(3), namespace=())
    return waiting


@pytest.mark.parametrize(("max_passes", "times"), [(1, 1), (5, 5), (64, MIN_GRACE), (0, 19)])
def test_newcomers_pass_one_over_only_so_often(max_passes: int, times: int) -> None:
    waiting = with_hot_prefix(max_passes)
    waiting.add(request(0), 0.0)
    for uid in range(100, 120):
        waiting.add(hot(uid), 0.0)
        if (first := admit(waiting)) == 0:
            break
        assert first == uid
    assert uid - 100 == times


def test_passes_count_only_from_when_first_come_first_served_would_have_run_it() -> None:
    waiting = with_hot_prefix(2)
    for uid in range(4):
        waiting.add(hot(uid), 0.0)
    waiting.add(request(4), 0.0)
    order = []
    for uid in range(5, 20):
        waiting.add(hot(uid), 0.0)
        order.append(admit(waiting))
    # Its turn comes after six admissions; those that are there by then, up to number 10, still go ahead, then two more.
    assert math.ceil(PATIENCE * 4) == 6
    assert order == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 4, 13, 14]


def test_a_crowd_that_came_at_once_is_served_by_the_policy_alone() -> None:
    waiting = with_hot_prefix(1)
    for uid in range(10, 30):
        waiting.add(request(uid) if uid % 2 else hot(uid), 0.0)
    assert [admit(waiting) for _ in range(20)] == [*range(10, 30, 2), *range(11, 30, 2)]


def test_nothing_ages_while_nobody_is_admitted() -> None:
    waiting = queue("lpm", max_passes=1)
    waiting.add(request(0), 0.0)
    for _ in range(10):
        waiting.passed([])
    (ticket,) = waiting.head(1)
    assert not ticket.overdue


def test_the_worst_is_the_lowest_priority_and_of_these_the_latest_that_never_ran() -> None:
    waiting = queue()
    requests = [request(0, priority=5), request(1, priority=1), request(2, priority=1), request(3, priority=-9)]
    requests[3].admitted = 1.0
    for one in requests:
        waiting.add(one, 0.0)
    worst = waiting.worst()
    assert worst is not None and worst.request.uid == 2


def test_seconds_are_counted_by_reason() -> None:
    clock, a, b = WaitClock(), request(0), request(1)
    clock.add(a, 10.0)
    clock.passed(10.0, waits.SLOTS, {})
    clock.add(b, 11.0)
    clock.passed(13.0, waits.BUDGET, {0: waits.MEMORY})
    clock.passed(14.0, waits.BUDGET, {})
    clock.passed(16.0, waits.ORDER, {})
    clock.remove(a)
    clock.advance(20.0)
    clock.remove(b)
    assert a.waits == {"slots": 3.0, "memory": 1.0, "budget": 2.0}
    assert b.waits == {"slots": 2.0, "budget": 3.0, "order": 4.0}


def test_deadlines_pass_in_order_and_once() -> None:
    deadlines = Deadlines(waiting=5.0, running=3.0)
    deadlines.arrive(1, 0.0)
    deadlines.arrive(2, 1.0)
    deadlines.start(1, 1.0)
    assert list(deadlines.take_expired(3.9)) == []
    assert list(deadlines.take_expired(6.0)) == [(1, True), (1, False), (2, False)]
    assert list(deadlines.take_expired(9.0)) == []
    never = Deadlines()
    never.arrive(1, 0.0)
    never.start(1, 0.0)
    assert list(never.take_expired(1e9)) == []


def test_small_prompts_are_held_back_for_so_many_passes_and_seconds_at_most() -> None:
    delayer = PrefillDelayer(min_tokens=10, max_passes=3, max_seconds=None)
    assert [delayer.holds(5, 0.0) for _ in range(5)] == [True, True, True, False, True]
    assert not delayer.holds(10, 0.0)
    timed = PrefillDelayer(min_tokens=10, max_passes=100, max_seconds=0.5)
    assert [timed.holds(5, now) for now in (1.0, 1.2, 1.4, 1.5, 1.6)] == [True, True, True, False, True]
