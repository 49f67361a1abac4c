"""Admission, priorities, time, retraction and sharing, on the real scheduler and cache without a model."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling import Drive, counts

from radixrt.errors import Overloaded
from radixrt.schedule.admission import MAX_SKIPS
from radixrt.schedule.deadlines import Deadlines
from radixrt.schedule.delayer import PrefillDelayer
from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.priority import Priorities
from radixrt.schedule.request import Request, Status
from radixrt.schedule.step import ScheduledStep
from radixrt.types import FinishReason, GenerateRequest, SamplingParams

PREAMBLE = list(range(1, 61))


def test_a_request_that_does_not_fit_is_skipped_and_not_delayed_by_those_that_go_ahead() -> None:
    drive = Drive(num_slots=100, budget=200)
    drive.add(0, [1] * 40, 20)  # ends after 20 steps, and gives 60 slots back
    drive.step()
    drive.add(1, [2] * 70, 10)  # must wait for that
    drive.add(2, [3] * 10, 5)  # ends before
    drive.add(3, [4] * 20, 25)  # would still run then, and leave too little
    drive.add(4, [5] * 5, 4)
    drive.step()
    assert drive.running() == [0, 2, 4]
    while 0 not in drive.finished:
        drive.step()
    drive.step()
    assert drive.running() == [1]
    drive.drain()
    assert drive.started == [0, 2, 4, 1, 3] and not drive.scheduler.counters.retractions


def test_alone_it_would_have_started_no_sooner() -> None:
    drive = Drive(num_slots=100, budget=200)
    drive.add(0, [1] * 40, 20)
    drive.step()
    drive.add(1, [2] * 70, 10)
    steps = 0
    while 1 not in drive.started:
        drive.step()
        steps += 1
    with_others = Drive(num_slots=100, budget=200)
    with_others.add(0, [1] * 40, 20)
    with_others.step()
    with_others.add(1, [2] * 70, 10)
    for uid in range(2, 30):
        with_others.add(uid, [uid] * 8, 3)
    for _ in range(steps):
        with_others.step()
    assert 1 in with_others.started and len(with_others.started) > 5


def test_a_request_is_skipped_only_so_often() -> None:
    drive = Drive(num_slots=100, budget=200)
    drive.add(0, [1] * 10, 80)
    drive.step()
    drive.add(1, [2] * 60, 20)
    for uid in range(2, 1000):
        drive.add(uid, [3, uid], 1)
    for _ in range(75):
        drive.step()
    assert 1 not in drive.started and drive.running() == [0], "what ends soon goes ahead of it, but not for ever"
    assert len(drive.started) == 1 + MAX_SKIPS * 7
    drive.drain()
    assert drive.started[1 + MAX_SKIPS * 7] == 1


def test_what_others_share_is_not_counted_on_when_one_of_them_ends() -> None:
    drive = Drive(num_slots=100, budget=200)
    drive.add(0, [*PREAMBLE, 100], 5)
    drive.add(1, [*PREAMBLE, 101], 20)
    drive.step()
    drive.add(2, [200] * 20, 19)
    drive.step()
    assert drive.running() == [0, 1], "the preamble stays when the first ends, and the second grows"
    drive.drain()
    assert not drive.scheduler.counters.retractions


def test_every_place_taken_means_waiting_and_a_place_left_means_running() -> None:
    drive = Drive(max_running=2)
    for uid in range(4):
        drive.add(uid, [uid, 1, 2], 3 if uid else 6)
    drive.step()
    assert drive.running() == [0, 1]
    drive.drain()
    assert drive.started == [0, 1, 2, 3]
    assert [drive.requests[uid].waits for uid in range(4)] == [{}, {}, {"slots": 3.0}, {"slots": 6.0}]


def test_the_reasons_of_waiting_add_up_to_the_time_waited() -> None:
    drive = Drive(num_slots=120, max_running=3, budget=16)
    prompts = {uid: [uid * 7 % 50 + 1] * (10 + uid * 5) for uid in range(8)}
    for uid, prompt in prompts.items():
        drive.add(uid, prompt, 8)
        drive.now += 0.5
    drive.drain()
    for request in drive.requests.values():
        assert request.admitted is not None
        assert sum(request.waits.values()) == pytest.approx(request.admitted - request.arrived)
        assert min(request.waits.values(), default=0.0) >= 0.0
    reasons = {reason for request in drive.requests.values() for reason, seconds in request.waits.items() if seconds}
    assert {"budget"} < reasons <= {"memory", "slots", "budget", "order"}


def test_one_that_goes_on_with_what_is_being_computed_waits_for_the_prefix() -> None:
    drive = Drive(budget=16)
    drive.add(0, [*PREAMBLE, 200])
    drive.step()
    drive.add(1, [*PREAMBLE, 201])
    drive.add(2, [300] * 20)
    for _ in range(3):
        drive.step()
    drive.drain()
    assert drive.requests[1].waits.get("prefix", 0.0) > 0.0
    assert "prefix" not in drive.requests[2].waits
    assert drive.scheduler.counters.computed_tokens == 61 + 1 + 20 + 3 * 3, "nothing of the preamble is computed twice"


def test_a_full_queue_refuses() -> None:
    drive = Drive(max_running=1, max_queued=2)
    drive.add(0, [1, 2])
    drive.step()
    drive.add(1, [1, 2])
    drive.add(2, [1, 2], priority=-5)
    with pytest.raises(Overloaded):
        drive.add(3, [1, 2], priority=100)
    drive.drain()
    assert set(drive.finished) == {0, 1, 2}, "without priority scheduling priorities mean nothing"


def test_in_a_full_queue_the_lowest_priority_makes_place_for_a_higher_one() -> None:
    drive = Drive(max_running=1, max_queued=2, priorities=Priorities())
    drive.add(0, [1, 2])
    drive.step()
    drive.add(1, [1, 2], priority=1)
    drive.add(2, [1, 2], priority=2)
    with pytest.raises(Overloaded):
        drive.add(3, [1, 2], priority=1)
    drive.add(4, [1, 2], priority=2)
    drive.drain()
    assert (drive.finished[1].reason, drive.finished[1].status) == (FinishReason.ABORT, 429)
    assert all(drive.finished[uid].reason is FinishReason.LENGTH for uid in (0, 2, 4)) and 3 not in drive.finished


def test_who_waits_or_runs_too_long_is_told_so() -> None:
    drive = Drive(max_running=1, deadlines=Deadlines(waiting=5.0, running=8.0))
    drive.add(0, [1, 2], 100)
    drive.add(1, [1, 2], 100)
    for _ in range(5):
        drive.step()
    assert set(drive.finished) == set()
    drive.step()
    assert drive.finished[1].status == 503 and "waited" in (drive.finished[1].message or "")
    for _ in range(3):
        drive.step()
    assert drive.finished[0].status == 503 and "ran" in (drive.finished[0].message or "")
    assert len(drive.tokens[0]) == 8, "what there is is given"
    assert not drive.scheduler.has_work() and drive.scheduler.counters.timeouts == 2


def test_what_was_waited_before_the_queue_counts_for_limits_and_reasons() -> None:
    drive = Drive(max_running=1, deadlines=Deadlines(waiting=5.0), name="fcfs")
    drive.now = 10.0
    drive.add(0, [1, 2], 50)
    request = Request(GenerateRequest(uid=1, prompt=[3, 4], sampling=SamplingParams()), max_length=6)
    request.waits["grammar"] = 4.0
    drive.scheduler.add(request, drive.now)
    assert request.arrived == 6.0
    while request.status is not Status.FINISHED:
        drive.scheduler.commit(step := drive.scheduler.schedule(drive.now), drive.results(step))
        drive.now += 0.5
    assert drive.now == 11.5, "a second in the queue is the fifth"
    assert request.waits == {"grammar": 4.0, "slots": 1.0}


def test_a_retracted_request_no_longer_has_a_waiting_deadline() -> None:
    drive = Drive(max_running=1, deadlines=Deadlines(waiting=5.0), priorities=Priorities(preemption=10))
    drive.add(0, [1, 2], 4)
    drive.step()
    drive.add(1, [1, 3], 20, priority=50)
    drive.drain()
    assert drive.finished[0].reason is FinishReason.LENGTH and drive.requests[0].num_retractions == 1


@pytest.mark.parametrize(("priority", "preempts"), [(10, False), (11, True)])
@pytest.mark.parametrize("scarce", ["rows", "slots"])
def test_preemption_needs_more_than_the_threshold(priority: int, preempts: bool, scarce: str) -> None:
    sizes = {"rows": {"max_running": 2}, "slots": {"num_slots": 60, "max_running": 8}}[scarce]
    drive = Drive(priorities=Priorities(preemption=10), **sizes)
    drive.add(0, [1] * 10, 20)
    drive.add(1, [2] * 10, 20)
    drive.step()
    assert drive.running() == [0, 1]
    drive.add(2, [3] * 10, 20, priority=priority)
    drive.step()
    assert drive.running() == ([0, 2] if preempts else [0, 1]), "of equals the newest makes way"
    drive.drain()
    assert drive.scheduler.counters.preemptions == int(preempts)
    assert all(len(tokens) == 20 for tokens in drive.tokens.values())


def test_who_was_preempted_does_not_come_back_in_the_same_pass() -> None:
    drive = Drive(num_slots=60, priorities=Priorities(preemption=0))
    drive.add(0, [1] * 19, 15)
    drive.add(1, [2] * 13, 13)
    drive.step()
    drive.add(2, [3] * 19, 14, priority=20)
    assert [row.request.uid for row in drive.step().rows] == [2], "the newest did not hold enough, so both have made way"
    assert drive.scheduler.counters.preemptions == 2
    assert 1 in [row.request.uid for row in drive.step().rows], "there is room for it beside the other"
    drive.drain()
    assert all(not request.lease and drive.finished[uid].status is None for uid, request in drive.requests.items())


def test_nobody_is_preempted_in_vain() -> None:
    drive = Drive(num_slots=100, priorities=Priorities(preemption=0))
    drive.add(0, [1] * 50, 20, priority=9)
    drive.add(1, [2] * 5, 10)
    drive.step()
    drive.add(2, [3] * 50, 20, priority=5)
    drive.step()
    assert 1 in drive.running() and not drive.scheduler.counters.preemptions, "what it holds would not be enough"
    drive.drain()


def test_what_was_gained_by_waiting_protects_from_preemption() -> None:
    drive = Drive(max_running=1, priorities=Priorities(aging=1.0, preemption=10))
    drive.add(0, [1, 2], 40, priority=20)
    drive.step()
    drive.add(1, [1, 3], 40)
    while 1 not in drive.running():
        drive.step()
    drive.add(2, [1, 4], 4, priority=20)
    drive.drain()
    assert drive.scheduler.counters.preemptions == 0


def test_decodes_are_never_left_out_for_a_prompt() -> None:
    drive = Drive(budget=8)
    for uid in range(3):
        drive.add(uid, [uid, 5], 40)
    drive.step()
    drive.add(9, [7] * 100, 2)
    for _ in range(12):
        step = counts(drive.step())
        assert all(step[uid] == 1 for uid in range(3))
        assert step[9] == 5


def test_no_more_run_than_a_step_has_tokens_for() -> None:
    drive = Drive(budget=3, max_running=7)
    for uid in range(7):
        drive.add(uid, [uid, 5, 6, 7], 12)
    while drive.scheduler.has_work():
        decoding = [request.uid for request in drive.scheduler.running if not request.prefilling]
        step = counts(drive.step())
        assert all(step[uid] == 1 for uid in decoding if uid in drive.running())
    assert len(drive.finished) == 7


def test_prompts_share_a_step_up_to_their_own_limit() -> None:
    drive = Drive(budget=64, max_prefill_tokens=16)
    drive.add(0, [1] * 40, 2)
    drive.add(1, [2] * 10, 2)
    assert counts(drive.step()) == {0: 16}
    assert counts(drive.step()) == {0: 16}
    assert counts(drive.step()) == {0: 8, 1: 8}


def test_whole_prompts_are_not_cut_and_the_first_may_be_too_long() -> None:
    drive = Drive(budget=1000, max_prefill_tokens=16, whole_prompts=True)
    drive.add(0, [1] * 40, 2)
    drive.add(1, [2] * 10, 2)
    drive.add(2, [3] * 6, 2)
    drive.add(3, [4] * 1, 2)
    assert counts(drive.step()) == {0: 40}
    assert counts(drive.step()) == {0: 1, 1: 10, 2: 6}
    assert counts(drive.step())[3] == 1
    drive.drain()


@pytest.mark.parametrize(("name", "first"), [("shortest-prefill-first", {0: 10, 1: 6}), ("fcfs", {0: 16}), ("lpm", {0: 16})])
def test_a_prompt_in_chunks_leaves_room_to_a_shorter_one_where_the_shortest_goes_first(name: str, first: dict[int, int]) -> None:
    drive = Drive(budget=16, name=name)
    drive.add(0, range(100))
    drive.step()
    drive.add(1, range(200, 206))
    drive.add(2, range(300, 400))
    assert counts(drive.step()) == first


@pytest.mark.parametrize(
    ("options", "length", "priority"),
    [({"max_running": 1}, 6, 0), ({}, 90, 0), ({"num_slots": 124}, 20, 0), ({"priorities": Priorities()}, 6, -1)],
    ids=["no place", "more to compute", "no room", "lower priority"],
)
def test_a_prompt_in_chunks_leaves_nothing_to_whoever_could_not_start(options: dict[str, Any], length: int, priority: int) -> None:
    drive = Drive(budget=16, name="shortest-prefill-first", **options)
    drive.add(0, range(100), 20)
    drive.step()
    drive.add(1, range(200, 200 + length), priority=priority)
    assert counts(drive.step()) == {0: 16}


def test_a_long_prompt_goes_on_under_an_endless_stream_of_short_ones() -> None:
    drive = Drive(budget=16, name="shortest-prefill-first", num_slots=4000)
    drive.add(0, range(400), 1)
    for uid in range(1, 200):
        drive.add(uid, range(1000 * uid, 1000 * uid + 15), 1)
        drive.step()
        if 0 in drive.finished:
            break
    assert 0 in drive.finished and uid <= 400 / 4 + 2, "a quarter of each step is its own"


def test_guessed_tokens_leave_prompts_their_share() -> None:
    class Guess:
        def draft(self, tokens: object, max_tokens: int) -> list[int]:
            return [998] * max_tokens

    drive = Drive(budget=20, decode_share=0.5, drafter=Guess())
    for uid in range(2):
        drive.add(uid, [uid, 5], 200)
    drive.step()
    drive.step()
    drive.add(2, [7] * 50, 2)
    for _ in range(3):
        step = counts(drive.step())
        assert step[0] + step[1] == 10 and step[2] == 10
    drive.drain()


def test_small_prompts_are_gathered_when_asked_for() -> None:
    drive = Drive(delayer=PrefillDelayer(min_tokens=12, max_passes=3))
    drive.add(0, [1, 2], 30)
    drive.step()
    assert drive.running() == [0], "nobody runs whom it would hold up"
    drive.add(1, [1, 3, 3], 2)
    for _ in range(3):
        drive.step()
    assert 1 not in drive.started
    drive.step()
    assert 1 in drive.started
    assert drive.requests[1].waits["delayed"] == 3.0
    drive.drain()


@pytest.mark.parametrize(
    ("prompts", "num_slots", "victim"),
    [
        # What the second and third share would stay, so they give too little back.
        ([[1] * 20, [*range(100, 120), 1], [*range(100, 120), 2], [2] * 5], 75, 3),
        # Each gives enough back; the third has least to compute again.
        ([[1] * 40, [2] * 60, [3] * 30, [4] * 50], 200, 2),
        # The first costs least, but nobody came before it.
        ([[1] * 30, [2] * 60, [3] * 50, [4] * 55], 210, 2),
    ],
)
def test_the_victim_is_whoever_costs_least_to_bring_back(prompts: list[list[int]], num_slots: int, victim: int) -> None:
    drive = Drive(num_slots=num_slots, budget=300, estimate=OutputEstimate(0.0))
    for uid, prompt in enumerate(prompts):
        drive.add(uid, prompt, 30, length=30)
    while not drive.scheduler.counters.retractions:
        drive.step()
    assert [request.uid for request in drive.requests.values() if request.num_retractions] == [victim]
    drive.drain()
    assert all(len(tokens) == 30 for tokens in drive.tokens.values())


@pytest.mark.parametrize("num_slots", [130, 200, 400])
def test_a_pool_that_is_too_small_for_what_was_expected_makes_no_storm(num_slots: int) -> None:
    drive = Drive(num_slots=num_slots, max_running=16, estimate=OutputEstimate(0.05))
    for uid in range(60):
        drive.add(uid, [uid] * 8, 100, length=30 + uid * 13 % 60)
    drive.drain()
    counters = drive.scheduler.counters
    assert 0 < counters.retractions < 2 * len(drive.requests)
    assert max(request.num_retractions for request in drive.requests.values()) <= 8
    needed = sum(request.num_prompt + len(drive.tokens[uid]) - 1 for uid, request in drive.requests.items())
    assert counters.computed_tokens < 1.5 * needed


def test_usage_is_counted_once_whatever_happens_on_the_way() -> None:
    drive = Drive(num_slots=130, max_running=16, estimate=OutputEstimate(0.0))
    for uid in range(12):
        drive.add(uid, [*PREAMBLE[:20], uid], 60, length=50)
    drive.drain()
    assert drive.scheduler.counters.retractions
    assert drive.scheduler.counters.generated_tokens == 12 * 50
    for uid, output in drive.last.items():
        assert len(drive.tokens[uid]) == 50 and 0 <= output.cached_tokens <= 20


@pytest.mark.parametrize("how", ["sent back", "started over"])
def test_what_is_cached_of_a_prompt_is_counted_once_also_when_it_begins_again(how: str) -> None:
    drive = Drive(budget=8)
    request = drive.add(0, range(1, 41))
    for _ in range(2):
        drive.step()
        store(drive, request, 30)  # by somebody else, meanwhile
        drive.step()
        assert request.num_cached == drive.scheduler.counters.cached_prompt_tokens == 22
        if how == "sent back":
            drive.scheduler.pause(retract=True)
            drive.scheduler.resume()
        else:
            drive.scheduler.fail(ScheduledStep([]), "broken")
    drive.drain()
    assert drive.last[0].cached_tokens == 22


def store(drive: Drive, request: Request, count: int) -> None:
    """Put the beginning of a request's prompt into the cache."""
    cache = drive.scheduler.cache
    slots = cache.slots.allocate(count)
    cache.slots.free(slots[: cache.tree.insert(request.tokens[:count], slots, namespace=request.namespace).num_present])


