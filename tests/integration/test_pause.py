"""A paused engine computes nothing, loses nothing, and says the same afterwards."""

from __future__ import annotations

import pytest

from radixrt.config import EngineConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.questions import Pause, RequestsView, Resume, ViewRequests
from radixrt.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput

SAMPLING = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)


def make(*, overlap: bool) -> EngineCore:
    return EngineCore.load(EngineConfig.of(model_path="toy", max_total_tokens=200, overlap_schedule="on" if overlap else "off"))


def run(core: EngineCore, found: dict[int, list[int]], steps: int | None = None) -> list[TokenOutput]:
    outputs = []
    while core.has_work() and steps != 0:
        for output in core.step():
            found.setdefault(output.uid, []).extend(output.tokens)
            outputs.append(output)
        core.check_invariants()
        steps = None if steps is None else steps - 1
    return outputs


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("retract", [True, False])
def test_a_pause_changes_no_text(overlap: bool, retract: bool) -> None:
    texts = []
    for pauses in (False, True):
        core = make(overlap=overlap)
        found: dict[int, list[int]] = {}
        for uid in range(3):
            core.add(GenerateRequest(uid=uid, prompt=[1, 2, 3 + uid], sampling=SAMPLING))
        run(core, found, steps=4)
        if pauses:
            core.answer(Pause(retract))
            core.add(GenerateRequest(uid=9, prompt=[7, 7], sampling=SAMPLING))
            run(core, found)  # what was in flight
            before = {uid: list(tokens) for uid, tokens in found.items()}
            assert not core.has_work()
            view = core.answer(ViewRequests(10))
            assert isinstance(view, RequestsView)
            assert view.num_running == (0 if retract else 3)
            assert {facts.waits_for for facts in view.waiting} == {"paused"}
            core.step()
            assert found == before
            core.answer(Resume())
        else:
            core.add(GenerateRequest(uid=9, prompt=[7, 7], sampling=SAMPLING))
        run(core, found)
        assert all(len(tokens) == 12 for tokens in found.values())
        texts.append(found)
        core.close()
    assert texts[0] == texts[1]


def test_a_paused_request_can_be_aborted() -> None:
    core = make(overlap=True)
    core.add(GenerateRequest(uid=1, prompt=[1, 2], sampling=SAMPLING))
    core.answer(Pause(False))
    core.abort(1)
    (output,) = run(core, {})
    assert output.finish is not None
    assert output.finish.reason is FinishReason.ABORT
    assert core.flush()
    core.close()
