"""Masks put together from a schema are those of the engine, bit by bit, wherever they are, and so is what must come next."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import schema_fuzz
from llguidance import LLMatcher
from service_schemas import NUMERIC, TEXTS, scalar, value

from radixrt.errors import GrammarError
from radixrt.grammar.llguidance_engine import JSON, LIMITS, LLGuidanceGrammar, _tokenizer, compile, compile_text, json_text
from radixrt.grammar.number_spellings import Numbers
from radixrt.grammar.schema import normalise
from radixrt.grammar.structure import MAX_TEXTS
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarOptions, GrammarSpec

PIECES = [
    "{", "}", "[", "]", ",", ":", ", ", ": ", " ", '"', "1", "12", "0", "-", ".", "e", "E+", "true", "fal", "null", "a", "ab", "b", "é",
    "\\n", '\\"', '": ', '", "', '"a', "tr", '"ab"',
]  # fmt: skip


def vocabulary(rng: random.Random) -> Vocabulary:
    """Every byte, pieces of JSON put together at random, some cut anywhere, some twice."""
    pieces = ["".join(rng.choices(PIECES, k=rng.randrange(1, 6))).encode() for _ in range(500)]
    pieces += [piece[rng.randrange(3) :] for piece in pieces[:100]] + [text.encode() for text in (*PIECES, *TEXTS)]
    tokens = [*(bytes((byte,)) for byte in range(256)), *filter(None, pieces), None]
    return Vocabulary(tokens, (len(tokens) - 1,), lambda text: list(text.encode()))


def members(rng: random.Random) -> dict[str, Any]:
    """An object whose members are of all kinds, some required, some in a list."""
    names = rng.sample(["a", "ab", "b", "é", "\n", '"', "1", "true", "c"], rng.randrange(1, 6))
    kinds = [scalar, lambda rng: rng.choice(NUMERIC), lambda rng: value(rng, 1), lambda rng: {"type": "boolean"}, lambda rng: {}]
    return {
        "type": "object",
        "properties": {name: rng.choice(kinds)(rng) for name in names},
        "required": rng.sample([*names, "zz"], rng.randrange(len(names) + 1)),
        "additionalProperties": rng.choice((False, True, scalar(rng))),
    }


def compare(
    grammar: LLGuidanceGrammar, engine: LLMatcher, words: Vocabulary, rng: random.Random, start: bytes = b""
) -> Counter[str]:
    """Walk a random text behind a start and compare each mask that can be put together; returns how many, by what was open."""
    state, seen = grammar.new_state(), Counter[str]()
    assert all(state.accept(words.token_of[bytes((byte,))]) for byte in start)
    assert engine.try_consume_tokens([words.token_of[bytes((byte,))] for byte in start]) == len(start)
    row, made = np.zeros((2, words.num_words), dtype=np.int32)
    while not engine.is_stopped() and sum(seen.values()) < 40:
        engine.unsafe_compute_mask_ptr(made.ctypes.data, made.nbytes)
        place = state._place()
        row[:] = -1
        assert place is not None
        is_known = grammar._structure.write(place, row)
        seen[place.kind if is_known else "unknown"] += 1
        if is_known:
            assert np.array_equal(row, made), (grammar.text, words.spell(state._tokens))
            known = grammar._structure.forced(place)
            assert known is None or known == (b"" if engine.is_accepting() else engine.compute_ff_bytes())
        bits = np.unpackbits(made.view(np.uint8), bitorder="little")
        choices = [token for token in np.nonzero(bits)[0].tolist() if not words.is_end(token)]
        if not choices:
            break
        likely = [token for token in choices if set(words.bytes_of(token) or b"") & set(b'"}],:')]
        token = rng.choice(likely if likely and rng.random() < 0.4 else choices)
        assert state.accept(token)
        assert engine.try_consume_tokens([token]) == 1
    return seen


@pytest.mark.parametrize("make", [members, lambda rng: value(rng, 3), schema_fuzz.schema], ids=["members", "services", "any"])
@pytest.mark.parametrize("seed", range(3))
def test_masks_from_the_schema_are_the_engines(make: Any, seed: int) -> None:
    rng, seen = random.Random(seed), Counter[str]()
    words = vocabulary(rng)
    for _ in range(40):
        try:
            options = GrammarOptions(whitespace=rng.choice(("fixed", "compact")))
            grammar = compile(GrammarSpec("json_schema", json.dumps(make(rng)), options), words)
        except GrammarError:
            continue
        engine = LLMatcher(_tokenizer(words), '%llguidance {"no_forcing": true}\n' + grammar.text, log_level=0, limits=LIMITS)
        for _ in range(3):
            seen += compare(grammar, engine.deep_copy(), words, rng)
    assert sum(seen.values()) - seen["unknown"] > 100


def test_nothing_is_said_of_values_in_objects_that_are_not_known() -> None:
    rng = random.Random(0)
    words = vocabulary(rng)
    named = {"type": "object", "properties": {"b": {}}, "required": ["b"]}
    member = {"anyOf": [{"type": ["null", "string", "array"]}, {"type": "object"}, named]}
    grammar = compile(GrammarSpec("json_schema", json.dumps({"patternProperties": {"b$": member}}), GrammarOptions()), words)
    engine = LLMatcher(_tokenizer(words), '%llguidance {"no_forcing": true}\n' + grammar.text, log_level=0, limits=LIMITS)
    seen: Counter[str] = sum((compare(grammar, engine.deep_copy(), words, rng, b'{"a": {') for _ in range(30)), Counter())
    assert seen["unknown"]


def test_many_keys_are_left_to_the_engine() -> None:
    words = vocabulary(random.Random(0))
    for count, is_known in ((MAX_TEXTS - 1, True), (MAX_TEXTS + 1, False)):
        schema = {"properties": {f"k{at}": {"type": "null"} for at in range(count)}, "type": "object", "additionalProperties": False}
        grammar = compile(GrammarSpec("json_schema", json.dumps(schema), GrammarOptions()), words)
        outline = grammar._masks.outline
        place = outline.after(outline.start(), b"{")
        assert place is not None
        assert grammar._structure.write(place, np.zeros(words.num_words, dtype=np.int32)) is is_known


RANGES = [
    (None, None), (0, None), (3, None), (-12, None), (None, 0), (None, 25), (None, -7), (0, 0), (-3, 120), (7, 7), (15, 1200),
    (-30, -4), (-9, 0),
]  # fmt: skip


@pytest.mark.parametrize("limits", RANGES, ids=str)
def test_numbers_are_spelled_as_the_engine_spells_them(limits: tuple[int | None, int | None]) -> None:
    rng = random.Random(str(limits))
    words = vocabulary(rng)
    bounds = {key: limit for key, limit in zip(("minimum", "maximum"), limits, strict=True) if limit is not None}
    schema = {"type": "array", "items": {"type": "integer", **bounds}, "minItems": 5}
    grammar = compile_text(JSON + json_text(normalise(schema), GrammarOptions(whitespace="compact")), words)
    engine = LLMatcher(_tokenizer(words), '%llguidance {"no_forcing": true}\n' + grammar.text, log_level=0, limits=LIMITS)
    seen: Counter[str] = sum((compare(grammar, engine.deep_copy(), words, rng) for _ in range(30)), Counter())
    assert seen["v"] and not seen["unknown"]


def test_whole_numbers_begin_where_one_of_the_range_goes_on() -> None:
    for low in range(-25, 26):
        for high in range(low, 26):
            numbers = Numbers("integer", low, high)
            spelled = [str(number) for number in range(low, high + 1)] + (["-0"] if low < 0 <= high else [])
            begun = {text[:end] for text in spelled for end in range(len(text) + 1)}
            for text in {*begun, *map(str, range(-99, 100)), "00", "-", "-0", "01"}:
                assert numbers.begins(text.encode()) == (text in begun), (low, high, text)
                assert numbers.is_whole(text.encode()) == (text in spelled), (low, high, text)


def test_a_token_may_end_a_key_that_is_named_and_hold_its_value() -> None:
    texts = [*(bytes((byte,)) for byte in range(256)), b'": ""', b'": "b"', b'b": "']
    words = Vocabulary([*texts, None], (len(texts),), lambda text: list(text.encode()))
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 0}}, "additionalProperties": {"type": "string"}}
    grammar = compile(GrammarSpec("json_schema", json.dumps(schema), GrammarOptions(whitespace="fixed")), words)
    state = grammar.new_state()
    found, made = np.full((2, words.num_words), -1, dtype=np.int32)
    for byte in b'{"a':
        assert state.accept(byte)
    state.fill_mask(found)
    state._make_mask(made)
    assert (found == made).all() and found[256 >> 5] >> (256 & 31) & 0b111 == 0b101