def test_branches_share_every_slot_of_the_prompt() -> None:
    drive = Drive(num_slots=1000, budget=256)
    for uid in range(4):
        drive.add(uid, PREAMBLE, 10)
    drive.step()
    cache = drive.scheduler.cache
    rows = {tuple(cache.page_table.rows[r.lease.row, :60]) for r in drive.scheduler.running if r.lease is not None}
    assert len(rows) == 1, "one set of slots for all of them"
    assert cache.num_slots - cache.slots.num_free == 60
    assert drive.scheduler.counters.computed_tokens == 60 + 3, "each computes the last token, to get logits"


def test_a_branch_of_a_running_request_shares_what_that_has_generated() -> None:
    drive = Drive(num_slots=1000, budget=256)
    parent = drive.add(0, PREAMBLE, 40)
    for _ in range(11):
        drive.step()
    child = drive.add(1, [*PREAMBLE, *drive.tokens[0], 5], 4)
    drive.step()
    assert parent.lease is not None and child.lease is not None
    rows = drive.scheduler.cache.page_table.rows
    assert child.num_cached == 60 + 11, "all there is, what the parent computes in the same step too"
    assert list(rows[child.lease.row, :71]) == list(rows[parent.lease.row, :71])


def test_what_was_asked_outlives_what_was_answered() -> None:
    drive = Drive(num_slots=300, budget=256, eviction_policy="lfu")
    for uid in range(3):
        drive.add(uid, [uid * 100 + i for i in range(1, 31)], 21)
        drive.drain()
    cache = drive.scheduler.cache

    def cached(request: Request) -> int:
        return cache.match_length(request.tokens, ())

    assert [cached(drive.requests[uid]) for uid in range(3)] == [50, 50, 50]
    cache.slots.free(cache.tree.evict(60))
    assert [cached(drive.requests[uid]) for uid in range(3)] == [30, 30, 30]


def test_stats_of_the_pool_hold_after_everything_ended() -> None:
    drive = Drive(num_slots=64, max_running=4, budget=16, name="lpm", estimate=OutputEstimate(0.0))
    for uid in range(20):
        drive.add(uid, [*PREAMBLE[: uid % 7 * 3], uid], 12, length=10)
        if uid % 5 == 4:
            drive.scheduler.abort(uid - 2)
    drive.drain()
    cache = drive.scheduler.cache
    assert cache.num_available == 64 and len(drive.finished) == 20
