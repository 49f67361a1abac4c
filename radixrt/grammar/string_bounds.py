"""What is asked of the value that comes next in JSON text, read off the schema: how long a string may be, of which nothing else is
asked, or what it may be, and how much of a number counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from radixrt.grammar.string_patterns import Alternative, Bodies, Body

MAX_REFERENCES = 32
"""How many are followed to find the alternatives of a value."""
MAX_PLACES = 1024
"""For how many places of a grammar it is kept what is asked there."""
_CHOICES = ("anyOf", "oneOf")
_OF_STRINGS = {"pattern", "minLength", "maxLength"}
_ASKED = ("pattern", "format", "enum", "const")
NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "x-guidance"}
"""Keywords that say nothing of values."""
_BESIDE = {*NOTES, "$defs", "definitions"}
_ANYTHING: dict[str, Any] = {}
KINDS = ("array", "boolean", "null", "number", "object", "string")
_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
DONE = b"v"
"""Stands for a complete value in an outline: no JSON text outside strings has this letter."""
OTHER_KEY = b"k"
"""Stands for a key that an object's schema does not name; no JSON text outside strings has this letter, either."""
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Bounds(NamedTuple):
    """At least and at most so many characters; None: no end."""

    fewest: int
    most: int | None


class Asked(NamedTuple):
    """What a schema asks of a value.

    ``kinds``: types it may have, ``number`` for whole ones too; None where that is not known, and then nothing is.
    ``bounds``: of a string, where nothing else is asked of it.  ``texts``: what a string may be, where that is listed.
    ``digits``: n where nothing is asked of the whole part of a number, once it has more than n digits, and of its fraction never more
    than whether it is zero and whether it ends in zeros.  ``is_free``: nothing is asked of numbers, booleans and null but their type.
    ``is_positive``: numbers are zero or more.  ``body``: of a string, where all that is asked of it is a pattern and its length.
    ``is_spelled``: more may count of a string than its length, and than how much it agrees with one that is listed.
    """

    kinds: frozenset[str] | None = None
    bounds: Bounds | None = None
    texts: tuple[str, ...] | None = None
    digits: int | None = None
    is_free: bool = False
    is_positive: bool = False
    body: Body | None = None
    is_spelled: bool = False


_UNKNOWN = Asked(is_spelled=True)
_ANY_OF = {kind: Asked(frozenset((kind,)), digits=0, is_free=True, is_positive=True) for kind in KINDS}


class Values:
    """Tells what a schema asks of the value at an outline's place.

    Only for schemas whose keywords are those of an outline that forgets: any other may ask something of a value.
    """

    def __init__(self, schema: Any) -> None:
        self.bodies = Bodies()
        self._schema = schema
        self._containers: dict[bytes, list[dict[str, Any]]] = {}
        self._leaves: dict[bytes, list[dict[str, Any]] | None] = {}
        self._asked: dict[bytes, Asked] = {}
        self._asked_of: dict[tuple[int, ...], Asked] = {}

    def asked(self, text: bytes, open_at: Sequence[int]) -> Asked:
        """Return what is asked of the value that begins behind an outline's text.  ``open_at``: where in the text each open container
        starts."""
        found = self._asked.get(text)
        if found is None:
            if len(self._asked) >= MAX_PLACES:
                self._asked.clear()
            leaves = self.leaves(text, open_at)
            simple = leaves[0].get("type") if leaves is not None and len(leaves) == 1 else None
            if leaves is None:
                found = _UNKNOWN
            elif isinstance(simple, str) and "enum" not in leaves[0] and "const" not in leaves[0]:
                found = _asked_simply(simple, leaves[0], self.bodies)
            else:
                key = tuple(map(id, leaves))  # of the schema's own parts, which stay
                found = self._asked_of.get(key) or self._asked_of.setdefault(key, _asked(leaves, self.bodies))
            self._asked[text] = found
        return found

    def leaves(self, text: bytes, open_at: Sequence[int]) -> list[dict[str, Any]] | None:
        """Return the alternatives of the value that begins behind a text; None where they are not known."""
        if text not in self._leaves:
            if len(self._leaves) >= MAX_PLACES:
                self._leaves.clear()
            node = self._node(text, open_at)
            self._leaves[text] = None if node is None else _leaves(self._schema, node)
        return self._leaves[text]

    def _node(self, text: bytes, open_at: Sequence[int]) -> Any:
        """The schema of what comes next; None where it is not known."""
        if not open_at:
            return self._schema
        inside = [_inside(leaf, text[open_at[-1] :]) for leaf in self._alternatives(text, open_at)]
        return None if not inside else inside[0] if len(inside) == 1 else _common(inside)

    def is_named(self, text: bytes, open_at: Sequence[int], key: bytes) -> bool:
        """Whether it may matter which key it is that follows an outline's text, as JSON spells it: not where it is one that the schema
        of the open object does not name."""
        name, names = _name(key), self.names(text, open_at)
        return name is None or names is None or name in names

    def names(self, text: bytes, open_at: Sequence[int]) -> set[str] | None:
        """Return the keys that the schema of the open object names; None where any key may matter."""
        leaves = self._alternatives(text, open_at) if open_at else []
        if not leaves or any("patternProperties" in leaf for leaf in leaves):
            return None
        return {name for leaf in leaves for name in _names(leaf)}

    def repeats(self, text: bytes, open_at: Sequence[int]) -> bool:
        """Whether the innermost open array may have any number of items, all of one schema, if it has one."""
        leaf = self.container(text, open_at)
        return leaf is not None and not {"prefixItems", "maxItems"} & leaf.keys() and leaf.get("minItems", 0) <= 1

    def container(self, text: bytes, open_at: Sequence[int]) -> dict[str, Any] | None:
        """Return the one schema that the innermost open container may have; None where that is not known."""
        leaves = self._alternatives(text, open_at)
        if len(leaves) > 1:
            names = _names_in(text[open_at[-1] :])
            leaves = [leaf for leaf in leaves if all(_member(leaf, name) is not False for name in names)]
        return leaves[0] if len(leaves) == 1 else None

    def _alternatives(self, text: bytes, open_at: Sequence[int]) -> list[dict[str, Any]]:
        """Those that the innermost open container may have by its type; none where they are not known."""
        begin = text[: open_at[-1] + 1]
        if begin not in self._containers:
            if len(self._containers) >= MAX_PLACES:
                self._containers.clear()
            outer = self._node(text[: open_at[-1]], open_at[:-1])
            kind = "object" if begin.endswith(b"{") else "array"
            leaves = [leaf for leaf in (None if outer is None else _leaves(self._schema, outer)) or () if _admits(leaf, kind)]
            self._containers[begin] = [] if any("enum" in leaf or "const" in leaf for leaf in leaves) else leaves
        return self._containers[begin]


