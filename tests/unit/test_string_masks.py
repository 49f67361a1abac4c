"""Masks of open strings put together from a table are those that the engine makes, whatever tokens a vocabulary has."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from grammar_walk import allowed, pieces

from radixrt.grammar.llguidance_engine import compile
from radixrt.grammar.string_bounds import Bounds, Values
from radixrt.types import GrammarOptions, GrammarSpec

LETTERS = [  # what strings are made of, what closes them, and what may not be in them
    "a", "bc", "é", "🙂", "\\n", '\\"', "\\\\", "\\u", "\\", "\x7f", "\t", " ", "l", '"', '",', '"}', '"]', '": ', '"",', ', "', "}",
]


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def text(**bounds: int) -> dict[str, Any]:
    return {"type": "string", **bounds}


SCHEMAS: list[Any] = [
    obj(a=text(maxLength=7), kind={"enum": ["low", "bc"]}, b=text()),
    {"type": "array", "items": text(minLength=2, maxLength=4), "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [text(maxLength=1), {"const": "a"}], "items": text(minLength=9)},
    {"anyOf": [{"type": "null"}, obj(low=text(maxLength=3), a={"type": ["integer", "string"], "minLength": 1})]},
    {"$ref": "#/$defs/node", "$defs": {"node": obj(bc=text(maxLength=2), a={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})}},
    {"type": "object", "properties": {"a": text(maxLength=0)}, "additionalProperties": text(maxLength=5)},
    text(minLength=3, maxLength=3),
    obj(a=text(pattern="^a+$"), b={"anyOf": [text(maxLength=2), text(minLength=4, maxLength=6)]}, low={}),
]


@pytest.mark.parametrize("seed", range(2))
def test_a_composed_mask_is_the_one_the_engine_makes(seed: int) -> None:
    words, composed = pieces(LETTERS, seed), 0
    rng = random.Random(seed)
    closers = [token for token, spelled in enumerate(words.token_bytes) if spelled and b'"' in spelled]
    for schema in SCHEMAS:
        grammar = compile(GrammarSpec("json_schema", json.dumps(schema), GrammarOptions()), words)
        for _ in range(20):
            state = grammar.new_state()
            while not state.is_finished() and len(state._tokens) < 30:
                made, found = np.full((2, words.num_words), -1, dtype=np.int32)
                state._make_mask(made)
                if state._compose_mask(state._place(), found):
                    composed += 1
                    assert (made == found).all(), (schema, words.spell(state._tokens))
                may = sorted(allowed(state, words))
                closing = sorted(set(may).intersection(closers))
                if not may:
                    break
                assert state.accept(rng.choice(closing if closing and rng.random() < 0.4 else may))
    assert composed > 300


@pytest.mark.parametrize(
    ("schema", "outline", "found"),
    [
        (text(maxLength=3), b"", Bounds(0, 3)),
        (obj(a=text(), b=text(minLength=1)), b'{"a":v,"b":', Bounds(1, None)),
        (obj(a={"enum": ["x"]}), b'{"a":', None),
        (obj(a={"const": "x"}), b'{"a":', None),
        (obj(a=text(format="date")), b'{"a":', None),
        (obj(a=text(pattern="x")), b'{"a":', None),
        (obj(a={"anyOf": [text(maxLength=2), text(minLength=4)]}), b'{"a":', None),
        (obj(a={"anyOf": [text(maxLength=2), {"type": "null"}]}), b'{"a":', Bounds(0, 2)),
        (obj(a={"anyOf": [text(maxLength=2), {"type": "null"}], "maxLength": 1}), b'{"a":', None),
        ({"type": "array", "prefixItems": [{"const": "x"}], "items": text(maxLength=9)}, b"[", None),
        ({"type": "array", "prefixItems": [{"const": "x"}], "items": text(maxLength=9)}, b"[v, ", Bounds(0, 9)),
        ({"type": "object", "properties": {'"': text(maxLength=1)}}, b'{"\\"":', Bounds(0, 1)),
        ({"type": "object", "patternProperties": {"a": text(maxLength=1)}}, b'{"b":', None),
        ({"anyOf": [obj(a=text()), {"type": "null"}]}, b'{"a":', Bounds(0, None)),
        ({"anyOf": [{"type": "object"}], "additionalProperties": text(maxLength=1)}, b'{"a":', None),
        (True, b"", Bounds(0, None)),
    ],
)
def test_bounds_are_those_of_the_one_schema_that_a_string_may_have(schema: Any, outline: bytes, found: Bounds | None) -> None:
    assert Values(schema).asked(outline, [at for at, byte in enumerate(outline) if byte in b"{["]).bounds == found
