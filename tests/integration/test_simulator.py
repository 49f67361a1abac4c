"""The executable specification's workloads and its removed-rule mutations, on the real scheduler and core."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from removed_rules import REMOVED_RULES
from simulator import SETTINGS, Outcome, check_seed, run, workload

# Settings that exercise each rule: small and large pools, with everything on, one of each switched off.
BUSY = [s for s in SETTINGS if s["cache"] and (s["jump"] or s["draft"])]


@pytest.mark.parametrize("seed", range(2))
def test_every_setting_gives_the_same_text(seed: int) -> None:
    outcomes = check_seed(seed)
    counters = [outcome.core._scheduler.counters for outcome in outcomes]
    assert sum(c.retractions for c in counters) > 0, "the small pools must retract"
    assert sum(c.accepted_drafts for c in counters) > 0 and any(c.accepted_drafts < c.drafted_tokens for c in counters)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_slots", [40, 400])
def test_aborts_at_any_moment_leave_nothing_behind(seed: int, num_slots: int) -> None:
    outcome = run(seed, num_slots=num_slots, budget=3 if seed % 2 else 64, aborts=True)
    whole = run(seed)
    for uid, text in outcome.texts.items():
        assert whole.texts[uid][: len(text)] == text, "an aborted answer is the beginning of the whole one"


@pytest.mark.parametrize("removed", REMOVED_RULES)
def test_a_removed_rule_is_noticed(removed: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    references = {seed: run(seed, cache=False, overlap=False, jump=False) for seed in range(3)}
    removed(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        compare(references)


def compare(references: Mapping[int, Outcome]) -> None:
    for seed, reference in references.items():
        for setting in BUSY:
            options = dict(setting)
            answers = list(reference.texts.values()) if options.pop("draft") else None
            assert run(seed, answers=answers, **options).texts == reference.texts  # type: ignore[arg-type]


def test_the_workloads_cover_what_they_claim() -> None:
    arrivals = [a for seed in range(2) for a in workload(seed)]
    assert any(a.forced for a in arrivals) and any(a.request.sampling.temperature > 0 for a in arrivals)
    assert any(a.request.sampling.frequency_penalty for a in arrivals) and any(a.request.sampling.min_new_tokens for a in arrivals)
