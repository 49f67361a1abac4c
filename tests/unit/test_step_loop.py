"""The order of a step's lines, and what becomes of everybody when one of them breaks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixrt.config import CacheConfig, EngineConfig, Hardware, ScheduleConfig, resolve
from radixrt.engine.assembly import build_scheduler
from radixrt.engine.step_loop import StepLoop
from radixrt.errors import EngineStopped
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import Scheduler
from radixrt.schedule.step import RowResult, ScheduledStep
from radixrt.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput


class Recorder:
    """A runner that writes down what it is asked, answers token 7 always, and breaks where told: (step, place)."""

    def __init__(self, *breaks: tuple[int, str]) -> None:
        self.breaks = set(breaks)
        self.calls: list[str] = []
        self.num_steps = 0

    def forward(self, step: ScheduledStep) -> RecordedStep:
        self.num_steps += 1
        self.call(self.num_steps, "forward")
        return RecordedStep(self, self.num_steps, step)

    def call(self, number: int, place: str) -> None:
        self.calls.append(f"{place} {number}")
        if (number, place) in self.breaks:
            raise RuntimeError("broken on purpose")


class RecordedStep:
    def __init__(self, runner: Recorder, number: int, step: ScheduledStep) -> None:
        self.runner, self.number, self.step = runner, number, step

    def sample(self) -> None:
        self.runner.call(self.number, "sample")

    def results(self) -> Sequence[RowResult]:
        self.runner.call(self.number, "results")
        return [RowResult([7] * row.num_samples) for row in self.step.rows]


def scheduler(max_running: int = 4) -> Scheduler:
    config = resolve(
        EngineConfig(
            cache=CacheConfig(max_total_tokens=200, radix_tree="python"),
            schedule=ScheduleConfig(schedule_policy="fcfs", max_running_requests=max_running, chunked_prefill_size=64),
        ),
        Hardware(),
    )
    return build_scheduler(config.cache, config.schedule, num_slots=200, context_length=100)


def add(owner: Scheduler, uid: int, *, prompt: int = 5, new: int = 3) -> None:
    request = GenerateRequest(uid=uid, prompt=[uid + 10, *range(20, 19 + prompt)], sampling=SamplingParams())
    owner.add(Request(request, max_length=prompt + new))


def drain(loop: StepLoop) -> list[TokenOutput]:
    outputs = []
    for now in range(100):
        if not loop.has_work():
            return outputs
        outputs += loop.step(float(now))
    raise AssertionError("the loop never came to rest")


def texts(outputs: list[TokenOutput]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for output in outputs:
        found.setdefault(output.uid, []).extend(output.tokens)
    return found


def statuses(outputs: list[TokenOutput]) -> dict[int, int | None]:
    return {output.uid: output.finish.status for output in outputs if output.finish is not None}


@pytest.mark.parametrize(
    ("overlap", "calls"),
    [
        (False, ["forward 1", "sample 1", "results 1", "forward 2", "sample 2", "results 2"]),
        (True, ["forward 1", "sample 1", "forward 2", "results 1", "sample 2", "results 2"]),
    ],
)
def test_overlap_is_an_order_of_lines(overlap: bool, calls: list[str]) -> None:
    owner, runner = scheduler(), Recorder()
    add(owner, 0, new=2)
    assert texts(drain(StepLoop(owner, runner, overlap=overlap))) == {0: [7, 7]}
    assert runner.calls == calls


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("place", ["forward", "sample", "results"])
def test_a_step_that_breaks_ends_its_own_requests(overlap: bool, place: str) -> None:
    owner = scheduler(max_running=1)
    add(owner, 0)
    add(owner, 1)
    loop = StepLoop(owner, Recorder((1, place)), overlap=overlap)
    outputs = drain(loop)
    assert statuses(outputs) == {0: 500, 1: None} and texts(outputs) == {0: [], 1: [7, 7, 7]}
    assert loop.failed_steps == 1
    owner.check_invariants()


@pytest.mark.parametrize("place", ["forward", "sample"])
def test_what_the_step_before_found_is_handed_out_though_the_next_breaks(place: str) -> None:
    owner = scheduler()
    add(owner, 0, new=1)
    loop = StepLoop(owner, Recorder((2, place)), overlap=True)
    loop.step(0.0)
    add(owner, 1)
    outputs = drain(loop)
    assert texts(outputs)[0] == [7] and statuses(outputs) == {0: None, 1: 500}


def test_a_step_launched_on_top_of_one_that_failed_is_dropped() -> None:
    owner, runner = scheduler(max_running=2), Recorder((1, "results"))
    add(owner, 0)
    loop = StepLoop(owner, runner, overlap=True)
    loop.step(0.0)
    add(owner, 1)
    outputs = drain(loop)
    assert "sample 2" not in runner.calls and "results 2" not in runner.calls
    assert statuses(outputs) == {0: 500, 1: None} and texts(outputs)[1] == [7, 7, 7]
    assert loop.failed_steps == 1


def test_a_failed_step_empties_the_cache_though_its_requests_were_cancelled() -> None:
    owner = scheduler()
    add(owner, 0)
    loop = StepLoop(owner, Recorder((1, "results")), overlap=True)
    loop.step(0.0)
    owner.abort(0)
    outputs = drain(loop)
    assert [output.finish.reason for output in outputs if output.finish] == [FinishReason.ABORT]
    assert owner.cache.tree.stats().num_nodes == 0, "what it published was never written"


def test_a_decision_that_breaks_ends_everybody_and_drops_the_step_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = scheduler()
    add(owner, 0)
    loop = StepLoop(owner, Recorder(), overlap=True)
    loop.step(0.0)
    add(owner, 1)
    monkeypatch.setattr(Scheduler, "schedule", lambda *_: 1 / 0)
    outputs = loop.step(1.0)
    monkeypatch.undo()
    assert statuses(outputs) == {0: 500, 1: 500} and not loop.has_work()
    owner.check_invariants()
    add(owner, 2)
    assert texts(drain(loop)) == {2: [7, 7, 7]}


def test_only_failures_in_a_row_stop_the_engine() -> None:
    owner = scheduler()
    loop = StepLoop(owner, Recorder((1, "results"), (2, "results"), (4, "results"), (5, "results"), (6, "results")), overlap=False)
    for uid in range(5):
        add(owner, uid, new=1)
        drain(loop)
    add(owner, 5, new=1)
    with pytest.raises(EngineStopped):
        drain(loop)
