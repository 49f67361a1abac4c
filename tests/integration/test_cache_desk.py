"""Questions about the cache of a running core, on the toy model: pins under pressure, reports, tails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from radixrt.config import EngineConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.questions import Done, DropTails, Explain, Explained, Pinned, PinPrefix, TreeView, Unpin, ViewTree
from radixrt.errors import RequestError
from radixrt.types import SHARED, CacheReport, GenerateRequest, Namespace, SamplingParams

POOL = 200
PREFIX = list(range(50, 90))


@pytest.fixture
def core() -> Iterator[EngineCore]:
    core = load()
    yield core
    core.check_invariants()
    core.close()


def load(**options: Any) -> EngineCore:
    defaults = {"model_path": "toy", "max_total_tokens": POOL, "max_running_requests": 2, "chunked_prefill_size": 64}
    return EngineCore.load(EngineConfig.of(**(defaults | options)))


def add(core: EngineCore, uid: int, prompt: list[int], *, max_new: int = 4, namespace: Namespace = SHARED) -> None:
    sampling = SamplingParams(max_new_tokens=max_new, temperature=0.0, ignore_eos=True)
    core.add(GenerateRequest(uid=uid, prompt=prompt, sampling=sampling, namespace=namespace, want_report=True))


def drain(core: EngineCore) -> dict[int, CacheReport]:
    """Run until idle; return the reports, of which each request has exactly one, with its last output."""
    reports: dict[int, CacheReport] = {}
    while core.has_work():
        for output in core.step():
            assert (output.report is not None) == (output.finish is not None)
            if output.report is not None:
                assert output.uid not in reports
                reports[output.uid] = output.report
    return reports


def matched(core: EngineCore, tokens: list[int], namespace: Namespace = SHARED) -> int:
    answer = core.answer(Explain(tokens, namespace))
    assert isinstance(answer, Explained)
    return answer.divergence.matched


def pin(core: EngineCore, id: str, tokens: list[int], ttl: float = 100.0) -> Pinned:
    answer = core.answer(PinPrefix(id, tokens, SHARED, ttl))
    assert isinstance(answer, Pinned)
    return answer


@pytest.mark.parametrize("tree", ["python", "auto"])
def test_pins_stay_under_pressure_and_give_way_to_what_runs(tree: str) -> None:
    core = load(radix_tree=tree, pin_budget=0.5)
    add(core, 0, PREFIX)
    drain(core)
    assert pin(core, "a", PREFIX).tokens == len(PREFIX)
    for uid in range(1, 8):
        add(core, uid, [uid] * 100)
    drain(core)
    assert matched(core, PREFIX) == len(PREFIX)
    assert (core.stats().num_pins, core.stats().pinned_tokens) == (1, len(PREFIX))
    add(core, 9, [9] * (POOL - 10))  # needs the whole pool
    drain(core)
    assert core.stats().num_pins == 0
    assert matched(core, PREFIX) < len(PREFIX)
    assert core.answer(Unpin("a")) == Done(False)
    core.check_invariants()
    core.close()


def test_pins_end_by_time_and_are_renewed_by_use(core: EngineCore) -> None:
    add(core, 0, PREFIX)
    drain(core)
    assert pin(core, "a", PREFIX, ttl=0.5).seconds == pytest.approx(0.5)
    time.sleep(0.3)
    add(core, 1, [*PREFIX, 1])
    drain(core)
    time.sleep(0.3)
    assert core.answer(Unpin("nobody")) == Done(False)
    assert core.stats().num_pins == 1
    time.sleep(0.3)
    core.answer(Unpin("nobody"))
    assert core.stats().num_pins == 0


def test_nothing_is_pinned_of_what_is_not_cached_or_over_the_budget(core: EngineCore) -> None:
    assert pin(core, "a", PREFIX) == Pinned(0, 0.0)
    long = [7] * 60
    add(core, 0, long)
    drain(core)
    with pytest.raises(RequestError):
        core.answer(PinPrefix("a", long, SHARED, 1.0))
    assert core.stats().num_pins == 0


def test_flushing_forgets_pins(core: EngineCore) -> None:
    add(core, 0, PREFIX)
    drain(core)
    pin(core, "a", PREFIX)
    assert core.flush()
    assert (core.stats().num_pins, core.stats().cached_tokens, matched(core, PREFIX)) == (0, 0, 0)


def test_reports_say_what_was_matched_computed_and_waited_for(core: EngineCore) -> None:
    add(core, 0, PREFIX, max_new=20)
    add(core, 1, [1] * 30, max_new=20)
    add(core, 2, [*PREFIX[:30], 1, 2, 3])
    reports = drain(core)
    cold, late = reports[0], reports[2]
    assert (cold.matched, cold.computed, cold.divergence.matched) == (0, len(PREFIX), 0)
    assert (late.matched, late.computed, late.divergence.matched) == (30, 3, 30)
    assert late.divergence.cached_next == PREFIX[30:38]
    passed_over = reports[1].waited  # there are two places, and the other has a cached prefix
    assert passed_over["slots"] > 0
    assert core.stats().wait_seconds["slots"] == passed_over["slots"]


def test_the_tree_is_shown_by_size_depth_and_namespace(core: EngineCore) -> None:
    other = Namespace(extra_key="other")
    add(core, 0, PREFIX)
    drain(core)
    add(core, 1, [*PREFIX[:20], 1, 2, 3])
    add(core, 2, [5] * 10, namespace=other)
    drain(core)

    def tokens(namespace: Namespace | None = None, depth: int = 9, min_tokens: int = 1, limit: int = 9) -> list[int]:
        view = core.answer(ViewTree(namespace, depth, min_tokens, limit))
        assert isinstance(view, TreeView)
        assert view.num_nodes >= len(view.nodes)
        return [node["subtree_tokens"] for node in view.nodes]

    assert tokens(SHARED, depth=1) == [len(PREFIX) + 3 + 2 * 3]
    assert tokens(other, depth=1) == [10 + 3]
    assert len(tokens()) > len(tokens(min_tokens=10)) > 0
    assert len(tokens(limit=1)) == 1


@pytest.mark.parametrize("beyond", [0, 3])
def test_a_dropped_tail_leaves_what_came_before(core: EngineCore, beyond: int) -> None:
    add(core, 0, PREFIX, max_new=1)
    drain(core)
    tail = [*PREFIX, *range(100, 120)]
    add(core, 1, tail, max_new=1 + beyond)  # tokens that the front has never seen, because a stop string came before them
    drain(core)
    used = POOL - core.stats().free_tokens
    assert core.answer(DropTails([(tail, len(PREFIX))], SHARED)) == Done(True)
    assert matched(core, tail) == len(PREFIX)
    assert POOL - core.stats().free_tokens == used - 20 - beyond


def test_a_dropped_tail_leaves_what_others_go_on_from(core: EngineCore) -> None:
    tail = [*PREFIX, *range(100, 120)]
    for uid, tokens in enumerate((tail, [*tail[:50], *range(200, 230)])):
        add(core, uid, tokens, max_new=1)
        drain(core)
    assert core.answer(DropTails([(tail, 0)], SHARED)) == Done(True)
    assert (matched(core, tail), matched(core, [*tail[:50], *range(200, 230)])) == (50, 80)
