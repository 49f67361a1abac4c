"""The deterministic simulator: histories break no promise, and a scheduler without one of its rules is found out."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from removed_rules import REMOVED_RULES

from radixrt.cache.kv_events import BlockLog
from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.engine.grammars import GrammarDesk
from radixrt.engine.step_loop import StepLoop
from radixrt.schedule.queue import WaitingQueue
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import Scheduler
from radixrt.schedule.step import ScheduledStep
from radixrt.schedule.waits import WaitClock
from radixrt.sim.__main__ import HISTORIES_A_TASK, main, run
from radixrt.sim.compiler import SimulatedCompiler
from radixrt.sim.fairness import Fairness
from radixrt.sim.history import OPERATIONS, Settings, draw
from radixrt.sim.people import People
from radixrt.sim.search import CHECK_EVERY, DEFAULT_LENGTH, live, quiet, replay, shrink
from radixrt.sim.world import World
from radixrt.types import Finish, FinishReason, GenerateRequest, GrammarSpec, TokenOutput

CI_STEPS = 300_000  # some 160 s of CPU, on all cores; `python -m radixrt.sim` lives as many as wanted
NOTICED_WITHIN = 20_000


def trust_failed_steps(patch: pytest.MonkeyPatch) -> None:
    """A step that failed after its requests were aborted keeps what it published and never wrote."""
    fail = StepLoop._fail

    def wrong(loop: StepLoop, step: ScheduledStep | None, error: Exception) -> list[TokenOutput]:
        return [] if step is not None and all(row.is_void for row in step.rows) else fail(loop, step, error)

    patch.setattr(StepLoop, "_fail", wrong)


def lose_outputs(patch: pytest.MonkeyPatch) -> None:
    """A failed step takes the outputs of the one before with it."""
    commit = StepLoop._commit

    def wrong(loop: StepLoop, flight: object, outputs: list[TokenOutput]) -> bool:
        done = commit(loop, flight, outputs)  # type: ignore[arg-type]
        if not done:
            outputs.clear()
        return done

    patch.setattr(StepLoop, "_commit", wrong)


def keep_refuted_slots(patch: pytest.MonkeyPatch) -> None:
    """Slots that a refuted draft held stay with the lease."""
    patch.setattr(PrefixCache, "truncate", lambda cache, lease, length: None)


def leak_locks(patch: pytest.MonkeyPatch) -> None:
    """A cancelled request leaves its prefix locked."""
    finish = Scheduler._finish

    def wrong(scheduler: Scheduler, request: Request, end: Finish, *rest: object) -> None:
        if request.lease is not None and end.reason is FinishReason.ABORT:
            scheduler.cache.tree.lock(request.lease.node)
        finish(scheduler, request, end, *rest)  # type: ignore[arg-type]

    patch.setattr(Scheduler, "_finish", wrong)


def no_ageing(patch: pytest.MonkeyPatch) -> None:
    """Nobody's turn ever comes."""
    patch.setattr(WaitingQueue, "_count_turns", lambda queue: None)


def hold_streams_back(patch: pytest.MonkeyPatch) -> None:
    """Now and then a step is for prompts only."""
    num_new = Request.num_new
    schedule = Scheduler.schedule

    def wrong(scheduler: Scheduler, now: float = 0.0) -> ScheduledStep:
        with pytest.MonkeyPatch.context() as inner:
            if int(now * 1000) % 3 == 0:
                behind = property(lambda request: num_new.__get__(request) if request.prefilling else 0)
                inner.setattr(Request, "num_new", behind)
            return schedule(scheduler, now)

    patch.setattr(Scheduler, "schedule", wrong)


def count_too_much(patch: pytest.MonkeyPatch) -> None:
    """Who waits is told of seconds that never were."""
    passed = WaitClock.passed
    patch.setattr(WaitClock, "passed", lambda clock, now, common, own: passed(clock, now + 1.0, common, own))


def tell_too_little(patch: pytest.MonkeyPatch) -> None:
    """Whoever follows the events is not told what is evicted."""
    patch.setattr(BlockLog, "removed", lambda log, slots: None)


def say_nothing_of_the_cancelled(patch: pytest.MonkeyPatch) -> None:
    """Who hangs up while a grammar is compiled is forgotten without a last output."""
    patch.setattr(GrammarDesk, "_end", lambda desk, uid, finish: desk._service.release(desk._waiting.pop(uid).job))


def keep_jobs(patch: pytest.MonkeyPatch) -> None:
    """Whoever leaves the desk still wants its grammar."""
    patch.setattr(SimulatedCompiler, "release", lambda compiler, job: None)


