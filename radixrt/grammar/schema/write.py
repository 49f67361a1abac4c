"""Shapes turned back into a schema: plain keywords, choices under ``anyOf``, and what recurs under ``$defs``."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from typing import Any

from radixrt.errors import GrammarError
from radixrt.grammar.schema.document import Document, Schema, check_readable
from radixrt.grammar.schema.expand import Expander
from radixrt.grammar.schema.finite import prune
from radixrt.grammar.schema.formats import FORMATS
from radixrt.grammar.schema.numbers import LARGEST, is_told, told
from radixrt.grammar.schema.patterns import engine_pattern
from radixrt.grammar.schema.problems import refused
from radixrt.grammar.schema.shapes import ALL_TYPES, NOTHING_SAID, Shape, State
from radixrt.grammar.schema.unique import unique_arrays
from radixrt.grammar.schema.values import TYPES, key_of, plain

_UNSPELLED = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_WHY_UNSPELLED = "control characters without an escape of their own are not written"
MAX_STATES = 4000
MAX_STRING = 4096
MAX_STEP = 2000
MAX_SUBSETS = 64


def normalise(schema: Schema) -> dict[str, Any]:
    """Return a schema of plain keywords that no instance fits that does not fit the one given.

    Plain are type, enum, anyOf, $ref into $defs, properties, patternProperties, additionalProperties, required, min- and
    maxProperties, prefixItems, items, min- and maxItems, pattern, format, min- and maxLength, bounds and multipleOf.
    Raises GrammarError with keyword and JSON pointer for what cannot be said so, and where no finite instance fits.
    """
    document = Document(schema)
    writer = Writer(Expander(document))
    root = writer.reference(frozenset(((document.root, True),)))
    try:
        plain_schema = prune(root, writer.definitions)
    except GrammarError as error:
        raise writer.left_out or error from None
    check_readable(document, schema)
    return plain_schema


class Writer:
    """Writes the states of one document; each under a name, but for those with nothing below."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self._names: dict[State, str] = {}
        self.definitions: dict[str, Any] = {}
        self.left_out: GrammarError | None = None
        """Why the last of what cannot be said was left out, which other instances may do without."""

    def reference(self, state: State) -> Schema:
        """A schema for a state: in full where it is small, else a reference."""
        if state in self._names:
            return {"$ref": f"#/$defs/{self._names[state]}"}
        shapes = self._expander.shapes(state)
        if not shapes:
            return False
        if any(shape is NOTHING_SAID for shape in shapes):
            return True
        if not any(shape.items or shape.members or shape.required or shape.bound_names or shape.min_members for shape in shapes):
            return self._choices(shapes)
        if len(self._names) >= MAX_STATES:
            raise GrammarError("The schema is too complex.", code="grammar_too_complex")
        name = self._names[state] = f"s{len(self._names)}"
        self.definitions[name] = self._choices(shapes)
        return {"$ref": f"#/$defs/{name}"}

    def _choices(self, shapes: list[Shape]) -> Schema:
        written: list[Schema] = []
        for shape in shapes:
            written += [choice for choice in self._written(shape) if choice is not False and choice not in written]
        values = {key_of(value): value for choice in written if isinstance(choice, dict) and "enum" in choice for value in choice["enum"]}
        if values:
            written = [{"enum": list(values.values())}, *(choice for choice in written if isinstance(choice, bool) or "enum" not in choice)]
        if not written:
            return False
        if True in written or {} in written:
            return True
        return written[0] if len(written) == 1 else {"anyOf": written}

    def _written(self, shape: Shape) -> list[Schema]:
        """The schemas that one shape takes."""
        if shape.values is not None:
            values = [value for value in shape.values if _has_spelling(value)]
            if len(values) < len(shape.values):
                self.left_out = refused("enum", "", _WHY_UNSPELLED)
            return [{"enum": values}] if values else []
        out: dict[str, Any] = {}
        if shape.types != ALL_TYPES:
            names = [name for name in TYPES if name in shape.types]
            if "number" in names and shape.is_whole():
                names[names.index("number")] = "integer"
            out["type"] = names[0] if len(names) == 1 else names
        elif shape.is_whole():
            out["type"] = ["integer" if name == "number" else name for name in TYPES]
        if "number" in shape.types:
            _write_number(shape, out)
        if "string" in shape.types:
            _write_string(shape, out)
        apart: list[Schema] = []
        if "array" in shape.types and (shape.items or shape.min_items or shape.max_items is not None or shape.unique is not None):
            apart += self._arrays(shape, out, alone=len(shape.types) == 1)
        if "object" in shape.types:
            if shape.min_members or shape.max_members is not None:
                apart += self._counted(shape)
                _without(out, "object")
            elif (shape.members or shape.required or shape.bound_names) and not self._objects(shape, (), out):
                _without(out, "object")
        return [*([out] if out.get("type") != [] else []), *apart]

    def _arrays(self, shape: Shape, out: dict[str, Any], *, alone: bool) -> list[Schema]:
        """Write what arrays are, or return it, where it takes more than keywords."""
        if shape.unique is not None and (shape.max_items is None or shape.max_items > 1):
            written = unique_arrays(shape, self._expander.checker)
            if written is None:
                raise refused("uniqueItems", shape.unique, "whether items differ cannot be told while they are written")
            if written is not shape:
                _without(out, "array")
                return [{"enum": written}] if written else []
        most = shape.max_items
        prefix: list[Schema] = []
        for index in range(shape.prefix_length):
            below = self.reference(shape.item(index)) if most is None or index < most else False
            if below is False:
                most = index
                break
            prefix.append(below)
        rest = self.reference(shape.rest_of_items) if most is None or most > len(prefix) else True
        if rest is False:
            most = len(prefix) if most is None else min(most, len(prefix))
            rest = True
        if most is not None and shape.min_items > most:
            _without(out, "array")
            return []
        if prefix:
            out["prefixItems"] = prefix
        if rest is not True:
            out["items"] = rest
        if shape.min_items:
            out["minItems"] = shape.min_items
        if most is not None:
            out["maxItems"] = most
        return []

    def _objects(self, shape: Shape, absent: tuple[str, ...], out: dict[str, Any]) -> bool:
        """Write what objects are, ``absent`` members forbidden; False where none can be."""
        checker, bound = self._expander.checker, shape.bound_names
        names: dict[str, Schema] = {}
        for name in shape.names:
            allowed = name not in absent and (not bound or checker.holds(bound, name))
            if allowed and not _has_spelling(name):
                self.left_out = refused("properties", "", _WHY_UNSPELLED)
                allowed = False
            names[name] = self.reference(shape.member(name)) if allowed else False
            if names[name] is False and name in shape.required:
                return False
        rest = self.reference(shape.rest_of_members)
        patterns: dict[str, Schema] = {}
        for pattern in dict.fromkeys(pattern for members in shape.members for pattern, _ in members.patterns):
            states = [dict(members.patterns).get(pattern, members.rest) for members in shape.members]
            patterns[engine_pattern(pattern)] = self.reference(frozenset().union(*states))
        if bound and (rest is not False or patterns):
            rest = self._bound(shape, names, patterns, rest)
        if names:
            out["properties"] = names
        if patterns:
            out["patternProperties"] = patterns
        if rest is not True:
            out["additionalProperties"] = rest
        if shape.required:
            out["required"] = list(shape.required)
        return True

    def _bound(self, shape: Shape, names: dict[str, Schema], patterns: dict[str, Schema], rest: Schema) -> Schema:
        """Make members, besides those named, keep the rule for their names; returns what is left to say of the rest."""
        allowed = [name for name in self._expander.shapes(shape.bound_names) if "string" in name.types]
        pointer = next((site.pointer for site, _ in shape.bound_names), "")
        if any(name == NOTHING_SAID or _says_nothing(name) for name in allowed):
            return rest
        if all(name.values is not None for name in allowed):
            for name in allowed:
                for text in name.values or ():
                    if isinstance(text, str) and text not in names:
                        names[text] = self.reference(shape.member(text))
            patterns.clear()
            return False
        if patterns or len(allowed) != 1 or allowed[0].formats or len(allowed[0].patterns) + _has_length(allowed[0]) > 1:
            raise refused("propertyNames", pointer, "only a list of names, one pattern or a length can be enforced here")
        only = allowed[0]
        length = f"^[\\s\\S]{{{only.min_length},{'' if only.max_length is None else only.max_length}}}$"
        patterns[engine_pattern(*only.patterns[0]) if only.patterns else length] = rest
        return False

    def _counted(self, shape: Shape) -> list[Schema]:
        """Objects of so many members: a choice of which of the named ones are there.

        A member twice counts once, so that at most one that is not named may be asked for.
        """
        optional = [name for name in shape.names if name not in shape.required and self._expander.shapes(shape.member(name))]
        if 2 ** len(optional) > MAX_SUBSETS:
            few = max(0, shape.min_members - len(shape.required))
            if shape.max_members is not None or few > 1:
                raise refused("minProperties" if few else "maxProperties", "", "too many members are optional to count them")
            chosen: list[tuple[str, ...]] = [(name,) for name in optional] if few else [()]
            return [written for names in chosen if (written := self._counted_one(shape, names, ())) is not None]
        found: list[Schema] = []
        for size in range(len(optional), -1, -1):
            for present in combinations(optional, size):
                absent = tuple(name for name in optional if name not in present)
                if (written := self._counted_one(shape, present, absent)) is not None:
                    found.append(written)
        return found

    def _counted_one(self, shape: Shape, present: tuple[str, ...], absent: tuple[str, ...]) -> Schema | None:
        named = len(shape.required) + len(present)
        if shape.max_members is not None and named > shape.max_members:
            return None
        if named + 1 < shape.min_members:
            self.left_out = refused("minProperties", "", "whether two members have the same name cannot be told while they are written")
            return None
        out: dict[str, Any] = {"type": "object"}
        if not self._objects(replace(shape, required=(*shape.required, *present)), absent, out):
            return None
        if named < shape.min_members:
            if out.get("additionalProperties") is False and not out.get("patternProperties"):
                return None
            out["minProperties"] = shape.min_members
        if shape.max_members is not None:
            if shape.max_members == named:
                out["additionalProperties"] = False
                out.pop("patternProperties", None)
            else:
                out["maxProperties"] = shape.max_members
        return out


