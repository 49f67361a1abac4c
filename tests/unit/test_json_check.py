"""The last check of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.grammar.json_check import check
from radixrt.types import GrammarSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}, "d": {"format": "date"}}, "required": ["a"]}


def spec(schema: Any, kind: Any = "json_schema") -> GrammarSpec:
    return GrammarSpec(kind, json.dumps(schema))


@pytest.mark.parametrize("text", ['{"a":1}', ' {"a": 1.0, "b": {"a": "x"}}', '{"a":-1,"d":"2020-02-31"}', '{"a":9,"a":2}'])
def test_answers_that_meet_the_schema_pass(text: str) -> None:
    assert check(spec(SCHEMA), text) is None


@pytest.mark.parametrize("text", ['{"a":4}', "{}", '{"a":1', '{"a":1} x', '{"a":NaN}', "[" * 100_000, "", '{"a":"1"}'])
def test_others_are_told_apart(text: str) -> None:
    message = check(spec(SCHEMA), text)
    assert message is not None
    assert len(message) <= 200


def test_the_place_is_named() -> None:
    assert "/a" in str(check(spec(SCHEMA), '{"a":4}'))


def test_a_schema_is_read_as_its_own_dialect_says() -> None:
    tuples = {"items": [{"type": "integer"}], "additionalItems": False}
    assert check(spec(tuples), "[1]") is None
    assert check(spec(tuples), "[1,2]") is not None
    siblings = {"$ref": "#/definitions/a", "maximum": 1, "definitions": {"a": {"type": "integer"}}}
    assert check(spec(siblings), "2") is not None
    assert check(spec({"$schema": "http://json-schema.org/draft-07/schema#", **siblings}), "2") is None


def test_objects_and_what_is_no_json() -> None:
    assert check(spec({}, "json_object"), "{}") is None
    assert check(spec({}, "json_object"), "[]") is not None
    assert check(spec("a+", "regex"), "b") is None


def test_nothing_is_fetched() -> None:
    assert check(spec({"$ref": "http://127.0.0.1:9/x"}), "1") is not None


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1E+400]"])
def test_a_number_beyond_all_floats_is_a_number(text: str) -> None:
    schema = '{"type":["number","array"],"items":{"type":"number"}}'
    assert check(GrammarSpec("json_schema", schema), text) is None
    assert check(GrammarSpec("json_schema", '{"type":"number","maximum":5}'), "1e999") is not None
