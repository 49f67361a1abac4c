"""Expected output lengths, and what running requests will take and give back."""

from __future__ import annotations

import random

import pytest

from radixrt.schedule.estimate import BASE_LEVEL, DECAY_STEPS, ENOUGH, MIN_GROWTH, WINDOW, Forecast, OutputEstimate
from radixrt.schedule.request import Request
from radixrt.types import GenerateRequest, SamplingParams


def request(*, done: int = 0, max_new: int = 100, stops: bool = True) -> Request:
    given = GenerateRequest(uid=0, prompt=[1, 2], sampling=SamplingParams())
    made = Request(given, max_length=2 + max_new, stop_ids=frozenset({9} if stops else ()))
    made.num_verified += done
    return made


def learnt(*lengths: int) -> OutputEstimate:
    estimate = OutputEstimate()
    for length in lengths:
        estimate.learn(length)
    return estimate


def test_before_anything_is_learnt_a_share_of_the_limit_is_expected() -> None:
    assert OutputEstimate().remaining(request(max_new=1000)) == int(BASE_LEVEL * 1000)
    assert OutputEstimate(0.5).remaining(request(max_new=1000)) == int(BASE_LEVEL * 500)
    assert OutputEstimate(9.0).remaining(request(max_new=1000)) == 1000


def test_what_can_only_end_at_its_limit_is_known() -> None:
    assert OutputEstimate().remaining(request(max_new=1000, stops=False)) == 1000
    assert learnt(*[5] * 100).remaining(request(done=10, max_new=1000, stops=False)) == 990


def test_a_quantile_of_what_has_ended_is_expected_within_the_limit() -> None:
    estimate = learnt(*range(100))
    assert estimate.remaining(request(max_new=1000)) == pytest.approx(70, abs=2)
    assert estimate.remaining(request(max_new=50)) == 50
    # Of those that got beyond 80, seven in ten ended by 94.
    assert estimate.remaining(request(done=80, max_new=1000)) == pytest.approx(14, abs=2)


def test_whoever_outlives_all_that_ended_is_given_as_much_again() -> None:
    assert learnt(*[10] * ENOUGH).remaining(request(done=40, max_new=1000)) == 40
    assert learnt(*[10] * ENOUGH).remaining(request(done=1, max_new=1)) == 0
    assert learnt(*[2] * ENOUGH).remaining(request(done=1, max_new=1000)) == MIN_GROWTH


def test_old_lengths_are_forgotten() -> None:
    estimate = learnt(*[1000] * WINDOW, *[20] * WINDOW)
    assert estimate.remaining(request(max_new=2000)) == 20


def test_a_retraction_makes_careful_and_that_wears_off() -> None:
    estimate = OutputEstimate()
    estimate.retracted()
    estimate.retracted()
    assert estimate.level == pytest.approx(1 - (1 - BASE_LEVEL) / 4)
    levels = []
    for _ in range(DECAY_STEPS):
        estimate.stepped()
        levels.append(estimate.level)
    assert levels == sorted(levels, reverse=True)
    assert levels[10] > BASE_LEVEL
    assert levels[-1] == BASE_LEVEL


def brute_peak(requests: list[tuple[int, int, int]]) -> int:
    """(held, pending, growth) of each; step by step, each takes a slot a step and then gives back all that is its own."""
    worst = used = sum(pending for _, pending, _ in requests)
    for step in range(1, max((growth for _, _, growth in requests), default=0) + 1):
        used += sum(step <= growth for _, _, growth in requests)
        worst = max(worst, used)
        used -= sum(held + pending + growth for held, pending, growth in requests if growth == step)
    return worst


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_a_walk_through_the_steps(seed: int) -> None:
    rng = random.Random(seed)
    requests = [(rng.randrange(20), rng.randrange(1, 10), rng.randrange(1, 30)) for _ in range(rng.randrange(1, 8))]
    forecast = Forecast()
    for held, pending, growth in requests[1:]:
        forecast.add(held=held, pending=pending, growth=growth)
    assert forecast.peak() == brute_peak(requests[1:])
    _, pending, growth = requests[0]
    assert forecast.peak(pending=pending, growth=growth) == brute_peak([(0, pending, growth), *requests[1:]])


def test_when_names_the_first_end_that_leaves_enough() -> None:
    forecast = Forecast()
    forecast.add(held=10, pending=0, growth=5)
    forecast.add(held=20, pending=0, growth=50)
    # After 5 steps the first has given its 10 and what it grew by back; the second has grown by 5.
    assert forecast.when(need=8, available=5) == (5, 2)
    assert forecast.when(need=20, available=5) == (50, 15)
