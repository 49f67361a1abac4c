"""The programs of the cookbook run, fit on a page, and find most of their prompts in the cache."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radixlang import EngineBackend, State, set_default_backend

from radixrt import Engine

COOKBOOK = Path(__file__).parents[2] / "cookbook"
# Prompt tokens that have to come from the cache, on an engine that has never seen the program.  The toy's tokens are bytes, so
# that what is constant weighs as much as in any text.
LEAST = {
    "agent": 0.7, "generative_agents": 0.6, "json_extraction": 0.5, "llm_judge": 0.7, "multi_document_qa": 0.5, "rag_signature": 0.5,
    "react": 0.7, "skeleton_of_thought": 0.6, "tree_of_thought": 0.7,
}  # fmt: skip


def load(name: str) -> Any:
    if str(COOKBOOK) not in sys.path:
        sys.path.append(str(COOKBOOK))
    spec = importlib.util.spec_from_file_location(f"cookbook_{name}", COOKBOOK / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_program_is_tried_and_fits_on_a_page() -> None:
    files = {path.stem: path for path in COOKBOOK.glob("*.py")}
    assert set(files) - {"report"} == set(LEAST)
    assert {name for name, path in files.items() if len(path.read_text().splitlines()) >= 60} == set()


@pytest.fixture(scope="module")
def toy() -> Iterator[Engine]:
    with Engine(model_path="toy", max_total_tokens=100_000, random_seed=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def model() -> Iterator[Engine]:
    with Engine(max_total_tokens=16_000, random_seed=1) as engine:
        yield engine


def play(name: str, engine: Engine) -> list[State]:
    set_default_backend(EngineBackend(engine))
    module = load(name)
    states: list[State] = module.main()
    assert states
    for state in states:
        assert state.error() is None
        assert all(state[variable] is not None for variable in state.variables)
    return states


@pytest.mark.parametrize("name", LEAST)
def test_a_program_runs_and_hits_the_cache(name: str, toy: Engine) -> None:
    states = play(name, toy)
    assert load("report").hit_rate(states) >= LEAST[name]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", LEAST)
def test_a_program_runs_on_the_default_model(name: str, model: Engine) -> None:
    states = play(name, model)
    assert load("report").hit_rate(states) >= LEAST[name] - 0.2
