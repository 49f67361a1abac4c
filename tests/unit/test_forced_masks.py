"""Masks before forced text are those of llguidance where it is told not to force, whatever the tokens and however a text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from radixrt.grammar.forced_masks import cut, is_seen_whole
from radixrt.grammar.llguidance_engine import JSON, LIMITS, _tokenizer, compile_text, json_text
from radixrt.grammar.schema import normalise
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarOptions

SCHEMAS: list[Any] = [
    {"enum": ["中", "乐"]},
    {"enum": ["北京", "北海", "é", "ê"]},
    {"enum": ["😀 ok", "😁"]},
    {"enum": [f"abcdefg{i}" for i in range(6)]},
    {"enum": [f"中{i}" for i in range(6)]},
    {"enum": ["international", "internal", "internet"]},
    {"enum": ["\ufffd a", "\ufffd b"]},
    {"const": 'a "quoted"\\ \n\ttext'},
    {"const": {"a": [1, None, {"b": "  x  "}]}},
    {"const": "zero width \u200b and more text than a token ever has, also where it is cut into single bytes"},
    {"type": "object", "properties": {"名": {"type": "string"}, "name": {"enum": ["né", "no"]}}, "required": ["名", "name"]},
    {"type": "object", "properties": {"n": {"type": "integer"}, "name": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "array", "items": {"enum": ["true", "truth", True]}, "minItems": 2, "maxItems": 3},
    {"type": "string", "pattern": "^(foo|foobar) [0-9]{3}-[0-9]{2}$"},
    {"type": "integer", "minimum": 1200, "maximum": 1234},
    *({"type": "object", "properties": {"n": value}, "required": ["n"], "additionalProperties": False} for value in (
        {"type": "integer"}, {"type": "number", "minimum": 0}, {"type": "integer", "exclusiveMaximum": 0}, {"type": "null"}, {},
        {"type": "boolean"}, {"enum": [True, 12, "x", None]}, {"type": ["integer", "null"], "minimum": 3}, {"type": "array"},
        {"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "array", "items": {"type": "boolean"}, "minItems": 1},
        {"type": ["number", "null"]}, {"type": ["string", "boolean"], "maxLength": 2},
        {"anyOf": [{"const": "né"}, {"type": "null"}, {"type": "number"}]},
    )),
    {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "string", "minLength": 2}},
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 0}, "n": {"enum": ["", "x", "name"]}}, "required": ["a", "n"]},
    {"anyOf": [{"const": "a"}, {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"]}]},
]


def words(rng: random.Random, lacking: bytes = b"") -> Vocabulary:
    """Every byte but some, pieces of texts cut anywhere, some of both twice, and ends of values, some of which start in a character."""
    text = "".join(json.dumps(schema, ensure_ascii=False) for schema in SCHEMAS) + '{"n": 12, "name": true, "a": "x"}", "' * 8
    spelled = text.encode()
    starts = [rng.randrange(len(spelled)) for _ in range(600)]
    pieces = [spelled[start : start + rng.choice((2, 2, 3, 4, 6, 9, 14))] for start in starts]
    values = b'-1, 0} -0 true} tru nul null, [] [1 {} {"n "x" ""'.split()
    pieces += [start + value[:length] for start in (b" ", b":", b": ") for value in values for length in (1, 2, 5)]
    pieces += [b'"' + piece[:length] for piece in pieces[:60] for length in (1, 2, 4)]
    ends = [end.encode()[at:] for i in range(6) for end, at in ((f"abcdefg{i}", 0), (f"中{i}", 1))]
    single = [bytes([byte]) for byte in range(256) if byte not in lacking]
    tokens = [*single, *pieces, *ends, *rng.sample(pieces, 40), b"n", b":", None, None]
    return Vocabulary(tokens, (len(tokens) - 1,), lambda text: list(text.encode()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("whitespace", "lacking"), [("fixed", b""), ("compact", b""), ("flexible", b""), ("fixed", b'" ia\xe4')])
def test_masks_are_those_without_forcing(seed: int, whitespace: Any, lacking: bytes) -> None:
    rng = random.Random(seed)
    vocabulary = words(rng, lacking)
    row, other = (np.zeros(vocabulary.num_words, dtype=np.int32) for _ in range(2))
    for schema in SCHEMAS:
        text = JSON + json_text(normalise(schema), GrammarOptions(whitespace=whitespace))
        grammar = compile_text(text, vocabulary, 1)  # where bytes lack some have no answer
        unforced = LLMatcher(_tokenizer(vocabulary), '%llguidance {"no_forcing": true}\n' + grammar.text, log_level=0, limits=LIMITS)
        state = grammar.new_state()
        assert not unforced.is_error()
        num_taken = 0
        for _ in range(40):
            if unforced.is_stopped():
                break
            if rng.random() < 0.3:
                state.forced_bytes(99)
            state._make_mask(row)
            unforced.unsafe_compute_mask_ptr(other.ctypes.data, other.nbytes)
            if not row.any():  # no token goes on with the text, where the engine stops
                assert lacking and unforced.is_stopped() and not unforced.is_accepting()
                break
            assert np.array_equal(row, other), (schema, state.forced_bytes(99))
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.size - 2]
            choices = np.nonzero(bits)[0].tolist()
            if not choices:
                break
            ends = [token for token in choices if b'"' in (vocabulary.bytes_of(token) or b"")]
            token = rng.choice(ends if ends and rng.random() < 0.3 else choices)
            assert state.accept(token)
            assert unforced.try_consume_tokens([token]) == 1
            num_taken += 1
            if rng.random() < 0.1:
                back = rng.randint(1, min(3, num_taken))
                state.rollback(back)
                unforced.rollback(back)
                num_taken -= back


def test_a_text_is_cut_into_the_longest_tokens() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"ab", b"abc", b"ab"], (), lambda text: [])
    assert cut(vocabulary, b"abab") == [2, 2]
    assert cut(vocabulary, b"abcb") == [3, 1]
    assert cut(vocabulary, b"") == []
    assert cut(vocabulary, b"ac") is None


def test_what_is_cut_into_many_tokens_or_starts_inside_a_character_is_not_seen_whole() -> None:
    rng = random.Random(0)
    vocabulary = words(rng)
    assert is_seen_whole(vocabulary, b'"')
    assert is_seen_whole(vocabulary, "中".encode()[:2])
    assert not is_seen_whole(vocabulary, "中".encode()[1:])
    assert not is_seen_whole(vocabulary, b"\x01\x02\x03\x04\x05")
    assert is_seen_whole(vocabulary, b"\x01\x02\x03\x04")
