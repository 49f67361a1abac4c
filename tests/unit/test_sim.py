"""The parts of the simulator, each against what it is to mean."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from radixrt.config import ScheduleConfig
from radixrt.sim.cost import StepCost, Work, fit, relative_errors
from radixrt.sim.fairness import Fairness
from radixrt.sim.grammar import Choices
from radixrt.sim.model import VOCAB_SIZE, HashModel, Text, stored_value
from radixrt.sim.runner import allowed_by


def test_a_context_is_hashed_alike_token_by_token_and_at_once() -> None:
    model = HashModel(50)
    text = Text(model, [3, 1, 4], 1, 9)
    for token in (1, 5, 9, 2, 6):
        text.push(token)
    assert model.read(np.array([stored_value(token, 1) for token in text.tokens], dtype=np.int64)) == text.context


@pytest.mark.parametrize("tokens", [[3, 1, 4, 1], [1, 3, 4, 1], [3, 1, 4], [3, 1, 4, 2]])
@pytest.mark.parametrize("namespace", [0, 1])
def test_another_token_place_or_namespace_is_another_hash(tokens: list[int], namespace: int) -> None:
    model = HashModel(10)
    same = tokens == [3, 1, 4, 1] and namespace == 0
    assert (Text(model, tokens, namespace, 0).context == Text(model, [3, 1, 4, 1], 0, 0).context) == same


def test_the_next_token_depends_on_the_seed_and_obeys_the_grammar() -> None:
    text = Text(HashModel(10), [3, 1, 4], 0, 0)
    others = {Text(text.model, text.tokens, 0, seed).next_token(None) for seed in range(200)}
    assert others == set(range(VOCAB_SIZE))
    assert {Text(text.model, text.tokens, 0, seed).next_token([7, 11]) for seed in range(20)} == {7, 11}


def test_a_mask_allows_what_its_grammar_says_and_drafts_what_is_forced() -> None:
    state = Choices({0: [5], 1: [6], 2: [7, 31]}, 4).new_state()
    assert state.draft(10) == [5, 6] and state.draft(1) == [5]
    assert not state.accept(6) and state.accept(5) and state.accept(6)
    row = np.full(1, -1, dtype=np.int32)
    state.fill_mask(row)
    assert allowed_by(int(row[0])) == (7, 31)
    state.rollback(1)
    assert state.draft(10) == [6] and not state.is_finished()


def test_a_cost_is_found_again_from_what_it_makes_of_steps(tmp_path: Path) -> None:
    rng = random.Random(0)
    cost = StepCost(step=5e-3, prefill_token=1e-3, decode_row=2e-3, context_token=3e-6)
    works = [Work(rng.randrange(500), rng.randrange(16), rng.randrange(20_000)) for _ in range(200)]
    found = fit((work, cost.seconds(work) * rng.uniform(0.95, 1.05)) for work in works)
    assert relative_errors(found, [(work, cost.seconds(work)) for work in works])[-1] < 0.05
    found.save(tmp_path / "profile.json", model="toy")
    assert StepCost.load(tmp_path / "profile.json") == found


def test_no_part_of_a_cost_is_negative() -> None:
    works = [Work(10, 0, 0), Work(10, 0, 10_000), Work(20, 0, 100)]
    found = fit(zip(works, (1.0, 0.9, 1.9), strict=True))
    assert min(found.step, found.prefill_token, found.decode_row, found.context_token) >= 0.0


def test_passes_are_counted_only_after_a_turn_has_come_and_by_newcomers() -> None:
    fairness = Fairness(ScheduleConfig(schedule_policy="lpm", lpm_max_passes=2))
    fairness.arrived(0, num_waiting=2)  # its turn comes with the third admission
    for uid in range(1, 5):
        fairness.arrived(uid, num_waiting=uid)
    for uid in (1, 2, 3):
        fairness.passed({uid}, {uid})
    for uid in range(5, 8):
        fairness.arrived(uid, num_waiting=2)
    for uid in (4, 5, 6):  # the first of these was there when its turn came
        fairness.passed({uid}, {uid})
    with pytest.raises(AssertionError, match="request 0"):
        fairness.passed({7}, {7})


@pytest.mark.parametrize(
    "schedule",
    [
        ScheduleConfig(schedule_policy="random"),
        ScheduleConfig(schedule_policy="lpm", lpm_max_passes=0),
        ScheduleConfig(schedule_policy="lpm", enable_priority_scheduling=True),
    ],
)
def test_settings_that_promise_no_bound_are_held_to_none(schedule: ScheduleConfig) -> None:
    assert Fairness(schedule).most_passes is None
