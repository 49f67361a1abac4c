"""The last look at a finished JSON answer: one that breaks its schema, whatever let it through, ends in an error."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from radixrt import Engine
from radixrt.engine.final_check import FinalCheck
from radixrt.errors import RadixrtError
from radixrt.types import Dormancy, Finish, FinishReason, GrammarOptions, GrammarSpec, RequestOutput, Usage

WANTED = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["n"]}
WRONG = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}
END = 7
STOP, LENGTH = Finish(FinishReason.STOP), Finish(FinishReason.LENGTH)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Every schema is taken for one that its answers break."""
    monkeypatch.setattr("radixrt.grammar.llguidance_engine.normalise", lambda schema: WRONG)
    with Engine(model_path="toy", max_total_tokens=4000, random_seed=1) as engine:
        yield engine


def test_an_answer_that_breaks_its_schema_ends_in_an_error(engine: Engine) -> None:
    sampling = {"max_new_tokens": 60, "temperature": 0.0}
    with pytest.raises(RadixrtError, match="does not meet the schema at /n") as raised:
        engine.generate("hi", {**sampling, "json_schema": json.dumps(WANTED)})
    assert (raised.value.status, raised.value.code) == (500, "invalid_answer")
    with pytest.raises(RadixrtError, match="does not meet the schema at /n"):
        list(engine.generate("hi", {**sampling, "json_schema": json.dumps(WANTED)}, stream=True))
    assert json.loads(engine.generate("hi", {**sampling, "json_schema": json.dumps(WRONG)})["text"])["n"] in (1, 2, 3)


def outcome(texts: list[str], finish: Finish, spec: GrammarSpec | None = None) -> Finish | None:
    """What the check says of an answer that comes in these parts."""
    check = FinalCheck.of(spec or GrammarSpec("json_schema", json.dumps(WANTED)), {END})
    assert check is not None
    *before, last = texts
    for text in before:
        assert check.push(event(text, None)) is None
    return check.push(event(last, finish))


def event(text: str, finish: Finish | None) -> RequestOutput:
    return RequestOutput(rid="r", index=0, text_delta=text, token_ids_delta=[], usage=Usage(), finish=finish)


@pytest.mark.parametrize(
    ("texts", "finish", "passes"),
    [
        (['{"n":', "10}"], STOP, True),
        (['{"n":', "1", "0", "0}"], STOP, False),
        (['{"n": 9}'], Finish(FinishReason.STOP, matched=END), False),
        (['{"n": 9', ""], Finish(FinishReason.STOP, matched="}"), True),  # cut off by the caller: not judged
        (['{"n": 9'], Finish(FinishReason.STOP, matched=END + 1), True),
        (['{"n": 9'], LENGTH, True),
        (['{"n": 9}'], Finish(FinishReason.LENGTH, closed=True), False),
        (['{"n": 10} x'], STOP, False),
        (["{}"], STOP, False),
        (["NaN"], STOP, False),
        (["[" * 100_000], STOP, False),
        (["9"], Finish(FinishReason.ABORT, message="aborted"), True),
    ],
)
def test_whole_answers_are_judged_by_their_schema(texts: list[str], finish: Finish, passes: bool) -> None:
    found = outcome(texts, finish)
    assert (found is None) == passes
    assert found is None or (found.reason, found.status, found.code) == (FinishReason.ABORT, 500, "invalid_answer")


@pytest.mark.parametrize(("text", "passes"), [("[1]", False), ('["a", 1]', True)])
def test_a_schema_without_a_dialect_is_read_by_one_whose_rules_it_keeps(text: str, passes: bool) -> None:
    listed = GrammarSpec("json_schema", '{"items": [{"type": "string"}]}')  # a list of schemas is of drafts before 2020
    assert (outcome([text], STOP, listed) is None) == passes


@pytest.mark.parametrize(("text", "passes"), [("{}", True), ("[]", False), ("{", False)])
def test_an_object_is_one(text: str, passes: bool) -> None:
    assert (outcome([text], STOP, GrammarSpec("json_object", "")) is None) == passes


def test_text_around_json_and_other_constraints_are_not_checked() -> None:
    asleep = GrammarOptions(dormancy=Dormancy(trigger="<c>"))
    for spec in (None, GrammarSpec("regex", "a"), GrammarSpec("json_schema", "{}", asleep)):
        assert FinalCheck.of(spec, {END}) is None
