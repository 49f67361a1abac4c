"""Regexes and choices on the embedded engine: every answer matches, and is the same with and without drafts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from radixrt import Engine
from radixrt.errors import RequestError


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    """One that drafts forced text, and one that does not."""
    with ExitStack() as stack:
        shared = {"max_total_tokens": 4000, "random_seed": 1, "draft_token_cost": 0.05}
        yield [
            stack.enter_context(Engine(model_path="toy", disable_jump_forward=disabled, **shared)) for disabled in (False, True)
        ]


REGEXES = [
    r'\{"name": "[A-Za-z ]{1,12}", "age": [0-9]{1,3}\}', r"\d{4}-\d{2}-\d{2}", "日本(語|人)?です", r"(?i)yes|no", ".{0,9}", r"[^\W\d_]{3}$",
    "(Thought: [a-z]{1,9}\n){1,3}Action: (search|finish)", r"\w+@\w+\.(com|org)",
]  # fmt: skip


def answers(engines: list[Engine], sampling: dict[str, Any]) -> list[str]:
    found = [engine.generate("Answer: ", {"max_new_tokens": 90, "seed": 7, **sampling}) for engine in engines]
    assert found[0]["output_ids"] == found[1]["output_ids"]
    return [answer["text"] for answer in found]


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("pattern", REGEXES)
def test_answer_matches_its_regex_with_and_without_drafts(engines: list[Engine], pattern: str, temperature: float) -> None:
    for text in answers(engines, {"regex": pattern, "temperature": temperature}):
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "choices", [["yes"], ["", "a"], ["a", "ab", "abc"], ["北京", "北海", "\n\"'"], [f"the same start, then {i}" for i in range(30)]]
)
def test_answer_is_one_of_its_choices(engines: list[Engine], choices: list[str]) -> None:
    for seed in range(3):
        for text in answers(engines, {"choice": choices, "temperature": 2.0, "seed": seed}):
            assert text in choices


def test_drafts_save_steps(engines: list[Engine]) -> None:
    steps = [engine.stats.steps for engine in engines]
    answers(engines, {"choice": ["a long text that leaves nothing to choose", "a long text that leaves nothing else to choose"]})
    drafting, plain = (engine.stats.steps - before for engine, before in zip(engines, steps, strict=True))
    assert drafting < plain / 4


@pytest.mark.parametrize("pattern", ["(", "a{3,2}", r"[^\s\S]"])
def test_regex_that_is_none_is_refused_and_others_go_on(engines: list[Engine], pattern: str) -> None:
    with pytest.raises(RequestError, match=r"regex|no text"):
        engines[0].generate("Answer: ", {"regex": pattern})
    assert engines[0].generate("Answer: ", {"regex": "ok", "max_new_tokens": 9})["text"] == "ok"
