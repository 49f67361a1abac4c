"""Masks of strings under a pattern, looked up by states of an automaton, are those that the engine makes."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from grammar_walk import BYTES, allowed, pieces

from radixrt.errors import GrammarError
from radixrt.grammar import pattern_masks, string_patterns
from radixrt.grammar.llguidance_engine import ESCAPES, compile
from radixrt.grammar.pattern_masks import PatternMasks
from radixrt.grammar.schema.formats import FORMATS
from radixrt.grammar.schema.patterns import engine_pattern
from radixrt.grammar.string_masks import StringTokens
from radixrt.grammar.string_patterns import Alternative, Bodies, string_body
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarOptions, GrammarSpec

PATTERNS = [
    "^a+$", "a", '^[^"]*$', "^b|c$", "^(ab|bc|é)*$", r"\n", r"^[^\n]{2,5}$", r"^\S+$", "^[ -~]+$", "^.*$", "^(a|bc)?🙂", '^l{1,3}(",|: )*$',
    r"^[\x00-z]{2}$", '\\\\|"', "^$", r'^(?:[^"\\]|\\.)*$', "l$", "^x|(y|a)$", "[é-🙂]{2}", r"^\W\w$", "^[a-c ]{3}$", "a*?b", r"^[^\S ]*$",
    r"^\D*$", "(?:^a|b)c", "^[a--z]+$", r"^\p{L}a$", "^[a&&b~~|]+$", r"^\x7f?a$", r"^\x00|b$",
]  # fmt: skip
LETTERS = [  # what strings are made of, what closes them, and what may not be in them
    "a", "bc", "é", "🙂", "\\n", '\\"', "\\\\", "\\u", "\\", "\x7f", "\t", " ", "l", "1", "-", "0", "@", '"', '",', '"}', '"]',
    '": ', '"",',
]  # fmt: skip


def string(rng: random.Random) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "string"}
    out |= {"pattern": rng.choice(PATTERNS)} if rng.random() < 0.75 else {"format": rng.choice([*FORMATS])}
    if rng.random() < 0.4:
        out["maxLength"] = rng.randrange(9)
    if rng.random() < 0.3:
        out["minLength"] = rng.randrange(5)
    return out


def schema(rng: random.Random) -> Any:
    one, other = string(rng), string(rng)
    members = rng.choice((
        {"a": one, "bc": other},
        {"a": {"anyOf": [one, {"type": "null"}]}, "b": other, "l": {"enum": ["a", "bc"]}},
        {"a": {"anyOf": [one, {"type": "string", "maxLength": 3}]}, "b": {"type": "string"}},
        {"a": {"anyOf": [one, other]}, "b": {"type": ["string", "integer"], "pattern": "^a"}},
        {"a": {"anyOf": [one, {"const": "bc"}]}, "b": one},
        {"a": {"anyOf": [{"type": "string", "maxLength": 2}, {"enum": ['l"', 1, "bc1", "-\n", ""]}]}, "b": other},
        {"a": {"type": "string", "anyOf": [{"maxLength": 2}, {"minLength": 4}], "maxLength": 6}, "b": {"anyOf": [one, {"enum": [1]}]}},
    ))  # fmt: skip
    whole = {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}
    return rng.choice((whole, whole, one, {"type": "array", "items": one, "minItems": 1}))


@pytest.mark.parametrize("seed", range(4))
def test_a_mask_looked_up_is_the_one_the_engine_makes(seed: int) -> None:
    rng, words, looked_up = random.Random(seed), pieces(LETTERS, seed), 0
    closers = [token for token, spelled in enumerate(words.token_bytes) if spelled and b'"' in spelled]
    for _ in range(40):
        try:
            grammar = compile(GrammarSpec("json_schema", json.dumps(schema(rng)), GrammarOptions()), words)
        except GrammarError:
            continue
        for _ in range(5):
            state = grammar.new_state()
            while not state.is_finished() and len(state._tokens) < 30:
                shared, made, found = np.full((3, words.num_words), -1, dtype=np.int32)
                state.fill_mask(shared)
                state._make_mask(made)
                assert (shared == made).all(), (grammar.text, words.spell(state._tokens))
                asked = grammar._masks.outline.string(state._place())
                if asked is not None and asked.body is not None and state._compose_mask(state._place(), found):
                    looked_up += 1
                    assert (found == made).all(), (grammar.text, words.spell(state._tokens))
                forced, by_engine = state.forced_bytes(99), state._matcher.compute_ff_bytes()
                assert by_engine.startswith(forced), (grammar.text, words.spell(state._tokens))
                may = sorted(allowed(state, words))
                closing = sorted(set(may).intersection(closers))
                if not may:
                    break
                assert state.accept(rng.choice(closing if closing and rng.random() < 0.3 else may))
    assert looked_up > 500


@pytest.mark.parametrize("pattern", ['^[^"]*$', r"^[^\\]+$", r'^[^"\n]$', r"^[\x00-!]$", r"^\S$", r"^[^\s\\]$", r"^(?:[^\\]|\n)$"])
def test_a_class_lets_no_escape_through_that_it_excludes(pattern: str) -> None:
    grammar = compile(GrammarSpec("json_schema", json.dumps({"type": "string", "pattern": pattern}), GrammarOptions()), BYTES)
    escaped = {letter: json.loads(f'"\\{letter}"') for letter in 'nrbtf"\\'}
    inside = grammar.new_state()
    assert all(map(inside.accept, b'"\\'))
    expected = {ord(letter) for letter, text in escaped.items() if re.search(pattern, text)}
    made = np.full(BYTES.num_words, -1, dtype=np.int32)
    inside._make_mask(made)
    by_engine = {byte for byte in range(256) if made[byte >> 5] >> (byte & 31) & 1}
    assert expected == by_engine == {token for token in allowed(inside) if token < 256}


@pytest.mark.parametrize(("pattern", "known"), [
    ("^a$", True), ("^a|b$|c", True), ("(?:^a|b)", False), ("^(a$|b)", False), (r"^\p{L}$", False), ("^[a--z]$", False), ("$^", False),
    ("^^a", False), (r"\$", True), (r"^[\^$|]\|$", True), ("^(?:[a-z]{1,99}x){99}$", False),
])  # fmt: skip
def test_what_is_not_read_surely_is_left_to_the_engine(pattern: str, known: bool) -> None:
    assert (string_body(Alternative(engine_pattern(pattern))) is not None) is known


def test_who_counts_too_much_is_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_patterns, "MAX_MOVES", 40)
    assert string_body(Alternative("^[ab]+$", 1, 20)) is not None and string_body(Alternative("^[ab]+$", 1, 41)) is None


def test_a_grammar_makes_a_few_automata_and_has_all_that_others_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_patterns, "MAX_MADE", 2)
    patterns = [Alternative(f"^{'x' * length}$") for length in range(31, 34)]
    first = Bodies()
    assert [first.of(pattern) is not None for pattern in patterns] == [True, True, False]
    second = Bodies()
    assert second.of(patterns[2]) is not None
    assert [second.of(pattern) for pattern in patterns[:2]] == [first.of(pattern) for pattern in patterns[:2]]
    assert first.num_bytes > 0 and first.of(patterns[2]) is None


def test_tables_of_states_take_no_more_room_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Vocabulary(BYTES.token_bytes, BYTES.end_ids, BYTES.encode, BYTES.size)
    masks = PatternMasks(words, StringTokens(words, "n"))
    bodies = [string_body(Alternative(f"^{'y' * length}$")) for length in range(20, 24)]
    monkeypatch.setattr(pattern_masks, "MAX_BYTES", bodies[0].num_bytes + 30 * 4 * words.num_words if bodies[0] is not None else 0)
    expected = [[masks.of(body, state, words).mask.copy() for state in range(20)] for body in bodies if body is not None]
    for _ in range(2):
        for body, known in zip(bodies, expected, strict=True):
            assert body is not None
            for state in range(20):
                assert (masks.of(body, state, words).mask == known[state]).all()
                kept = sum(one.num_bytes + sum(made.mask.nbytes for made in states.values()) for one, states in masks._known.items())
                assert kept == masks._num_bytes <= pattern_masks.MAX_BYTES


def test_who_compiles_makes_the_tables_of_few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Vocabulary(BYTES.token_bytes, BYTES.end_ids, BYTES.encode, BYTES.size)
    kept = pattern_masks.pattern_masks(words, ESCAPES)._known
    few, many = (string_body(Alternative(engine_pattern(f"^{'z' * length}$"))) for length in (25, 45))
    assert few is not None and many is not None
    monkeypatch.setattr(pattern_masks, "MAX_FILLED", few.tables.num_states + 1)
    for length, body, filled in ((25, few, few.tables.num_states), (45, many, 0)):
        schema = {"type": "array", "items": {"pattern": f"^{'z' * length}$"}}
        compile(GrammarSpec("json_schema", json.dumps(schema), GrammarOptions()), words)
        assert len(kept.get(body, ())) == filled


def test_grammars_with_the_same_pattern_share_tables_and_requests_places() -> None:
    words = Vocabulary(BYTES.token_bytes, BYTES.end_ids, BYTES.encode, BYTES.size)
    bodies = []
    for name in "ab":
        schema = {"type": "object", "properties": {name: {"type": "string", "pattern": "^[a-z]{2}[0-9]+$"}}, "required": [name]}
        grammar = compile(GrammarSpec("json_schema", json.dumps(schema), GrammarOptions(whitespace="compact")), words)
        places = []
        for text in (b"ab1", b"yz123"):
            state = grammar.new_state()
            assert all(map(state.accept, b'{"%s":"%s' % (name.encode(), text)))
            places.append(state._place())
        assert places[0] == places[1] is not None
        asked = grammar._masks.outline.string(places[0])
        bodies.append(None if asked is None else asked.body)
    assert bodies[0] is bodies[1] is not None
