"""Schemas in plain keywords: equal forms come out equal, and what is refused is named with its place."""

from __future__ import annotations

import time
from typing import Any

import pytest

from radixrt.errors import GrammarError
from radixrt.grammar.schema import normalise
from radixrt.grammar.schema.patterns import engine_pattern, matches, other_than

INT, TEXT = {"type": "integer"}, {"type": "string"}
CLOSED = {"additionalProperties": False}


def obj(required: tuple[str, ...] = (), **names: Any) -> dict[str, Any]:
    return {"type": "object", "properties": names, **({"required": list(required)} if required else {})}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"allOf": [INT, {"minimum": 3}, {"maximum": 9}]}, {"type": "integer", "minimum": 3, "maximum": 9}),
        ({"allOf": [{"enum": [1, "a", None]}, {"type": ["string", "null"]}]}, {"enum": ["a", None]}),
        ({"type": "object", "allOf": [obj(a=INT), obj(("a",), b=TEXT)]}, obj(("a",), a=INT, b=TEXT)),
        ({**obj(a=INT), "anyOf": [{"required": ["a"]}]}, obj(("a",), a=INT)),
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": INT}}, INT),
        ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", **INT}}}, INT),
        ({"$id": "http://a.test/b", "$ref": "c", "$defs": {"x": {"$id": "c", **INT}}}, INT),
        ({"oneOf": [INT, TEXT]}, {"anyOf": [INT, TEXT]}),
        ({"oneOf": [INT, {"type": "integer", "minimum": 3}]}, {"type": "integer", "exclusiveMaximum": 3}),
        ({"not": {"type": ["object", "array", "number", "string", "null"]}}, {"type": "boolean"}),
        ({"type": "integer", "not": {"minimum": 3}}, {"type": "integer", "exclusiveMaximum": 3}),
        ({"enum": [1, 2, 3, 4], "not": {"enum": [2, 4]}}, {"enum": [3, 1]}),
        ({"type": ["integer", "null"], "if": INT, "then": {"minimum": 3}},
         {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "minimum": 3, "definitions": {"a": INT}}, INT),
        ({"type": "array", "items": [INT], "additionalItems": False}, {"type": "array", "prefixItems": [INT], "items": False}),
        ({"type": "string", "format": "made-up", "title": "t", "x-guidance": {"lenient": True}}, TEXT),
        ({"const": 1.0}, {"enum": [1]}),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"type": "array", "maxItems": 1}),
        ({"type": "array", "uniqueItems": True, "items": {"enum": ["a"]}}, {"enum": [[], ["a"]]}),
        ({**obj(a=INT), **CLOSED, "propertyNames": {"maxLength": 0}}, {"type": "object", "properties": {"a": False}, **CLOSED}),
        ({"type": "integer", "multipleOf": 0.5, "allOf": [{"multipleOf": 3}]}, {"type": "integer", "multipleOf": 3}),
    ],
)  # fmt: skip
def test_equal_schemas_come_out_equal(one: Any, other: Any) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    "schema", [True, {}, {"title": "anything"}, {"not": False}, {"anyOf": [INT, True]}, {"minContains": 0, "contains": False}]
)
def test_what_says_nothing_comes_out_empty(schema: Any) -> None:
    assert normalise(schema) == {}


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        (obj(a={"type": "array", "uniqueItems": True}), "uniqueItems", "/properties/a"),
        (obj(a={"$ref": "http://elsewhere.test/x"}), "$ref", "/properties/a"),
        (obj(a={"$ref": "#/$defs/none"}), "$ref", "/properties/a"),
        ({"allOf": [{"type": "string", "pattern": "(?=a)b"}]}, "pattern", "/allOf/0"),
        (obj(a={"type": "strnig"}), "type", "/properties/a"),
        ({"$schema": "http://elsewhere.test/dialect"}, "$schema", ""),
        ({"type": "string", "not": {"pattern": "a"}}, "pattern", "/not"),
        ({"allOf": [{"$ref": "#"}]}, "$ref", ""),
        # What no grammar looks at, and the check of an answer could not be made of.
        ({"type": "array", "items": {"$ref": "#/$defs/x"}, "maxItems": 0}, "$ref", ""),
        ({"type": "array", "items": {"items": {"pattern": "[\\b]"}}, "maxItems": 0}, "pattern", "/items/items"),
        ({"type": "array", "items": {"patternProperties": {"[\\b]": True}}, "maxItems": 0}, "patternProperties", "/items"),
    ],
)
def test_what_is_refused_is_named_with_its_place(schema: Any, keyword: str, pointer: str) -> None:
    with pytest.raises(GrammarError) as error:
        normalise(schema)
    assert (error.value.keyword, error.value.pointer) == (keyword, pointer)
    assert f"#{pointer or '/'}" in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"allOf": [INT, TEXT]},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {**obj(("a",), a={"$ref": "#"})},
        {**obj(("a",)), **CLOSED},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "#/$defs/a", "$defs": {"a": obj(("b",), b={"$ref": "#/$defs/b"}), "b": {"anyOf": [{"$ref": "#/$defs/a"}, False]}}},
    ],
)
def test_what_nothing_finite_meets_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError) as error:
        normalise(schema)
    assert error.value.code == "unsatisfiable_schema"


