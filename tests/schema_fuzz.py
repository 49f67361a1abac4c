"""Random schemas, and random texts of a grammar: what must hold of every schema that is accepted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from grammar_walk import BYTES

NAMES = ("a", "b", "ab")
VALUES = (None, True, False, 0, 1, -1, 2.5, "", "a", "ab", "b", [], [1], {}, {"a": 1}, {"b": "a"})
PATTERNS = ("^a", "b$", "^[ab]*$", "a", "^.{2}$")
DEPTH = 3


def schema(rng: random.Random, depth: int = DEPTH) -> Any:
    """A schema of up to a few keywords, untyped more often than people write them."""
    if rng.random() < 0.04:
        return rng.random() < 0.7
    out: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        keyword = rng.choice(list(KEYWORDS if depth else LEAVES))
        out[keyword] = KEYWORDS[keyword](rng, depth - 1)
    return out


def several(rng: random.Random, depth: int) -> list[Any]:
    return [schema(rng, depth) for _ in range(rng.choice((1, 2, 2, 3)))]


def named(rng: random.Random, depth: int, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    return {name: schema(rng, depth) for name in rng.sample(names, rng.choice((1, 2)))}


LEAVES: dict[str, Any] = {
    "type": lambda rng, _: rng.choice(
        ("object", "array", "string", "integer", "number", "boolean", ["string", "null"], ["object", "integer"])
    ),
    "const": lambda rng, _: rng.choice(VALUES),
    "enum": lambda rng, _: rng.sample(VALUES, rng.choice((1, 2, 4))),
    "minimum": lambda rng, _: rng.choice((-2, 0, 1, 1.5)),
    "maximum": lambda rng, _: rng.choice((-1, 0, 2, 7.5)),
    "exclusiveMinimum": lambda rng, _: rng.choice((-2, 0, 1.5)),
    "exclusiveMaximum": lambda rng, _: rng.choice((0, 2, 7.5)),
    "multipleOf": lambda rng, _: rng.choice((1, 2, 3, 0.5)),
    "minLength": lambda rng, _: rng.choice((0, 1, 2)),
    "maxLength": lambda rng, _: rng.choice((0, 1, 3)),
    "pattern": lambda rng, _: rng.choice(PATTERNS),
    "minItems": lambda rng, _: rng.choice((0, 1, 2)),
    "maxItems": lambda rng, _: rng.choice((0, 1, 2)),
    "uniqueItems": lambda rng, _: rng.random() < 0.5,
    "minProperties": lambda rng, _: rng.choice((0, 1, 2)),
    "maxProperties": lambda rng, _: rng.choice((0, 1, 2)),
    "required": lambda rng, _: rng.sample(NAMES, rng.choice((0, 1, 2))),
    "dependentRequired": lambda rng, _: {rng.choice(NAMES): rng.sample(NAMES, 1)},
    "$ref": lambda rng, _: rng.choice(("#", "#/$defs/x", "#/$defs/y")),
}
KEYWORDS: dict[str, Any] = {
    **LEAVES,
    "properties": named,
    "patternProperties": lambda rng, depth: named(rng, depth, ("^a", "b$")),
    "additionalProperties": schema,
    "propertyNames": schema,
    "unevaluatedProperties": schema,
    "dependentSchemas": named,
    "items": schema,
    "prefixItems": several,
    "contains": schema,
    "minContains": lambda rng, _: rng.choice((0, 1, 2)),
    "maxContains": lambda rng, _: rng.choice((0, 1, 2)),
    "unevaluatedItems": schema,
    "allOf": several,
    "anyOf": several,
    "oneOf": several,
    "not": schema,
    "if": schema,
    "then": schema,
    "else": schema,
}


def document(seed: int) -> Any:
    """A random schema with two definitions to refer to."""
    rng = random.Random(seed)
    found = schema(rng)
    return {**found, "$defs": {"x": schema(rng, 1), "y": schema(rng, 2)}} if isinstance(found, dict) else found


def text_of(grammar: Any, rng: random.Random, steps: int) -> str | None:
    """A random text of a grammar, closed after some steps; short values and JSON's own characters are preferred."""
    state = grammar.new_state()
    tokens: list[int] = []
    row = np.zeros(BYTES.num_words, dtype=np.int32)
    for _ in range(steps):
        if state.is_finished() or (state.is_accepting() and rng.random() < 0.2):
            break
        state.fill_mask(row)
        allowed = np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0]
        liked = [token for token in allowed.tolist() if token in LIKED]
        token = rng.choice(liked or [token for token in allowed.tolist() if not BYTES.is_end(token)] or [-1])
        if not state.accept(token):
            break
        tokens.append(token)
    end = state.close(300)
    return None if end is None else BYTES.spell([*tokens, *end]).decode()


INSTANCES = [
    *VALUES, 3, 7.5, -2, "abab", "ba", "bab", [0], [1, 1], ["a"], ["a", "b"], [True, 1], [[], {}], [0, 1, 2], ["ab", "ab"], [None, "a", 2],
    {"a": "a"}, {"b": 1}, {"a": 1, "b": 1}, {"a": "b", "b": "ab"}, {"a": None, "ab": 0}, {"ab": "a"}, {"a": {}, "b": {}, "ab": {}},
    {"a": [], "b": True}, {"a": {"a": 1}}, {"c": 1}, {"a": 1, "c": "a"}, {"a": [1, 2], "b": {"a": 1}},
]  # fmt: skip
LIKED = frozenset(b'{}[]",:012.5-abtfn')
