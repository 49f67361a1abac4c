"""Traces: what a program says whatever its arguments are, and what it asks for."""

from __future__ import annotations

from typing import Any

import pytest
from radixlang import ScriptedBackend, State, function, gen, select, system, user
from radixlang.backends.base import Backend
from radixlang.piece import text_of


@function
def qa(s: State, question: str, hint: str = "none") -> None:
    s += "Answer.\n"
    s += "Q: " + question + f"\nHint: {hint}\nA:" + gen("answer")
    forks = s.fork(2)
    forks += lambda i: f" {i}:" + select("choice", ["a", "b"])
    forks.join()


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        ({}, "Answer.\nQ: "),
        ({"question": "why"}, "Answer.\nQ: why\nHint: "),
        ({"question": "why", "hint": "no"}, "Answer.\nQ: why\nHint: no\nA:"),
    ],
)
def test_the_constant_prefix_ends_at_the_first_argument_or_generation(arguments: dict[str, str], prefix: str) -> None:
    assert qa.trace(**arguments).prefix == prefix


def test_a_trace_has_the_variables_and_the_tree_of_forks() -> None:
    trace = qa.trace()
    assert trace.stopped is None
    assert trace.variables == ("answer", "choice")
    assert len(trace.states) == 3
    assert [state._path for state in trace.children(trace.states[0])] == [(0,), (1,)]
    assert "{question}" in str(trace)


@pytest.mark.parametrize(
    "body",
    [
        lambda question: question == "x",
        lambda question: len(question),
        lambda question: question.upper(),
        lambda question: list(question),
        lambda question: int(question),
        lambda question: 1 / 0,
        lambda question: {}["a"],
    ],
)
def test_a_program_that_looks_into_an_argument_is_traced_up_to_there(body: Any) -> None:
    @function
    def program(s: State, question: str) -> None:
        s += "before"
        body(question)
        s += "after"

    trace = program.trace()
    assert trace.prefix == "before"
    assert trace.stopped


class Pins(ScriptedBackend):
    """Takes down what was pinned and for how long."""

    def __init__(self) -> None:
        super().__init__(lambda request: "x")
        self.log: list[Any] = []

    async def pin(self, before: Any, others: Any) -> Any:
        texts = [text_of(piece) for piece in (before, *others)]
        common = next((i for i, chars in enumerate(zip(*texts, strict=False)) if len(set(chars)) > 1), len(texts[0]))
        self.log.append(texts[0][:common])
        return "pin"

    async def unpin(self, pin: Any) -> None:
        self.log.append(pin)


def test_a_batch_pins_what_its_programs_have_in_common_until_its_end() -> None:
    ran: list[str] = []

    @function
    def program(s: State, question: str) -> None:
        s += system("Be brief.") + user(f"Q: {question}")
        with s.assistant():
            s += gen("x")
        ran.append(f"{question}")

    backend = Pins()
    assert isinstance(backend, Backend)
    states = program.run_batch([{"question": "a"}, {"question": "b"}], backend=backend)
    assert backend.log == ["system: Be brief.\nuser: Q: ", "pin"]
    assert sorted(ran) == ["a", "b"]  # the trace went no further than the first generation
    assert [state["x"] for state in states] == ["x", "x"]
    program.run_batch([{"question": "a"}], backend=backend)
    assert len(backend.log) == 2


def test_what_is_constant_can_be_cached_alone() -> None:
    backend = Pins()
    assert qa.cache(backend=backend, question="why") == "pin"
    assert backend.log == ["Answer.\nQ: why\nHint: "]


@pytest.mark.parametrize("traced", [True, False])
def test_pages_are_whole_and_escaped(traced: bool) -> None:
    page = (qa.trace() if traced else qa.run("<why>", backend=ScriptedBackend({"answer": "be & cause"}))).to_html()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>")
    assert page.count("<div") == page.count("</div>")
    assert "<why>" not in page
    assert "<script" not in page
    assert "choice" in page


def test_a_page_shows_what_came_from_where() -> None:
    @function
    def program(s: State) -> None:
        s += "one two" + gen("x") + " three" + select("y", [" a", " b"])

    page = program.run(backend=ScriptedBackend({"x": " four"}, likes=[" b"])).to_html()
    for origin, text in (("constant", "one"), ("constant", " two"), ("model", " four"), ("grammar", " b")):
        assert f'<span class="{origin}"' in page
        assert f">{text}</span>" in page