def _asked_simply(kind: str, leaf: dict[str, Any], bodies: Bodies) -> Asked:
    """The same as ``_asked`` for one alternative of one type whose values are not listed."""
    if kind in ("integer", "number"):
        limits = [leaf[keyword] for keyword in _LIMITS if keyword in leaf]
        if "multipleOf" in leaf:
            return _asked([leaf], bodies)
        is_positive = max(leaf.get("minimum", -1), leaf.get("exclusiveMinimum", -1)) >= 0
        return Asked(_ANY_OF["number"].kinds, None, None, _digits(limits), not limits, is_positive)
    if kind != "string":
        return _ANY_OF[kind]
    if "pattern" in leaf or "format" in leaf:
        return _ANY_OF[kind]._replace(body=string_of([leaf], bodies), is_spelled=True)
    return Asked(_ANY_OF[kind].kinds, Bounds(leaf.get("minLength", 0), leaf.get("maxLength")), None, 0, True, True)


def _asked(leaves: list[dict[str, Any]], bodies: Bodies) -> Asked:
    kinds: set[str] = set()
    strings: list[dict[str, Any]] = []
    limits: list[float] = []
    listed: list[Any] = []
    is_counted = is_positive = True
    for leaf in leaves:
        types = leaf.get("type", KINDS)
        of_leaf = {types} if isinstance(types, str) else {*types}
        if "integer" in of_leaf:
            of_leaf.add("number")
        if "enum" in leaf or "const" in leaf:
            listed += _listed(leaf)
        if "number" in of_leaf:
            limits += [leaf[keyword] for keyword in _LIMITS if keyword in leaf]
            is_counted = is_counted and "multipleOf" not in leaf
            is_positive = is_positive and max(leaf.get("minimum", -1), leaf.get("exclusiveMinimum", -1)) >= 0
        if "string" in of_leaf and _admits(leaf, "string"):
            strings.append(leaf)
        kinds |= of_leaf
    bounds = texts = digits = body = None
    if len(strings) == 1 and not any(keyword in strings[0] for keyword in _ASKED):
        bounds = Bounds(strings[0].get("minLength", 0), strings[0].get("maxLength"))
    elif strings and all("enum" in leaf or "const" in leaf for leaf in strings):
        texts = tuple(value for leaf in strings for value in _listed(leaf) if isinstance(value, str))
    elif strings:
        body = string_of(strings, bodies)
    if is_counted and not any(isinstance(value, int | float) for value in listed):
        digits = _digits(limits)
    is_free = not (limits or listed or not is_counted)
    is_spelled = any(keyword in leaf for leaf in strings for keyword in ("pattern", "format"))
    return Asked(frozenset(kinds - {"integer"}), bounds, texts, digits, is_free, is_positive, body, is_spelled)


def make_body(schema: Any, node: dict[str, Any], bodies: Bodies) -> None:
    """Make the automaton of the strings of a schema, where they have one, so that it is known when it is asked for."""
    leaves = _leaves(schema, node)
    if leaves:
        _asked(leaves, bodies)


def string_of(leaves: list[dict[str, Any]], bodies: Bodies) -> Body | None:
    """Return the automaton of the strings that one of some alternatives allows, where one is known for all that they ask."""
    alternatives = []
    for leaf in leaves:
        if "format" in leaf:
            return None
        listed = tuple(value for value in _listed(leaf) if isinstance(value, str))
        if listed and _OF_STRINGS & leaf.keys():
            return None
        alternatives.append(Alternative(leaf.get("pattern", ""), leaf.get("minLength", 0), leaf.get("maxLength"), listed))
    return bodies.of(*alternatives)


