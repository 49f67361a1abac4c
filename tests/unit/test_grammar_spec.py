"""Every spelling of a constraint becomes the same spec, one a request, within limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.engine.native import parse_sampling
from radixrt.errors import GrammarError
from radixrt.grammar import spec as specs
from radixrt.grammar.select import ORDER, engines
from radixrt.grammar.spellings import constraint, format_of
from radixrt.server.translate import chat_plan, completion_plan
from radixrt.types import GrammarOptions, GrammarSpec

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "é"}}, "required": ["b"]}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":"é"}},"required":["b"]}'
TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}}, "json_schema", TEXT),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", TEXT),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", TEXT),
        ({"response_format": {"type": "json_object"}}, "json_object", '{"type":"object"}'),
        ({"response_format": {"type": "structural_tag", **TAG}}, "structural_tag", None),
        ({"json_schema": SCHEMA}, "json_schema", TEXT),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", TEXT),
        ({"json_schema": json.dumps(SCHEMA, ensure_ascii=False, indent=4)}, "json_schema", TEXT),
        ({"json_schema": True}, "json_schema", "true"),
        ({"guided_json": SCHEMA}, "json_schema", TEXT),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
        ({"structured_outputs": {"json_object": True}}, "json_object", '{"type":"object"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"regex": "a+", "json": None}}, "regex", "a+"),
        ({"choice": ["é", "b"]}, "choice", '["é","b"]'),
        ({"guided_choice": ["é", "b"]}, "choice", '["é","b"]'),
        ({"structured_outputs": {"choice": ["é", "b"]}}, "choice", '["é","b"]'),
        ({"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"guided_grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "ebnf", 'root ::= "a"'),
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"structural_tag": TAG}, "structural_tag", json.dumps(TAG, separators=(",", ":"))),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structural_tag", json.dumps(TAG, separators=(",", ":"))),
    ],
)
def test_every_spelling_says_the_same_on_every_route(fields: dict[str, Any], kind: str, text: str | None) -> None:
    spec = constraint(fields)
    assert spec is not None and spec.kind == kind and spec.text == (text or spec.text)
    assert spec.param.split(".")[0] in fields
    assert chat_plan(CHAT | fields, 1000)[1].sampling.grammar == spec
    assert completion_plan({"prompt": "x"} | fields, 1000)[1].sampling.grammar == spec
    assert parse_sampling(fields).grammar == spec


@pytest.mark.parametrize(
    "fields", [{}, {"regex": None}, {"grammar": ""}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}]
)
def test_some_ask_for_nothing(fields: dict[str, Any]) -> None:
    assert constraint(fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a", "choice": ["a"]},
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"json_schema": SCHEMA, "guided_json": SCHEMA},
    ],
)
def test_a_request_has_one_constraint(fields: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="at most one constraint") as caught:
        constraint(fields)
    assert caught.value.param is not None and caught.value.param.split(".")[0] in fields


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"response_format": {"type": "xml"}}, "of type", "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "needs a schema", "response_format"),
        ({"json_schema": "{"}, "not valid JSON", "json_schema"),
        ({"json_schema": "[]"}, "object or a boolean", "json_schema"),
        ({"json_schema": '{"const": NaN}'}, "NaN", "json_schema"),
        ({"json_schema": {"const": "\ud800"}}, "surrogates", "json_schema"),
        ({"json_schema": {"a": "x" * specs.MAX_BYTES}}, "larger than", "json_schema"),
        ({"json_schema": json.dumps({"a": "x" * specs.MAX_BYTES})}, "larger than", "json_schema"),
        ({"json_schema": "[" * 200_000}, "nested", "json_schema"),
        ({"regex": ""}, "empty", "regex"),
        ({"regex": "a\0"}, "NUL", "regex"),
        ({"regex": "(" * 65 + ")" * 65}, "nested", "regex"),
        ({"ebnf": "root ::= " + "(" * 70}, "nested", "ebnf"),
        ({"choice": []}, "between 1", "choice"),
        ({"choice": "abc"}, "list of strings", "choice"),
        ({"guided_choice": ["a", 1]}, "list of strings", "guided_choice"),
        ({"structured_outputs": {"lark": "x"}}, "takes no", "structured_outputs.lark"),
        ({"regex": "a", "grammar_options": {"truncate": "maybe"}}, "truncate", "grammar_options"),
        ({"regex": "a", "grammar_options": {"nonsense": 1}}, "nonsense", "grammar_options"),
        ({"response_format": {"type": "json_object", "truncate": 1}}, "truncate", "response_format"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(fields: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        constraint(fields)
    assert caught.value.param == param
    with pytest.raises(GrammarError) as inside:
        constraint(fields, prefix="sampling_params.")
    assert inside.value.param == f"sampling_params.{param}"


def test_options_travel_with_the_spec() -> None:
    given = {"truncate": "hard", "whitespace": "fixed", "backend": "xgrammar"}
    spec = constraint({"regex": "a", "grammar_options": given})
    assert spec is not None and spec.options == GrammarOptions(truncate="hard", whitespace="fixed", backend="xgrammar")
    compact = constraint({"structured_outputs": {"json": {}, "disable_any_whitespace": True, "truncate": "hard"}})
    assert compact is not None and compact.options == GrammarOptions(truncate="hard", whitespace="compact")
    loose = constraint({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": False}}})
    assert loose is not None and not loose.options.strict


def test_formats_with_the_schema_inside() -> None:
    assert format_of({"type": "text"}, param="text.format") is None
    spec = format_of({"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, param="text.format")
    assert spec == GrammarSpec("json_schema", TEXT, GrammarOptions(strict=True, truncate="fit"), "text.format")
    with pytest.raises(GrammarError) as caught:
        format_of({"type": "json_schema"}, param="output_config.format")
    assert caught.value.param == "output_config.format"


def test_limits_hold_for_specs_that_others_made() -> None:
    specs.check(GrammarSpec("regex", "a"))
    for spec in (GrammarSpec("regex", ""), GrammarSpec("regex", "\0"), GrammarSpec("ebnf", "x" * (specs.MAX_BYTES + 1))):
        with pytest.raises(GrammarError):
            specs.check(spec)


@pytest.mark.parametrize(
    ("text", "quotes", "depth"),
    [
        ("", True, 0),
        ("[[]]", True, 2),
        ('{"a": "[[["}', True, 1),
        (r'["\"[["]', True, 1),
        ("((a)(b(c)))", False, 3),
        (r"\(\(", False, 0),
        ('("")', False, 1),
    ],
)
def test_nesting(text: str, quotes: bool, depth: int) -> None:
    assert specs.nesting(text, quotes=quotes) == depth


def test_engines_follow_from_the_spec_alone() -> None:
    for kind, order in ORDER.items():
        spec = GrammarSpec(kind, "x")  # type: ignore[arg-type]
        assert engines(spec) == order
        for name in ("fsm", "xgrammar", "llguidance"):
            assert engines(spec, name) == ((name,) if name in order else order)
            asked = GrammarSpec(kind, "x", GrammarOptions(backend=name))  # type: ignore[arg-type]
            if name in order:
                assert engines(asked, "xgrammar") == (name,)
            else:
                with pytest.raises(GrammarError, match="serves no"):
                    engines(asked)
