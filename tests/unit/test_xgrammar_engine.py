"""Grammars through xgrammar: the language is what was asked for, or the spec is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from grammar_walk import BYTES, accepts, allowed

from radixrt.errors import GrammarError
from radixrt.grammar import xgrammar_engine
from radixrt.grammar.xgrammar_engine import compile, from_bytes, is_cheap, to_bytes
from radixrt.grammar.xgrammar_regex import checked_regex
from radixrt.types import GrammarOptions, GrammarSpec


def spec(kind: Any, text: Any, **options: Any) -> GrammarSpec:
    return GrammarSpec(kind, text if isinstance(text, str) else json.dumps(text), GrammarOptions(**options))


@pytest.mark.parametrize(
    "pattern",
    ["a.{1,3}b", "[a-c]+x?", "^ab|cd$", r"\d{2}-\d{2}", "(?:ab)*?c", r"a\.b\$", "(a|b(c|d)){2}", "é{2}", "[^x-z]y"],
)
def test_a_regular_expression_is_that_of_re(pattern: str) -> None:
    grammar = compile(spec("regex", pattern), BYTES)
    texts = ["ab", "axb", "a\nb", "axxxxb", "abx", "cd", "12-34", "c", "ababc", "a.b$", "bcbd", "aa", "éé", "qy", "xy", "a_-9", "aé", ""]
    assert [accepts(grammar, text) for text in texts] == [re.fullmatch(pattern, text) is not None for text in texts]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\D",
        r"[^\d]",
        r"[\D]",
        r"\x00",
        "[\\x00]",
        "a++",
        "(?i)a",
        "a(?=b)",
        r"(a)\1",
        r"\bfoo",
        "a{1001}",
        "((a{100}){100}){100}",
        "a^b",
        "(",
        "[z-a]",
    ],
)
def test_a_regular_expression_that_might_be_read_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        checked_regex(pattern)


def test_gbnf_under_the_name_of_ebnf_is_read() -> None:
    grammar = compile(spec("ebnf", 'root ::= | "a" . "b"{,2}'), BYTES)
    assert [accepts(grammar, text) for text in ("", "ax", "axbb", "a", "axbbb")] == [True, True, True, False, False]


def test_choices_are_exact() -> None:
    choices = ['a"b', "a\\", "é😀", "[x]", "line\nend"]
    grammar = compile(spec("choice", choices), BYTES)
    assert all(accepts(grammar, choice) for choice in choices)
    assert not any(accepts(grammar, text) for text in ("", "a", "x", 'a\\"b', "line"))


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {
                "begin": "<f>",
                "content": {
                    "type": "json_schema",
                    "json_schema": {
                        "allOf": [{"type": "object"}, {"properties": {"a": {"type": "integer"}}, "additionalProperties": False}]
                    },
                },
                "end": "</f>",
            }
        ],
    },
}


def test_a_structural_tag_enforces_its_schemas() -> None:
    grammar = compile(spec("structural_tag", TAG), BYTES)
    assert accepts(grammar, 'free text <f>{"a":1}</f> more')
    assert not accepts(grammar, '<f>{"a":"x"}</f>')
    assert not accepts(grammar, "<f>3</f>")
    assert grammar.min_tokens == 0


def test_a_schema_that_is_not_enforced_is_refused_wherever_it_stands() -> None:
    bad = {"type": "string", "pattern": "a"}
    tag = json.loads(json.dumps(TAG))
    tag["format"]["tags"][0]["content"]["json_schema"] = bad
    for refused in (spec("json_schema", bad), spec("structural_tag", tag)):
        with pytest.raises(GrammarError, match="pattern"):
            compile(refused, BYTES)


def test_a_schema_of_simple_keywords_is_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", "é"]}, "c": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = compile(spec("json_schema", schema), BYTES)
    good = {"a": 3, "b": "é", "c": [{"a": 4}]}
    assert accepts(grammar, json.dumps(good, ensure_ascii=False))
    for bad in ({**good, "a": 2}, {**good, "b": "y"}, {**good, "c": [{}]}, {"b": "x"}, {**good, "d": 1}):
        assert not accepts(grammar, json.dumps(bad, ensure_ascii=False))


def test_states_fork_roll_back_and_close() -> None:
    grammar = compile(spec("ebnf", 'root ::= "[" item ("," item)* "]"\nitem ::= [0-9]+ | "true"'), BYTES)
    state = grammar.new_state()
    assert state.forced_bytes(9) == b"["
    assert all(state.accept(token) for token in b"[12,t")
    assert state.forced_bytes(9) == b"rue"
    fork = state.fork()
    assert fork.accept(ord("r"))
    state.rollback(2)
    assert allowed(state) == {*b"0123456789,]", BYTES.token_of[b"12"]}
    end = fork.close(9)
    assert end is not None
    assert BYTES.spell(end) == b"ue]"
    assert all(fork.accept(token) for token in end)
    assert fork.is_finished()
    assert fork.accept(BYTES.end_ids[1])
    fork.rollback(1)
    assert allowed(fork) == set(BYTES.end_ids)


def test_forced_text_without_an_end_is_given_in_parts() -> None:
    state = compile(spec("ebnf", 'root ::= "b" | "a" tail\ntail ::= "' + "a" * 500 + '"'), BYTES).new_state()
    assert state.accept(ord("a"))
    assert set(state.forced_bytes(400)) == {ord("a")}
    with pytest.raises(GrammarError, match="no finite answer"):
        compile(spec("ebnf", 'root ::= "a" root'), BYTES)


def test_a_grammar_with_slow_masks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgrammar_engine, "MAX_SECONDS_A_TOKEN", 0.0)
    with pytest.raises(GrammarError, match="too long"):
        compile(spec("ebnf", 'root ::= "a" "b"'), BYTES)


def test_masks_agree_with_acceptance() -> None:
    state = compile(spec("ebnf", 'root ::= "tr" [a-z]+ "\\"}" | "é" root'), BYTES).new_state()
    for text in ("é", "tru"):
        expected = allowed(state)
        assert {token for token in range(BYTES.size) if state.fork().accept(token)} == expected
        assert all(state.accept(token) for token in text.encode())


def test_a_grammar_comes_back_from_bytes() -> None:
    grammar = compile(spec("regex", "[a-c]{3}"), BYTES)
    again = from_bytes(to_bytes(grammar), BYTES)
    assert again.min_tokens == grammar.min_tokens == 3
    assert allowed(again.new_state()) == allowed(grammar.new_state())
    assert accepts(again, "abc")
    assert not accepts(again, "abd")


@pytest.mark.parametrize(
    "bad",
    [
        spec("ebnf", "root ::= x"),
        spec("ebnf", "root ::= root"),
        spec("ebnf", 'root ::= "\0"'),
        spec("structural_tag", {"type": "?"}),
        spec("tool_calls", "{}"),
    ],
)
def test_what_cannot_be_read_is_refused(bad: GrammarSpec) -> None:
    with pytest.raises(GrammarError) as caught:
        compile(bad, BYTES)
    assert "std::" not in caught.value.message and ".cc" not in caught.value.message


def test_a_text_whose_masks_take_ever_longer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = compile(spec("ebnf", 'root ::= s "."\ns ::= s s | "a" | "b"'), BYTES)
    monkeypatch.setattr(xgrammar_engine, "SPARE_SECONDS", 0.2)
    monkeypatch.setattr(xgrammar_engine, "MAX_SECONDS_A_TOKEN", 0.0)
    state = grammar.new_state()

    def write() -> None:
        for _ in range(400):
            allowed(state)
            assert state.accept(BYTES.token_of[b"a"])

    with pytest.raises(GrammarError, match="too long"):
        write()
    assert allowed(grammar.new_state()), "and no other text of the grammar is"


def test_cheap_is_short_and_without_repeats() -> None:
    assert is_cheap(spec("choice", ["a", "b"]))
    assert is_cheap(spec("regex", "a|b"))
    assert not is_cheap(spec("regex", "(?:a|b){2,9}"))
    assert not is_cheap(spec("ebnf", 'root ::= "a" root'))
    assert not is_cheap(spec("json_schema", {}))
    assert xgrammar_engine.CHEAP_BYTES <= 1024