def _digits(limits: list[float]) -> int | None:
    """How many digits of whole parts count beside limits; None where some may count of the fraction."""
    if not all(float(limit).is_integer() for limit in limits):
        return None
    return max((len(str(abs(int(limit)))) for limit in limits if limit), default=0)


def _listed(leaf: dict[str, Any]) -> list[Any]:
    return [*leaf.get("enum", ()), *([leaf["const"]] if "const" in leaf else ())]


def agree(schema: Any, node: dict[str, Any]) -> bool:
    """Whether the containers among the alternatives of a schema need not be told apart by what they hold: one array at most, and
    objects of which all that may have a key ask the same of its value."""
    leaves = _leaves(schema, node)
    if leaves is None:
        return False
    objects = [leaf for leaf in leaves if _admits(leaf, "object")]
    names = {name for leaf in objects for name in _names(leaf)}
    return (
        sum(_admits(leaf, "array") for leaf in leaves) <= 1
        and not any({"patternProperties", "enum", "const"} & leaf.keys() for leaf in objects)
        and all(_common([_member(leaf, name) for leaf in objects]) is not None for name in (*names, None))
    )


def _names(leaf: dict[str, Any]) -> set[str]:
    """The keys that an object's schema names."""
    return {*leaf.get("properties", ()), *leaf.get("required", ())}


def _names_in(inside: bytes) -> list[str | None]:
    """The keys that an open object has, as an outline has them; None stands for one that is not named."""
    names: list[str | None] = [_name(key) for key in _KEY.findall(inside)]
    return [*names, None] if OTHER_KEY in _KEY.sub(b"", inside) else names


def _member(leaf: dict[str, Any], name: str | None) -> Any:
    """What an object's schema asks of the value of a key; None stands for one that it does not name."""
    return leaf.get("properties", {}).get(name, leaf.get("additionalProperties", True))


def _common(schemas: list[Any]) -> Any:
    """The one schema that all are that allow anything; None where they are several, or one is not known."""
    distinct = {json.dumps(schema): schema for schema in schemas if schema is not False}
    return False if not distinct else next(iter(distinct.values())) if len(distinct) == 1 else None


def _inside(leaf: dict[str, Any], text: bytes) -> Any:
    """The schema of what comes next in an open container, whose complete values are one letter each."""
    if text.startswith(b"["):
        first, index = leaf.get("prefixItems", ()), text.count(b",")
        return first[index] if index < len(first) else leaf.get("items", True)
    if text.endswith(OTHER_KEY + b":"):
        return leaf.get("additionalProperties", True)
    keys = _KEY.findall(text)
    name = _name(keys[-1]) if keys else None
    if name is None or "patternProperties" in leaf:
        return None
    return _member(leaf, name)


def _name(key: bytes) -> str | None:
    """The text of a key as JSON spells it; None where it is no key."""
    try:
        return str(json.loads(key)) if b"\\" in key else key[1:-1].decode()
    except ValueError:
        return None


def _leaves(schema: Any, node: Any) -> list[dict[str, Any]] | None:
    """The alternatives of a schema; None where they are more than references and choices alone."""
    if isinstance(node, dict) and not ("$ref" in node or "anyOf" in node or "oneOf" in node):
        return [node]
    found = list(_alternatives(schema, node, set()))
    return None if None in found else [leaf for leaf in found if leaf is not None]


def _alternatives(schema: Any, node: Any, seen: set[str]) -> Iterator[dict[str, Any] | None]:
    """The same one by one, None for what is not known; what is referred to in several places is one alternative."""
    if isinstance(node, bool):
        if node:
            yield _ANYTHING
        return
    deeper = [keyword for keyword in ("$ref", *_CHOICES) if keyword in node]
    if not deeper:
        yield node
    elif len(seen) >= MAX_REFERENCES or len(deeper) > 1 or node.keys() - {*_BESIDE, *deeper}:
        yield None
    elif deeper == ["$ref"]:
        if node["$ref"] not in seen:
            seen.add(node["$ref"])
            target = _target(schema, node["$ref"])
            yield from (None,) if target is None else _alternatives(schema, target, seen)
    else:
        for choice in node[deeper[0]]:
            yield from _alternatives(schema, choice, seen)


def _target(schema: Any, reference: str) -> Any:
    match reference.split("/"):
        case ["#", "$defs" | "definitions" as place, name] if "~" not in name and "%" not in name:
            return schema.get(place, {}).get(name)
    return None


def _admits(leaf: dict[str, Any], kind: str) -> bool:
    """Whether values of a type may be what a schema without alternatives says."""
    if values := _listed(leaf):
        return any(isinstance(value, {"string": str, "object": dict, "array": list}[kind]) for value in values)
    types = leaf.get("type", kind)
    return kind in ((types,) if isinstance(types, str) else types)