def _write_number(shape: Shape, out: dict[str, Any]) -> None:
    low, high = told(shape.low, shape.high, whole=shape.is_whole())
    for bound, plainly, exclusively in ((low, "minimum", "exclusiveMinimum"), (high, "maximum", "exclusiveMaximum")):
        if bound is not None:
            out[exclusively if bound[1] else plainly] = plain(bound[0])
    if shape.step is not None and shape.step != 1:
        digits = shape.step * 10 ** max(0, len(str(plain(shape.step)).partition(".")[2]))
        if digits > MAX_STEP:  # the engine counts remainders
            raise refused("multipleOf", "", f"a step of more than {MAX_STEP} units of its last digit")
        out["multipleOf"] = plain(shape.step)


def _write_string(shape: Shape, out: dict[str, Any]) -> None:
    if shape.min_length:
        out["minLength"] = shape.min_length
    if shape.max_length is not None:
        out["maxLength"] = shape.max_length
    parts: list[dict[str, Any]] = [{"pattern": engine_pattern(pattern, pointer)} for pattern, pointer in shape.patterns]
    parts += [{key: engine_pattern(said) if key == "pattern" else said for key, said in FORMATS[name].items()} for name in shape.formats]
    if len(parts) > 1:
        out["allOf"] = parts
    elif parts:
        lengths = [part["maxLength"] for part in (out, parts[0]) if "maxLength" in part]
        out.update(parts[0], **({"maxLength": min(lengths)} if lengths else {}))


