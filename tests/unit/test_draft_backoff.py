"""How many drafts are worth it: by what they cost, and by how often the model agreed."""

from __future__ import annotations

import itertools

import pytest

from radixrt.schedule.backoff import DraftBackoff, draft_cost


def expected_gain(agreement: float, cost: float, count: int) -> float:
    """Steps saved less what the drafts cost, in steps."""
    return sum(agreement**place for place in range(1, count + 1)) - cost * count


@pytest.mark.parametrize(("agreed", "refused", "cost"), list(itertools.product((0, 3, 40), (0, 2, 30), (0.05, 0.3, 0.6, 0.85))))
def test_as_many_drafts_are_made_as_pay(agreed: int, refused: int, cost: float) -> None:
    backoff = DraftBackoff()
    for _ in range(agreed):
        backoff.note(1, 1)
    for _ in range(refused):
        backoff.note(5, 0)
    agreement = (9 + agreed) / (10 + agreed + refused)
    best = max(range(65), key=lambda count: (expected_gain(agreement, cost, count), -count))
    assert backoff.limit(cost, 64) == best
    assert backoff.limit(cost, 3) == min(3, best)


def test_what_costs_nothing_is_always_drafted_and_what_costs_a_step_never() -> None:
    backoff = DraftBackoff()
    for _ in range(50):
        backoff.note(8, 0)
    assert backoff.limit(0.0, 16) == 16
    assert DraftBackoff().limit(1.0, 16) == 0
    assert DraftBackoff().limit(0.5, 0) == 0


def test_a_request_that_was_refused_tries_again_after_a_while() -> None:
    backoff = DraftBackoff()
    for _ in range(30):
        backoff.note(2, 0)
    waits = next(count for count in range(1000) if backoff.limit(0.6, 16))
    assert 10 < waits < 200


def test_what_does_not_pay_for_a_new_request_is_never_tried_however_long_it_waits() -> None:
    backoff = DraftBackoff()
    assert not any(backoff.limit(0.92, 16) for _ in range(1000))
    backoff.note(2, 0)
    assert not any(backoff.limit(0.92, 16) for _ in range(1000))
    for _ in range(30):
        backoff.note(1, 1)
    assert backoff.limit(0.92, 16) > 0, "but what the model agrees with is"


def test_rows_share_what_a_step_costs_once() -> None:
    costs = [draft_cost(0.2, rows) for rows in (1, 2, 8, 1000)]
    assert costs[0] == pytest.approx(0.2)
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(1.0, abs=0.01)
    assert draft_cost(0.0, 4) == 0.0
    assert draft_cost(1.0, 4) == 1.0