def test_recursion_that_ends_is_kept() -> None:
    tree = {"$ref": "#/$defs/t", "$defs": {"t": obj(("v",), v=INT, next={"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]})}}
    assert "$ref" in str(normalise(tree))


@pytest.mark.parametrize(
    "bomb",
    [
        {"allOf": [{"oneOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(24)]},
        {"type": "object", "dependentRequired": {f"a{i}": [f"b{i}"] for i in range(30)}},
        {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}, {"type": "string"}]} for i in range(20)]},
        {"not": {"oneOf": [{"required": [f"a{i}"]} for i in range(60)]}},
    ],
)
def test_choices_that_multiply_are_refused_in_time(bomb: Any) -> None:
    start = time.process_time()
    with pytest.raises(GrammarError, match="too complex"):
        normalise(bomb)
    assert time.process_time() - start < 2


def test_unions_told_apart_by_a_member_are_linear_in_what_they_write() -> None:
    union = {"oneOf": [obj(("kind",), kind={"const": f"k{i}"}, v=INT) for i in range(100)]}
    assert len(normalise(union)["anyOf"]) == 100


@pytest.mark.parametrize(
    ("pattern", "engine"),
    [
        ("^a$", "^a$"),
        (r"\d", "[0-9]"),
        (r"\D", "[^0-9]"),
        ("[\\w-]", r"[A-Za-z0-9_\-]"),
        (r"\cA", r"\u{1}"),
        ("[^]", r"[\s\S]"),
        ("(?<n>a)", "(?:a)"),
        (r"[[&&a]", r"[\u{5b}\u{26}\u{26}a]"),
        ('[^"]', r"[^\u{22}\u{0}]"),
        (r"[\x00-!]", r"[\u{0}-\u{21}&&[^\u{0}]]"),
    ],
)
def test_patterns_are_written_for_the_engine(pattern: str, engine: str) -> None:
    assert engine_pattern(pattern) == engine


@pytest.mark.parametrize("pattern", [r"(a)\1", r"\q", "(a", "a)", "[]", r"\ud800", "a{2000}", "((a{100}){100}){100}", "(?!a)b"])
def test_patterns_that_the_engine_lacks_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError) as error:
        engine_pattern(pattern, "/x")
    assert error.value.pointer == "/x"


@pytest.mark.parametrize("texts", [["a"], ["", "ab", "a", "b-^]"], ["é😀", "\n"], []])
def test_a_pattern_for_every_other_text(texts: list[str]) -> None:
    pattern = other_than(texts)
    assert all(
        matches(pattern, text) == (text not in texts) for text in ["", "a", "ab", "abc", "b-^]", "b-", "é😀", "é", "\n", "\n\n", "x"]
    )