def _without(out: dict[str, Any], kind: str) -> None:
    """Take a type out of a schema that is being written."""
    types = out.get("type", list(TYPES))
    out["type"] = [name for name in (types if isinstance(types, list) else [types]) if name != kind]


def _says_nothing(shape: Shape) -> bool:
    """Whether every string has a shape."""
    return shape.values is None and not shape.patterns and not shape.formats and not _has_length(shape)


def _has_length(shape: Shape) -> bool:
    return shape.min_length > 0 or shape.max_length is not None


def _has_spelling(value: Any) -> bool:
    """Whether a value can be written without ``\\u``, which would give every character a second spelling.

    Raises GrammarError for long strings: forced text is asked for as a whole, in time proportional to its length; and for numbers
    that the engine would write as others.
    """
    match value:
        case int() if abs(value) <= LARGEST:  # booleans too
            return True
        case int() | float():
            if not is_told(value):
                raise refused("enum", "", f"{value} has more digits than a double tells apart")
            return True
        case str():
            if len(value) > MAX_STRING:
                raise GrammarError(f"A value in the schema is longer than {MAX_STRING} characters.", code="grammar_too_large")
            return not _UNSPELLED.search(value)
        case list():
            return all(map(_has_spelling, value))
        case dict():
            return all(_has_spelling(part) for item in value.items() for part in item)
        case _:
            return True
