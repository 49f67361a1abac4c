"""What is asked of the string or number that comes next in JSON text, read off the schema: how long a string may be, of which
nothing else is asked, and how much of a number counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

MAX_REFERENCES = 32
_CHOICES = ("anyOf", "oneOf")
_ASKED = ("pattern", "format", "enum", "const")
NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "x-guidance"}
"""Keywords that say nothing of values."""
_BESIDE = {*NOTES, "$defs", "definitions"}
_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Bounds(NamedTuple):
    """At least and at most so many characters; None: no end."""

    fewest: int
    most: int | None


def string_bounds(schema: Any, text: bytes, open_at: Sequence[int]) -> Bounds | None:
    """Return the bounds of a string that begins behind an outline's text, of whose characters nothing is asked; None for others,
    and where that is not known.  ``open_at``: where in the text each open container starts.  Only for schemas whose keywords are
    those of an outline that forgets: any other may ask something of a string."""
    leaves = _leaves_at(schema, text, open_at)
    strings = [leaf for leaf in leaves if _admits(leaf, "string")] if leaves is not None else []
    if len(strings) != 1 or any(keyword in strings[0] for keyword in _ASKED):
        return None
    return Bounds(strings[0].get("minLength", 0), strings[0].get("maxLength"))


def number_digits(schema: Any, text: bytes, open_at: Sequence[int]) -> int | None:
    """Return n where nothing is asked of the whole part of a number that begins behind an outline's text, once it has more than n
    digits, and of its fraction never more than whether it is zero; None where that is not known.  For the same schemas as
    ``string_bounds``."""
    leaves = _leaves_at(schema, text, open_at)
    if leaves is None or any("multipleOf" in leaf for leaf in leaves):
        return None
    values = [*(value for leaf in leaves for value in (*leaf.get("enum", ()), leaf.get("const")))]
    limits = [leaf[keyword] for leaf in leaves for keyword in _LIMITS & leaf.keys()]
    if any(isinstance(value, int | float) for value in values) or not all(float(limit).is_integer() for limit in limits):
        return None
    return max((len(str(abs(int(limit)))) for limit in limits if limit), default=0)


def _leaves_at(schema: Any, text: bytes, open_at: Sequence[int]) -> list[dict[str, Any]] | None:
    """The alternatives of what comes behind an outline's text; None where they are not known."""
    node: Any = schema
    for start, end in pairwise((*open_at, len(text))):
        node = _inside(schema, node, text[start:end])
        if node is None:
            return None
    return _leaves(schema, node)


def _inside(schema: Any, node: Any, text: bytes) -> Any:
    """The schema of what comes next in an open container, whose complete values are one letter each."""
    kind = "object" if text.startswith(b"{") else "array"
    leaves = _leaves(schema, node)
    containers = [leaf for leaf in leaves if _admits(leaf, kind)] if leaves is not None else []
    if len(containers) != 1 or "enum" in containers[0] or "const" in containers[0]:
        return None
    leaf = containers[0]
    if kind == "array":
        first, index = leaf.get("prefixItems", ()), text.count(b",")
        return first[index] if index < len(first) else leaf.get("items", True)
    keys = _KEY.findall(text)
    if not keys or "patternProperties" in leaf:
        return None
    properties = leaf.get("properties", {})
    return properties.get(json.loads(keys[-1]), leaf.get("additionalProperties", True))


def _leaves(schema: Any, node: Any) -> list[dict[str, Any]] | None:
    """The alternatives of a schema; None where they are more than references and choices alone."""
    found = list(_alternatives(schema, node, MAX_REFERENCES))
    return None if None in found else [leaf for leaf in found if leaf is not None]


def _alternatives(schema: Any, node: Any, left: int) -> Iterator[dict[str, Any] | None]:
    if isinstance(node, bool):
        if node:
            yield {}
        return
    deeper = [keyword for keyword in ("$ref", *_CHOICES) if keyword in node]
    if not deeper:
        yield node
    elif left == 0 or len(deeper) > 1 or node.keys() - {*_BESIDE, *deeper}:
        yield None
    elif deeper == ["$ref"]:
        target = _target(schema, node["$ref"])
        yield from (None,) if target is None else _alternatives(schema, target, left - 1)
    else:
        for choice in node[deeper[0]]:
            yield from _alternatives(schema, choice, left - 1)


def _target(schema: Any, reference: str) -> Any:
    match reference.split("/"):
        case ["#", "$defs" | "definitions" as place, name] if "~" not in name and "%" not in name:
            return schema.get(place, {}).get(name)
    return None


def _admits(leaf: dict[str, Any], kind: str) -> bool:
    """Whether values of a type may be what a schema without alternatives says."""
    values = [*leaf.get("enum", ()), *([leaf["const"]] if "const" in leaf else ())]
    if values:
        return any(isinstance(value, {"string": str, "object": dict, "array": list}[kind]) for value in values)
    types = leaf.get("type", kind)
    return kind in ((types,) if isinstance(types, str) else types)
