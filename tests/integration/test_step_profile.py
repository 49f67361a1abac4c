"""The trace of steps: every part of every step once, and host work of one step under the computing of the next."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from simulator import make_core

from radixrt.engine import step_profile
from radixrt.engine.step_profile import StepProfile
from radixrt.errors import ConfigError
from radixrt.types import GenerateRequest, SamplingParams

HOST = {"schedule", "launch", "sampling", "wait", "commit"}
DEVICE = {"compute forward", "compute sample"}


def profiled(path: Path, *, overlap: bool, seconds_a_forward: float = 0.0, max_new_tokens: int = 12) -> tuple[list[dict[str, Any]], int]:
    """Spans of a run of one request on the toy model, and how many steps it took."""
    core = make_core(overlap=overlap, profile_steps=str(path))
    model: Any = core._runner._model
    forward = model.forward

    def slow(*args: Any) -> Any:
        time.sleep(seconds_a_forward)
        return forward(*args)

    model.forward = slow
    core.add(GenerateRequest(uid=1, prompt=[1, 2, 3], sampling=SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)))
    while core.has_work():
        core.step()
    steps = core._loop.steps
    core.close()
    return [event for event in json.loads(path.read_text()) if event.get("ph") == "X"], steps


@pytest.mark.parametrize("overlap", [True, False])
def test_every_part_of_every_step_is_a_span_once(overlap: bool, tmp_path: Path) -> None:
    spans, steps = profiled(tmp_path / "steps.json", overlap=overlap)
    count = {name: sum(span["name"] == name for span in spans) for name in HOST | DEVICE}
    assert count["schedule"] == count["launch"] == steps
    assert len({count[name] for name in DEVICE | {"sampling", "wait", "commit"}}) == 1
    threads = {name: {span["tid"] for span in spans if span["name"] == name} for name in HOST | DEVICE}
    assert all(len(ids) == 1 for ids in threads.values())
    assert (threads["compute forward"] != threads["commit"]) is overlap


def test_host_work_of_a_step_lies_under_the_computing_of_the_next(tmp_path: Path) -> None:
    def hidden(*, overlap: bool) -> int:
        spans, _ = profiled(tmp_path / f"{overlap}.json", overlap=overlap, seconds_a_forward=0.02)
        computing = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "compute forward"]
        commits = [span["ts"] for span in spans if span["name"] == "commit"]
        return sum(any(start < at < end for start, end in computing) for at in commits)

    assert hidden(overlap=False) == 0
    assert hidden(overlap=True) >= 6


def test_a_trace_ends_where_it_is_long_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profile, "MAX_EVENTS", 10)
    spans, _ = profiled(tmp_path / "steps.json", overlap=True)
    assert 0 < len(spans) <= 10


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--profile-steps"):
        StepProfile(tmp_path / "missing" / "steps.json")
