"""Masks shared by place are those that would be made, whatever text led there, and places are shared where values do not matter."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import schema_fuzz
from grammar_walk import BYTES
from service_schemas import NUMERIC, value

from radixrt.errors import GrammarError
from radixrt.grammar import shared_masks
from radixrt.grammar.llguidance_engine import LLGuidanceGrammar, compile
from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.shared_masks import SharedMasks
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarOptions, GrammarSpec


def masks(grammar: LLGuidanceGrammar, rng: random.Random) -> int:
    """Walk a random text, and compare each mask, and some ways to an end, with those that its own matcher makes; returns how many
    masks were compared."""
    state, seen = grammar.new_state(), 0
    while not state.is_finished() and seen < 60:
        shared, made = np.full((2, BYTES.num_words), -1, dtype=np.int32)
        state.fill_mask(shared)
        state._make_mask(made)
        assert (shared == made).all(), BYTES.spell(state._tokens)
        if rng.random() < 0.3:
            check_way(state, rng.randrange(1, grammar._masks.reach + 20))
        allowed = np.nonzero(np.unpackbits(made.view(np.uint8), bitorder="little"))[0].tolist()
        likely = [token for token in allowed if (BYTES.bytes_of(token) or b"a")[:1] in b'ab1q"\\:,{}[]\xc3\xa9 \n\t']
        if not allowed:
            break
        assert state.accept(rng.choice(likely if likely and rng.random() < 0.9 else allowed))
        seen += 1
        if rng.random() < 0.1:
            state.rollback(rng.randrange(min(3, len(state._tokens) + 1)))
    return seen


def check_way(state: Any, room: int) -> None:
    """Ways end the text, in time; what is kept, by whomever, changes none of them."""
    way = state.close(room)
    assert way is not None or state._way(room) is None
    if way is not None:
        assert len(way) <= room
        end = state.fork()
        assert all(end.accept(token) for token in way), BYTES.spell(state._tokens)
        assert end.is_accepting()
    alone = state.fork()
    alone._masks = SharedMasks(state._masks.outline, BYTES)
    alone._masks.reach = state._masks.reach
    assert alone.close(room) == way, BYTES.spell(state._tokens)


@pytest.mark.parametrize("make", [lambda rng: value(rng, 3), schema_fuzz.schema], ids=["services", "any"])
@pytest.mark.parametrize("seed", range(6))
def test_a_shared_mask_is_the_one_its_state_would_make(make: Any, seed: int) -> None:
    rng, compared, forgetting = random.Random(seed), 0, 0
    while compared < 600 or (not forgetting and compared < 5000):
        options = GrammarOptions(whitespace=rng.choice(("compact", "flexible")))
        try:
            grammar = compile(GrammarSpec("json_schema", json.dumps(make(rng)), options), BYTES)
        except GrammarError:
            continue
        compared += sum(masks(grammar, rng) for _ in range(12))
        forgetting += grammar._masks.outline.forgets
    assert forgetting


@pytest.mark.parametrize("asked", NUMERIC, ids=json.dumps)
def test_numbers_share_masks_only_where_their_digits_do_not_matter(asked: dict[str, Any]) -> None:
    rng = random.Random(json.dumps(asked))
    schema = {"type": "array", "items": asked, "minItems": 1, "maxItems": 4}
    grammar = compile(GrammarSpec("json_schema", json.dumps(schema), GrammarOptions(whitespace="compact")), BYTES)
    for _ in range(25):
        state = grammar.new_state()
        for _ in range(30):
            shared, made = np.full((2, BYTES.num_words), -1, dtype=np.int32)
            state.fill_mask(shared)
            state._make_mask(made)
            assert (shared == made).all(), BYTES.spell(state._tokens)
            allowed = np.nonzero(np.unpackbits(made.view(np.uint8), bitorder="little"))[0].tolist()
            digits = [token for token in allowed if (BYTES.bytes_of(token) or b"a")[:1] in b"0123456789.-e"]
            if not allowed or state.is_finished():
                break
            assert state.accept(rng.choice(digits if digits and rng.random() < 0.9 else allowed))


@pytest.mark.parametrize(("first", "second", "same"), [
    ("12", "123", False), ("1234", "987654", True), ("-1234", "1234", False), ("0", "1234", False), ("1234.", "1234", False),
    ("1234.5", "8888.99", True), ("1234.0", "8888.000", True), ("1234.0", "1234.01", False), ("12.5", "12.7", True),
    ("1.10", "1.1", False), ("1.010", "1.20", True), ("1.101", "1.1", True),
])  # fmt: skip
def test_of_numbers_counts_what_they_are_compared_with(first: str, second: str, same: bool) -> None:
    outline = Outline({"type": "number", "minimum": -5, "maximum": 120})
    assert (outline.after(Place(), first.encode()) == outline.after(Place(), second.encode())) is same


def test_a_walk_along_known_masks_does_not_move_the_matcher() -> None:
    grammar = compile(GrammarSpec("json_schema", json.dumps(PERSON), GrammarOptions()), BYTES)
    tokens = list(b'{"name": "Ada", "age": 12')
    row, end, expected = np.full((3, BYTES.num_words), -1, dtype=np.int32)
    for _ in range(2):
        state = grammar.new_state()
        for at, token in enumerate(tokens):
            state.fill_mask(row)
            assert at != 6 or not state.is_accepting()  # which the matcher is asked
            assert state.accept(token)
        state.fill_mask(end)
        behind = state._num_behind
        assert not state.accept(ord("x"))
    assert behind == len(tokens) - 6
    state.rollback(3)
    state.fill_mask(row)
    state._make_mask(expected)
    assert state._num_behind == 0 and (row == expected).all()
    assert all(map(state.accept, tokens[-3:])) and not state.fork().accept(ord("x"))
    state._make_mask(expected)
    assert (end == expected).all()


def test_room_is_kept_and_what_left_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Vocabulary(BYTES.token_bytes, BYTES.end_ids, BYTES.encode, BYTES.size)
    monkeypatch.setattr(shared_masks, "MAX_BYTES", 5 * 4 * words.num_words)
    grammar = compile(GrammarSpec("json_schema", json.dumps(PERSON), GrammarOptions()), words)
    first, second = grammar.new_state(), grammar.new_state()
    shared, made = np.full((2, words.num_words), -1, dtype=np.int32)
    for token in b'{"name": "Ada", "age": 12, "kind": "cow"}':
        for state in (first, second):
            state.fill_mask(shared)
            state._make_mask(made)
            assert (shared == made).all()
            assert state.accept(token)
        kept = list(grammar._masks._kept._spots)
        assert len(kept) <= 5 and all(spot.is_kept for spot in kept)
        assert set(grammar._masks._spots.values()) == {spot for spot in kept if spot._home is grammar._masks._spots}
    assert sum(spot.mask is not None for spot in first._spots if spot is not None) <= 5


def test_nobody_is_led_to_a_spot_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Vocabulary(BYTES.token_bytes, BYTES.end_ids, BYTES.encode, BYTES.size)
    monkeypatch.setattr(shared_masks, "MAX_BYTES", 2 * 4 * words.num_words)
    masks = SharedMasks(Outline(PERSON), words)
    start = masks.start()
    left = masks.after(start, ord("{"), b"{")
    assert left is not None and masks.after(start, ord("{"), b"{") is left
    start.was_used = True
    masks.after(left, ord('"'), b'"')
    assert start.is_kept and not left.is_kept
    found = masks.after(start, ord("{"), b"{")
    assert found is not None and found.is_kept and found.place == left.place


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}, "kind": {"enum": ["cat", "cow"]}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"name":"Ada","age":', '{"name":"Bob","age":', True),
        ('{"name":"Ad', '{"name":"Bo', True),
        ('{"name" \n:\t"Ad"  ,"', '{ "name": "Bo",\n"', True),
        ('{"name": \t', '{"name":\n\n', True),
        ('{"name": ', '{"name":  ', False),
        ('{"name": "a ', '{"name": "a  ', False),
        ('{"name":"\\n', '{"name":"é', True),
        ('{"name":"Ada","age":1,', '{"name":"Bobby","age":234,', True),
        ('{"name":"A', '{"name":"Bo', False),
        ('{"name":"c', '{"name":"b', False),
        ('{"name":"\\', '{"name":"b', False),
        ('{"age":1', '{"age":2', False),
        ('{"age":1,', '{"name":"",', False),
        ('{"name":"Ada"', '{"name":"Ada" ', False),
    ],
)
def test_texts_are_at_one_place_where_their_values_do_not_matter(one: str, other: str, same: bool) -> None:
    def place(outline: Outline, text: str) -> Place | None:
        return outline.after(outline.start(), text.encode())

    outline, strict = Outline(PERSON), Outline({**PERSON, "not": {}})
    assert (place(outline, one) == place(outline, other)) is same
    assert place(strict, one) != place(strict, other)


NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": {"type": "null"}}


@pytest.mark.parametrize(
    ("schema", "one", "other", "same"),
    [
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"yéy\\n', True),
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"', False),
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"a', False),
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"b', False),
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"ab', True),
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"x\\', False),
        (NAMED, '{"a":1,"b":null,"x', '{"a":1,"b":null,"x":', False),
        ({**NAMED, "patternProperties": {"^x": True}}, '{"a":1,"b":null,"x', '{"a":1,"b":null,"y', False),
        ({**NAMED, "properties": {"\0": {}}}, '{"x', '{"y', False),
        (NAMED, '{"a":1,"b":null,"x":', '{"a":1,"b":null,"yy":', True),
        (NAMED, '{"a":1,"b":null', '{"a":1,"x":null', False),
        (NAMED, '{"a":', '{"x":', False),
        (NAMED, '{"a":1,"b":null,"x":null', '{"a":1,"b":null', False),
        (NAMED, '{"a":1,"b":null,"x":null,', '{"a":1,"b":null,"y":null, "z": null,', True),
        (NAMED, '{"a":1,"b":null,"x":null,"q":', '{"a":1,"b":null,"y":null, "z": null, "x":', True),
        (NAMED, '{"a":1,"b":null,"x":null,"a":', '{"a":1,"b":null,"y":null, "z": null, "x":', False),
        ({**NAMED, "patternProperties": {"^x": True}}, '{"a":1,"b":null,"x":', '{"a":1,"b":null,"yy":', False),
        ({"type": "object"}, '{"x": {"y": [1, {"z": "', '{"u": {"": ["", 3, {"\\n": "', True),
        ({"type": "object"}, '{"x": {"y": [1', '{"x": {"y": [[1', False),
        ({"type": "object"}, '{"k:', '{"l:', True),
        ({"type": "object"}, '{"k:', '{"k":', False),
        ({"type": "array", "minItems": 1}, "[1,2,", "[[3], null,true,", True),
        ({"type": "array", "minItems": 1}, "[1", "[1,1", False),
        ({"type": "array", "minItems": 2}, '["",', '["","",', False),
        ({"type": "array", "maxItems": 4}, '["",', '["","",', False),
        ({"type": "array", "prefixItems": [{}]}, '["",', '["","",', False),
    ],
)
def test_members_and_items_are_not_counted_where_any_number_may_come(schema: Any, one: str, other: str, same: bool) -> None:
    outline = Outline(schema)
    assert (outline.after(outline.start(), one.encode()) == outline.after(outline.start(), other.encode())) is same


@pytest.mark.parametrize("seed", range(3))
def test_a_place_does_not_depend_on_how_its_text_was_cut(seed: int) -> None:
    rng, pieces = random.Random(seed), ['{"', '"', "name", "cat", "c", "é", "\\n", "\\", " ", ",", ":", "[", "]", "}", "12"]
    for schema in (PERSON, {**PERSON, "not": {}}, {"type": "array", "items": {"type": "string", "pattern": "^a"}}):
        outline = Outline(schema)
        for _ in range(60):
            text = "".join(rng.choices(pieces, k=12)).encode()
            whole, one_by_one = outline.after(outline.start(), text), outline.start()
            for byte in text:
                after = outline.after(one_by_one, bytes((byte,)))
                assert after is not None
                one_by_one = after
            assert whole == one_by_one
