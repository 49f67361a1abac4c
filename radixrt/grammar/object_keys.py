"""The keys of objects in the order that the engine of schemas gives them, and which schemas it finds that nothing meets.

Of those it takes optional members out without a word, and ends arrays before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from radixrt.grammar.outline import literal
from radixrt.grammar.string_bounds import string_of
from radixrt.grammar.string_patterns import Bodies


class Keys(NamedTuple):
    """The keys of an object as JSON spells them.

    ``names``: those that may come, in their order, with the colon, each with whether it must; ``places``: where each is among them, without
    its colon; ``taken``: all that are no others; ``has_others``: whether others may come.
    """

    names: list[tuple[bytes, bool]]
    places: dict[bytes, int]
    taken: set[bytes]
    has_others: bool


class ObjectKeys:
    """Finds the keys of the objects of one schema.  ``colon``: what comes behind each; ``bodies``: the automata of its strings."""

    def __init__(self, colon: bytes, bodies: Bodies) -> None:
        self._colon = colon
        self._bodies = bodies
        self._keys: dict[int, Keys | None] = {}
        self._fits: dict[int, bool | None] = {}

    def of(self, leaf: dict[str, Any]) -> Keys | None:
        """Return the keys of an object's schema, a part of the one schema; None where they are not known."""
        if id(leaf) not in self._keys:
            self._keys[id(leaf)] = self._find(leaf)
        return self._keys[id(leaf)]

    def _find(self, leaf: dict[str, Any]) -> Keys | None:
        properties, required = leaf.get("properties", {}), dict.fromkeys(leaf.get("required", ()))
        other = leaf.get("additionalProperties", True)
        if "patternProperties" in leaf or self.may_be(other) is None:
            return None
        found = Keys([], {}, set(), has_others=other is not False)
        for name in (*properties, *(name for name in required if name not in properties)):
            text = literal(name)
            may_be = name in required or self.may_be(properties[name])
            if text is None or may_be is None:
                return None
            spelled = b'"' + text + b'"'
            found.taken.add(spelled)
            if may_be:
                found.places[spelled] = len(found.names)
                found.names.append((spelled + self._colon, name in required))
        return found

    def may_be(self, node: Any) -> bool | None:
        """Tell whether the engine has values of a schema, which is in order without others; None where that is not sure."""
        if isinstance(node, bool):
            return node
        if id(node) not in self._fits:
            self._fits[id(node)] = True  # what recurs is a reference
            self._fits[id(node)] = True if any(map(self._surely_is, _choices(node))) else None
        return self._fits[id(node)]

    def _surely_is(self, leaf: dict[str, Any]) -> bool:
        if "$ref" in leaf:
            return True  # its own definition fits, or the grammar does not compile
        if "enum" in leaf or "const" in leaf:
            return bool(leaf.get("enum", True)) and "type" not in leaf
        types = leaf.get("type", "null")
        return any(self._surely_has(kind, leaf) for kind in ((types,) if isinstance(types, str) else types))

    def _surely_has(self, kind: str, leaf: dict[str, Any]) -> bool:
        match kind:
            case "string":
                return not {"pattern", "format"} & leaf.keys() or string_of([leaf], self._bodies) is not None
            case "object":
                return all(self.may_be(leaf.get("properties", {}).get(name, True)) for name in leaf.get("required", ()))
            case "array":
                items = *leaf.get("prefixItems", ()), leaf.get("items", True)
                return not leaf.get("minItems") or all(map(self.may_be, items))
        return "multipleOf" not in leaf


def _choices(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        choices = node.get("anyOf", node.get("oneOf"))
        yield from (node,) if choices is None else (leaf for choice in choices for leaf in _choices(choice))
