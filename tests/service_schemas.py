"""Random schemas like those that services send, and choices in which what a container held matters later."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "ab", 'q"', "é")
TEXTS = ("a", "ab", "abc", 'q"\\', "né", "", "🙂x")
NUMBERS = (0, 12, 120, -3)


def scalar(rng: random.Random) -> dict[str, Any]:
    return rng.choice((
        lambda: {"type": "string"},
        lambda: {"type": "string", "maxLength": rng.randrange(5)},
        lambda: {"type": "string", "minLength": rng.randrange(3)},
        lambda: {"enum": rng.sample((*TEXTS, *NUMBERS, None), rng.randrange(1, 5))},
        lambda: {"const": rng.choice(TEXTS)},
        lambda: {"type": "integer", "minimum": 0, "maximum": rng.choice(NUMBERS[1:3])},
        lambda: {"type": ["number", "null"], "minimum": rng.choice(NUMBERS)},
        lambda: {"type": ["string", "null"], "maxLength": 3},
        lambda: {"type": "string", "pattern": rng.choice(("^a+b?$", "^[0-9]{1,3}$"))},
        lambda: {"anyOf": [{"const": rng.choice(TEXTS)}, {"type": "string", "maxLength": 2}, {"type": "null"}]},
    ))()  # fmt: skip


def value(rng: random.Random, depth: int) -> Any:
    """Like the schemas that services send, and choices in which what a container held matters later."""
    kind = rng.choice((0, 0, 0, 3, 3, 4, 4, 5, 6)) if depth > 0 else 0
    if kind == 0:
        return scalar(rng)
    if kind == 3:
        limits = rng.choice(({"maxItems": rng.randrange(1, 4)}, {}, {"prefixItems": [scalar(rng)]}))
        return {"type": "array", "items": value(rng, depth - 1), "minItems": rng.randrange(3), **limits}
    if kind == 6:
        return {"enum": [[rng.choice(TEXTS[:3]), rng.choice(NUMBERS), "a"] for _ in range(3)]}
    names = rng.sample(NAMES, rng.randrange(1, 4))
    alike = {
        "type": "object",
        "properties": {name: value(rng, depth - 1) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": rng.choice((False, False, True, value(rng, depth - 1))),
    }
    if kind == 4:
        return alike
    other = {**alike, "properties": {name: value(rng, depth - 1) for name in names}}
    asking = {**alike, "required": rng.sample(names, rng.randrange(len(names) + 1))}
    lacking = {**alike, "properties": {**alike["properties"], rng.choice(NAMES): False}, "required": [], "additionalProperties": False}
    apart = {"type": "object", "properties": {rng.choice(NAMES): value(rng, depth - 1)}, "additionalProperties": False}
    others = rng.choice(([{"type": "null"}], [other], [scalar(rng)], [asking], [asking, lacking], [lacking], [apart], [apart, lacking]))
    return {"anyOf": [alike, *others]}


NUMERIC: list[dict[str, Any]] = [
    *({"type": kind} for kind in ("integer", "number")),
    *({"type": kind, key: limit} for kind in ("integer", "number") for key in ("minimum", "exclusiveMaximum") for limit in NUMBERS),
    {"type": "number", "exclusiveMinimum": -120, "maximum": 7.5},
    {"type": "integer", "multipleOf": 3},
    {"anyOf": [{"type": "integer", "maximum": 9}, {"type": "integer", "minimum": 5, "maximum": 200}]},
    {"anyOf": [{"type": "integer", "maximum": 9}, {"const": 1234}]},
    {"anyOf": [{"type": "number", "minimum": 20}, {"type": "integer"}, {"type": "string"}]},
    {"type": ["number", "boolean"], "minimum": 0},
]