def mix_grammars_up(patch: pytest.MonkeyPatch) -> None:
    """A request is given the grammar that was asked for last."""
    add = GrammarDesk.add

    def wrong(desk: GrammarDesk, request: GenerateRequest, spec: GrammarSpec, now: float) -> None:
        add(desk, request, spec, now)
        for waiting in desk._waiting.values():
            waiting.job = list(desk._waiting.values())[-1].job

    patch.setattr(GrammarDesk, "add", wrong)


@pytest.mark.slow
def test_histories_break_no_promise() -> None:
    tally, failure = run(CI_STEPS, seed=0, jobs=os.cpu_count() or 1, length=DEFAULT_LENGTH, check_every=CHECK_EVERY)
    assert failure is None, str(failure)
    assert tally.steps >= CI_STEPS and tally.retractions and tally.faults


@pytest.mark.parametrize("jobs", [1, 2])
def test_as_many_steps_are_lived_as_asked_for_with_any_number_of_jobs(jobs: int) -> None:
    tally, failure = run(300, seed=0, jobs=jobs, length=20, check_every=CHECK_EVERY)
    assert failure is None and tally.steps >= 300 and tally.histories % HISTORIES_A_TASK == 0


def ages(settings: Settings) -> bool:
    return Fairness(settings.schedule).most_passes == settings.schedule.lpm_max_passes


# Each rule, and the settings that it matters under: histories with these come first.
REMOVED: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Settings], bool]]] = [
    *((removed, lambda settings: settings.drafts) for removed in REMOVED_RULES),
    (trust_failed_steps, lambda settings: settings.faults),
    (lose_outputs, lambda settings: settings.faults),
    (keep_refuted_slots, lambda settings: settings.drafts),
    (leak_locks, lambda settings: True),
    (no_ageing, ages),
    (hold_streams_back, lambda settings: True),
    (count_too_much, lambda settings: True),
    (tell_too_little, lambda settings: True),
    (say_nothing_of_the_cancelled, lambda settings: True),
    (keep_jobs, lambda settings: True),
    (mix_grammars_up, lambda settings: True),
]


@pytest.mark.parametrize(("removed", "matters"), REMOVED, ids=[removed.__name__ for removed, _ in REMOVED])
def test_a_removed_rule_is_noticed(
    removed: Callable[[pytest.MonkeyPatch], None], matters: Callable[[Settings], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    removed(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        live_until_noticed(matters)


def live_until_noticed(matters: Callable[[Settings], bool]) -> None:
    steps = 0
    with quiet():
        for seed in sorted(range(200), key=lambda seed: not matters(draw(seed, 0).settings)):
            if steps > NOTICED_WITHIN:
                return
            steps += live(draw(seed, 400)).steps


def test_a_history_is_lived_the_same_way_everywhere() -> None:
    code = "from radixrt.sim.history import draw; from radixrt.sim.search import live, quiet\n"
    code += "with quiet():\n  import sys; sys.stdout.write(' '.join(str(live(draw(seed, 300)).digest()) for seed in range(4)))"
    digests = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and len(set(digests.pop().split())) == 4


def test_a_history_that_breaks_is_shrunk_saved_and_lived_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = PrefixCache.publish

    def too_much(cache: PrefixCache, lease: Lease, tokens: array[int], length: int) -> None:
        publish(cache, lease, tokens, min(lease.length, length + 1))

    monkeypatch.setattr(PrefixCache, "publish", too_much)
    file = tmp_path / "failure.json"
    assert main(["--steps", "20000", "--save", str(file)]) == 1
    assert "seed" in capsys.readouterr().out
    failure = replay(file)
    assert failure is not None and len(failure.operations) < 40
    assert main(["--replay", str(file)]) == 1
    monkeypatch.undo()
    assert replay(file) is None and main(["--replay", str(file)]) == 0


def test_histories_do_everything_they_can() -> None:
    seen: dict[str, int] = dict.fromkeys(OPERATIONS, 0)
    for seed in range(20):
        for name, _ in draw(seed, 400).operations:
            seen[name] += 1
    assert all(seen.values())
    settings = [draw(seed, 0).settings for seed in range(60)]
    for field in dataclasses.fields(settings[0]):
        assert len({getattr(s, field.name) for s in settings}) > 1, field.name


def test_a_stuck_scheduler_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(draw(0, 0).settings)
    People(world).apply(("arrive", 1))
    monkeypatch.setattr(Scheduler, "schedule", lambda *rest: ScheduledStep(()))
    with pytest.raises(AssertionError, match="nothing moves"):
        world.drain()


def test_shrinking_keeps_what_breaks() -> None:
    history = draw(3, 100)
    assert shrink(history).error == "breaks only with sampled checks", "this one breaks nothing"
