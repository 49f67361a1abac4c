"""Schemas through llguidance: masks and acceptance agree, states come back from forks and rollbacks, and every text can be closed."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from grammar_walk import BYTES, accepts, allowed

from radixrt.errors import GrammarError
from radixrt.grammar.llguidance_engine import compile
from radixrt.grammar.vocabulary import whole_characters
from radixrt.types import GrammarOptions, GrammarSpec

INVOICE = {
    "type": "object",
    "properties": {
        "vendor": {"type": "string"},
        "état": {"enum": ["payé", "dû"]},
        "lines": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"$ref": "#/$defs/line"}},
        "due": {"type": ["string", "null"], "format": "date"},
    },
    "required": ["vendor", "état", "lines"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}},
}


def schema(value: Any, **options: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value), GrammarOptions(**options))


def test_text_of_the_schema_is_accepted_and_other_is_not() -> None:
    grammar = compile(schema(INVOICE), BYTES)
    good = {"vendor": "a", "état": "dû", "lines": [{"n": 3, "more": [1.5, {}]}], "due": None}
    assert accepts(grammar, json.dumps(good, ensure_ascii=False))
    for key, value in (("état", "x"), ("lines", []), ("lines", [{"n": 0}]), ("lines", [{}]), ("due", "today"), ("other", 1)):
        assert not accepts(grammar, json.dumps({**good, key: value}, ensure_ascii=False))


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"whitespace": "compact"}, {'{"a":1,"b":[]}': True, '{"a": 1,"b":[]}': False, '{"a":1, "b":[]}': False}),
        ({}, {'{"a": 1, "b": []}': True, '{"a":1, "b": []}': False, '{"a": 1,"b": []}': False}),
        ({"whitespace": "flexible", "max_whitespace": 2}, {'{"a":1,"b":[]}': True, '{\n\t"a" : 1,  "b":[ ]}': True,
            '{"a":   1,"b":[]}': False}),
        ({"whitespace": "flexible", "max_whitespace": 0}, {'{"a":1,"b":[]}': True, '{"a": 1,"b":[]}': False}),
    ],
)
def test_whitespace_is_as_asked(options: dict[str, Any], texts: dict[str, bool]) -> None:
    grammar = compile(schema({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}}, **options), BYTES)
    assert {text: accepts(grammar, text) for text in texts} == texts


def test_a_key_has_one_spelling() -> None:
    grammar = compile(schema({"type": "object", "properties": {"a": {"type": "integer"}}}), BYTES)
    assert accepts(grammar, '{"a": 1, "b": "x"}')
    assert not accepts(grammar, '{"a": 1, "\\u0061": "x"}')


def random_walk(grammar: Any, seed: int, steps: int) -> tuple[Any, list[int]]:
    rng, state, tokens = random.Random(seed), grammar.new_state(), []
    for _ in range(steps):
        ids = [token for token in allowed(state) if not BYTES.is_end(token)]
        if not ids:
            break
        tokens.append(rng.choice(ids))
        assert state.accept(tokens[-1])
    return state, tokens


@pytest.mark.parametrize("seed", range(6))
def test_masks_agree_with_acceptance(seed: int) -> None:
    state, _ = random_walk(compile(schema(INVOICE), BYTES), seed, 10 * seed)
    expected = allowed(state)
    for token in range(BYTES.size):
        fork = state.fork()
        assert fork.accept(token) == (token in expected)
    assert (set(BYTES.end_ids) <= expected) == state.is_accepting()


def test_forced_text_may_be_cut_as_the_model_likes() -> None:
    state = compile(schema({"const": "true true"}), BYTES).new_state()
    assert state.accept(ord('"'))
    assert allowed(state) == {ord("t"), BYTES.token_of[b"true"]}


@pytest.mark.parametrize("seed", range(6))
def test_rollback_and_forks_are_as_if_never_accepted(seed: int) -> None:
    grammar = compile(schema(INVOICE), BYTES)
    state, tokens = random_walk(grammar, seed, 40)
    keep = len(tokens) // 2
    again = grammar.new_state()
    assert all(again.accept(token) for token in tokens[:keep])
    fork = state.fork()
    fork.rollback(len(tokens) - keep)
    assert allowed(fork) == allowed(again)
    assert fork.forced_bytes(99) == again.forced_bytes(99)
    assert all(fork.accept(token) for token in tokens[keep:])
    assert allowed(fork) == allowed(state)


@pytest.mark.parametrize("seed", range(12))
def test_a_text_cut_anywhere_can_be_closed(seed: int) -> None:
    state, tokens = random_walk(compile(schema(INVOICE), BYTES), seed, 4 * seed)
    before = allowed(state)
    end = state.close(400)
    assert end is not None
    assert allowed(state) == before
    assert end == state.close(400)
    assert all(state.accept(token) for token in end)
    assert state.is_accepting()
    json.loads(BYTES.spell([*tokens, *end]))
    assert state.close(0) == []


def test_a_close_that_does_not_fit_is_none() -> None:
    grammar = compile(schema(INVOICE), BYTES)
    assert grammar.min_tokens is not None
    assert grammar.new_state().close(grammar.min_tokens) is not None
    assert grammar.new_state().close(3) is None


def test_end_tokens_come_where_the_text_may_end_and_can_be_taken_back() -> None:
    state = compile(schema({"type": "integer"}), BYTES).new_state()
    end = BYTES.end_ids[0]
    assert not state.accept(end)
    assert state.accept(ord("1"))
    assert state.accept(end)
    assert state.is_finished()
    assert allowed(state) == set(BYTES.end_ids)
    assert not state.accept(ord("2"))
    state.rollback(1)
    assert not state.is_finished()
    assert state.accept(ord("2"))


def test_forced_text_is_what_must_come() -> None:
    state = compile(schema({"enum": ["北京", "北海"]}), BYTES).new_state()
    assert state.forced_bytes(99) == '"北'.encode()
    assert state.forced_bytes(3) == b'"'
    assert BYTES.spell(state.draft(99)) == '"北'.encode()
    assert all(state.accept(token) for token in '"北'.encode())


@pytest.mark.parametrize(
    ("text", "limit", "cut"), [("aé", 2, "a"), ("aé", 3, "aé"), ("😀", 3, ""), ("😀", 4, "😀"), ("日本", 5, "日"), ("", 3, "")]
)
def test_texts_are_cut_where_a_character_ends(text: str, limit: int, cut: str) -> None:
    assert whole_characters(text.encode(), limit).decode() == cut


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
        {"type": "string", "pattern": "^(?=a)b$"},
        {"type": "string", "pattern": "("},
        {"$ref": "#/nowhere"},
        {"type": "string", "minLength": 4, "pattern": "^a$"},
        False,
    ],
)
def test_what_has_no_answer_is_refused(bad: Any) -> None:
    with pytest.raises(GrammarError):
        compile(schema(bad), BYTES)


def test_masks_write_no_further_than_the_row() -> None:
    rows = np.full((3, BYTES.num_words), -1, dtype=np.int32)
    compile(schema(INVOICE), BYTES).new_state().fill_mask(rows[1])
    assert (rows[[0, 2]] == -1).all()


def test_no_way_fits_into_no_tokens() -> None:
    state = compile(schema(INVOICE), BYTES).new_state()
    assert state.close(0) is None
    assert state.accept(ord("{"))
    assert state.close(0) is None


@pytest.mark.parametrize(
    ("string", "begun", "length"),
    [
        ({"format": "email"}, "", 3),
        ({"format": "email"}, "ada", 2),
        ({"pattern": "^[a-z]{3}-x+$"}, "", 5),
        ({"pattern": "^[a-z]{3}-x+$"}, "ab", 3),
        ({"pattern": "^[a-z]{3}-x+$", "minLength": 8}, "abc-", 4),
        ({"pattern": "ß|end$"}, "en", 1),
        ({"pattern": "ß|end$"}, "e", 2),
    ],
)
def test_a_string_under_a_pattern_is_ended_with_as_few_bytes_as_can_be(string: dict[str, Any], begun: str, length: int) -> None:
    grammar = compile(schema({"type": "array", "items": {"type": "string", **string}, "minItems": 1}), BYTES)
    state = grammar.new_state()
    text = f'["{begun}'.encode()
    assert all(map(state.accept, text))
    end = state.close(100)
    assert end is not None and len(end) == length + len(b'"]')
    assert grammar.min_tokens <= len(text) + len(end)
    assert accepts(grammar, (text + bytes(end)).decode())
