"""The keywords of one schema object that say something by themselves, as one shape; and shapes of what they exclude."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from radixrt.grammar.schema.document import Site
from radixrt.grammar.schema.formats import FORMATS
from radixrt.grammar.schema.patterns import other_than
from radixrt.grammar.schema.problems import refused
from radixrt.grammar.schema.shapes import (
    ALL_TYPES,
    ANY,
    NOTHING_SAID,
    Items,
    Members,
    Shape,
    State,
    common_step,
    meet,
    of_type,
    other_types,
)
from radixrt.grammar.schema.values import canonical, exact, key_of, type_of

MAX_COUNT = 10_000
OF_NUMBERS = frozenset(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"))
OF_STRINGS = frozenset(("minLength", "maxLength", "pattern", "format"))
OF_ARRAYS = frozenset(("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"))
OF_OBJECTS = frozenset((
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties", "propertyNames",
))  # fmt: skip
Obliged = Callable[..., State]  # from the path below a schema to the state of what is there


def type_names(site: Site) -> tuple[str, ...]:
    """The names that the type keyword lists."""
    assert isinstance(site.value, dict)
    named = site.value["type"]
    names = (named,) if isinstance(named, str) else tuple(named) if isinstance(named, list) else ()
    for name in names:
        if name not in (*ALL_TYPES, "integer"):
            raise refused("type", site.pointer, f"there is no type {str(name)[:40]!r}")
    if not names:
        raise refused("type", site.pointer, "expected the name of a type")
    return names


def typed(site: Site) -> Shape:
    """The shape of the type keyword."""
    return _of_types(type_names(site))


@lru_cache(1024)
def _of_types(names: tuple[str, ...]) -> Shape:
    types = frozenset("number" if name == "integer" else name for name in names)
    return Shape(types=types, step=Fraction(1) if "integer" in names and "number" not in names else None)


def values_of(site: Site) -> list[Any] | None:
    """The values that const and enum leave; None where there is neither."""
    schema = site.value
    assert isinstance(schema, dict)
    lists = [schema["enum"]] if "enum" in schema else []
    lists += [[schema["const"]]] if "const" in schema else []
    if not lists:
        return None
    if not isinstance(lists[0], list):
        raise refused("enum", site.pointer, "expected a list")
    found: dict[Any, Any] = {key_of(value): canonical(value) for value in lists[0]}
    for more in lists[1:]:
        keys = {key_of(value) for value in more}
        found = {key: value for key, value in found.items() if key in keys}
    return list(found.values())


def plain_facets(site: Site, obliged: Obliged) -> Shape:
    """The shape of all the plain keywords but the values; ``obliged(keyword, ...)`` is the state of a subschema."""
    schema = site.value
    assert isinstance(schema, dict)
    facets: dict[str, Any] = {}
    if not OF_NUMBERS.isdisjoint(schema):
        facets["low"], facets["high"] = bounds(site)
        facets["step"] = _step(site)
    if not OF_STRINGS.isdisjoint(schema):
        facets["min_length"], facets["max_length"] = count(site, "minLength") or 0, count(site, "maxLength")
        facets["patterns"] = ((schema["pattern"], site.pointer),) if isinstance(schema.get("pattern"), str) else ()
        facets["formats"] = (schema["format"],) if schema.get("format") in FORMATS else ()
    if not OF_ARRAYS.isdisjoint(schema):
        facets["items"] = items_of(site, obliged)
        facets["min_items"], facets["max_items"] = count(site, "minItems") or 0, count(site, "maxItems")
        facets["unique"] = site.pointer if schema.get("uniqueItems") is True else None
    if not OF_OBJECTS.isdisjoint(schema):
        facets["members"] = members_of(site, obliged)
        facets["required"] = names_in(site, "required")
        facets["min_members"], facets["max_members"] = count(site, "minProperties") or 0, count(site, "maxProperties")
        facets["bound_names"] = obliged("propertyNames") if "propertyNames" in schema else ANY
    if "type" in schema:
        kind = typed(site)
        if not facets:
            return kind
        facets["types"] = kind.types
        if kind.step is not None:
            facets["step"] = kind.step if facets.get("step") is None else common_step(facets["step"], kind.step)
    return Shape(**facets) if facets else NOTHING_SAID


def bounds(site: Site) -> tuple[tuple[Fraction, bool] | None, tuple[Fraction, bool] | None]:
    """The tighter bounds of the number keywords; in draft 4 the exclusive ones are flags."""
    low = _bound(site, "minimum", "exclusiveMinimum", 1)
    high = _bound(site, "maximum", "exclusiveMaximum", -1)
    return low, high


def _bound(site: Site, plain: str, exclusive: str, sign: int) -> tuple[Fraction, bool] | None:
    schema = site.value
    assert isinstance(schema, dict)
    found = []
    if plain in schema:
        found.append((number(site, plain), schema.get(exclusive) is True))
    if exclusive in schema and not isinstance(schema[exclusive], bool):
        found.append((number(site, exclusive), True))
    return max(found, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def number(site: Site, keyword: str) -> Fraction:
    """The number that a keyword gives."""
    assert isinstance(site.value, dict)
    value = site.value[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(keyword, site.pointer, "expected a number")
    return exact(value)


def _step(site: Site) -> Fraction | None:
    assert isinstance(site.value, dict)
    if "multipleOf" not in site.value:
        return None
    step = number(site, "multipleOf")
    if step <= 0:
        raise refused("multipleOf", site.pointer, "expected a number above 0")
    return step


def count(site: Site, keyword: str) -> int | None:
    """The count that a keyword gives, None without it."""
    assert isinstance(site.value, dict)
    if keyword not in site.value:
        return None
    known = site.value[keyword]
    if type(known) is int and 0 <= known <= MAX_COUNT:
        return known
    value = number(site, keyword)
    if value.denominator != 1 or value < 0:
        raise refused(keyword, site.pointer, "expected a whole number from 0")
    if value > MAX_COUNT:
        if keyword.startswith("max"):
            return None if keyword == "maxContains" else MAX_COUNT  # no answer is that long anyway
        raise refused(keyword, site.pointer, f"more than {MAX_COUNT}")
    return int(value)


def names_in(site: Site, keyword: str) -> tuple[str, ...]:
    """The member names that a keyword lists."""
    assert isinstance(site.value, dict)
    names = site.value.get(keyword, [])
    if isinstance(names, bool) and keyword == "required":  # draft 3, which many still write: it says nothing here
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refused(keyword, site.pointer, "expected a list of names")
    return tuple(dict.fromkeys(names))


def items_of(site: Site, obliged: Obliged) -> tuple[Items, ...]:
    """What the keywords say of items; a list of schemas under ``items`` is what later drafts call ``prefixItems``."""
    schema = site.value
    assert isinstance(schema, dict)
    below = schema.get("items")
    first = "items" if isinstance(below, list) else "prefixItems"
    rest = "additionalItems" if isinstance(below, list) else "items"
    prefix = schema.get(first, [])
    if not isinstance(prefix, list):
        raise refused(first, site.pointer, "expected a list of schemas")
    if not prefix and rest not in schema:
        return ()
    states = tuple(obliged(first, index) for index in range(len(prefix)))
    return (Items(states, obliged(rest) if rest in schema else ANY, covers=rest in schema),)


def members_of(site: Site, obliged: Obliged) -> tuple[Members, ...]:
    """What the keywords say of members."""
    schema = site.value
    assert isinstance(schema, dict)
    keywords = [keyword for keyword in ("properties", "patternProperties", "additionalProperties") if keyword in schema]
    if not keywords:
        return ()
    for keyword in keywords[:2]:
        if keyword != "additionalProperties" and not isinstance(schema[keyword], dict):
            raise refused(keyword, site.pointer, "expected an object")
    names = {name: obliged("properties", name) for name in schema.get("properties", {})}
    patterns = tuple((pattern, obliged("patternProperties", pattern)) for pattern in schema.get("patternProperties", {}))
    covers = "additionalProperties" in schema
    return (Members(names, patterns, obliged("additionalProperties") if covers else ANY, covers=covers),)


def lacking(name: str, nothing: Site) -> Shape:
    """The shape of objects without a member; ``nothing`` is the schema that nothing meets."""
    return of_type("object", members=(Members({name: frozenset(((nothing, True),))}, counts=False),))


def all_but(values: list[Any], constant: Callable[[Any], Site], nothing: Site) -> list[Shape]:
    """The shapes of every instance but some values; ``constant(value)`` is a schema for one value."""
    shapes = [Shape()]
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        shapes = [of_type("string", patterns=((other_than(texts), ""),)), _others("string")]
    for value in values:
        if not isinstance(value, str):
            choices = list(_other_than(value, constant, nothing))
            shapes = [both for shape in shapes for choice in choices if (both := meet(shape, choice)) is not None]
    return shapes


def _other_than(value: Any, constant: Callable[[Any], Site], nothing: Site) -> Iterator[Shape]:
    """The shapes of every instance but one."""
    yield _others(type_of(value))
    match value:
        case bool():
            yield of_type("boolean", values=(not value,))
        case int() | float():
            yield of_type("number", low=(exact(value), True))
            yield of_type("number", high=(exact(value), True))
        case list():
            size = len(value)
            yield of_type("array", min_items=size + 1)
            if size:
                yield of_type("array", max_items=size - 1)
            for index, item in enumerate(value):
                different: State = frozenset(((constant(item), False),))
                prefix = (*[ANY] * index, different)
                yield of_type("array", min_items=index + 1, items=(Items(prefix, counts=False),))
        case dict():
            yield of_type("object", min_members=len(value) + 1)
            for name, item in value.items():
                yield lacking(name, nothing)
                different = frozenset(((constant(item), False),))
                yield of_type("object", required=(name,), members=(Members({name: different}, counts=False),))


def _others(name: str) -> Shape:
    shape = other_types(name)
    assert shape is not None
    return shape
