"""Bounded wait under adversarial arrivals, and that everything ends whatever arrives."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Drive

from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.priority import Priorities
from radixrt.schedule.queue import PATIENCE

HOT = list(range(1, 21))

# What arrives before a step: prompts that are hot (0 .. 9 tokens of their own) or cold (10 ..), and output lengths.
ARRIVALS = st.lists(st.lists(st.tuples(st.integers(0, 13), st.integers(1, 6)), max_size=4), min_size=1, max_size=40)


def prompt(uid: int, kind: int) -> list[int]:
    return [*HOT, *range(1000 + uid * 10, 1000 + uid * 10 + kind % 10 + 1)] if kind < 10 else [2000 + uid * 30 + i for i in range(kind + 5)]


@settings(max_examples=40, deadline=None)
@given(arrivals=ARRIVALS, max_passes=st.integers(1, 5), max_running=st.integers(1, 4), num_slots=st.sampled_from([60, 90, 1000]))
def test_nobody_is_passed_over_more_often_than_allowed(
    arrivals: list[list[tuple[int, int]]], max_passes: int, max_running: int, num_slots: int
) -> None:
    """Passed over: a pass admits one that came after the turn of another that still waits."""
    drive = Drive(num_slots=num_slots, max_running=max_running, budget=32, name="lpm", max_passes=max_passes)
    uid = admissions = 0
    turn: dict[int, int] = {}
    newcomers: dict[int, int] = {}  # the first uid that came after the turn
    passed_over: dict[int, int] = {}
    hot_forever = [(0, 1)]
    for step in range(400):
        for kind, max_new in arrivals[step] if step < len(arrivals) else hot_forever if step < len(arrivals) + 60 else []:
            turn[uid] = admissions + math.ceil(PATIENCE * len(drive.scheduler.waiting))
            passed_over[uid] = 0
            drive.add(uid, prompt(uid, kind), max_new)
            uid += 1
            newcomers.update({other: uid for other, at in turn.items() if other not in newcomers and at <= admissions})
        waiting = [request.uid for request in drive.scheduler.waiting]
        drive.step()
        admitted = [u for u in waiting if drive.requests[u].admitted is not None]
        for other in set(waiting) - set(admitted):
            if admitted and max(admitted) >= newcomers.get(other, uid):
                passed_over[other] += 1
                assert passed_over[other] <= max_passes
        admissions += len(admitted)
        newcomers.update({other: uid for other, at in turn.items() if other not in newcomers and at <= admissions})
        if not drive.scheduler.has_work():
            break
    drive.drain()
    assert len(drive.finished) == uid


@settings(max_examples=40, deadline=None)
@given(
    arrivals=ARRIVALS,
    name=st.sampled_from(["lpm", "fcfs", "lof", "dfs-weight", "hrrn", "shortest-prefill-first", "random", "routing-key", "priority"]),
    num_slots=st.sampled_from([40, 60, 200]),
    max_running=st.integers(1, 6),
    priorities=st.booleans(),
    conservativeness=st.sampled_from([0.0, 1.0]),
    data=st.data(),
)
def test_everything_ends_with_its_whole_answer(
    arrivals: list[list[tuple[int, int]]], name: str, num_slots: int, max_running: int, priorities: bool, conservativeness: float,
    data: st.DataObject,
) -> None:
    obeyed = priorities and name in ("lpm", "fcfs", "lof", "shortest-prefill-first", "priority")
    drive = Drive(
        num_slots=num_slots, max_running=max_running, budget=16, name=name, estimate=OutputEstimate(conservativeness),
        priorities=Priorities(aging=5.0, preemption=3) if obeyed else None,
    )
    uid = 0
    lengths = {}
    for batch in arrivals:
        for kind, max_new in batch:
            lengths[uid] = max_new
            drive.add(uid, prompt(uid, kind), 8, length=max_new, priority=kind - 5, routing_key="abc"[kind % 3])
            uid += 1
        drive.step()
        if drive.scheduler.has_work() and data.draw(st.integers(0, 9)) == 0:
            drive.scheduler.abort(gone := data.draw(st.integers(0, uid)))
            lengths.pop(gone, None)
    drive.drain()
    assert len(drive.finished) == uid
    for each, length in lengths.items():
        assert len(drive.tokens[each]) == length
    counters = drive.scheduler.counters
    assert counters.retractions <= 4 * max(1, uid) + counters.preemptions
