"""The plain schemas that xgrammar enforces.  What is not listed here it may ignore without a word, and is refused."""

from __future__ import annotations

from typing import Any

from radixrt.grammar.schema.document import Schema
from radixrt.grammar.schema.problems import refused
from radixrt.grammar.schema.write import normalise

ALONE = ("$ref", "anyOf", "enum")
OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
}


def check_whitelist(schema: Schema, pointer: str = "", *, root: bool = True) -> None:
    """Raise GrammarError unless every keyword of a normalised schema is one that xgrammar is known to enforce there."""
    if isinstance(schema, bool):
        if not schema:
            raise refused("false", pointer, "xgrammar does not enforce it")
        return
    keywords = set(schema) - ({"$defs"} if root else set())
    if not keywords:
        return
    for name, below in schema.get("$defs", {}).items() if root else ():
        check_whitelist(below, f"{pointer}/$defs/{name}", root=False)
    for keyword in ALONE:
        if keyword in keywords:
            if len(keywords) > 1:
                raise refused(keyword, pointer, "xgrammar does not enforce what stands beside it")
            if keyword == "anyOf":
                for index, choice in enumerate(schema["anyOf"]):
                    check_whitelist(choice, f"{pointer}/anyOf/{index}", root=False)
            elif keyword == "enum" and not all(isinstance(value, str | int | None) for value in schema["enum"]):
                raise refused("enum", pointer, "xgrammar enforces strings, whole numbers, booleans and null")
            return
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in OF_TYPE:
        raise refused("type", pointer, "xgrammar enforces schemas of one type")
    for keyword in keywords - {"type"} - OF_TYPE[kind]:
        raise refused(keyword, pointer, "xgrammar does not enforce it")
    _check_below(schema, kind, pointer)


def _check_below(schema: dict[str, Any], kind: str, pointer: str) -> None:
    if kind == "object":
        names = schema.get("properties", {})
        if schema and len(schema) > 1 and schema.get("additionalProperties") is not False:
            raise refused("additionalProperties", pointer, "xgrammar enforces objects that are closed, or of which nothing is said")
        if not set(schema.get("required", ())) <= set(names):
            raise refused("required", pointer, "xgrammar ignores names that are not declared")
        for name, below in names.items():
            check_whitelist(below, f"{pointer}/properties/{name}", root=False)
    elif kind == "array":
        if "prefixItems" in schema and schema.get("maxItems") != len(schema["prefixItems"]):
            raise refused("prefixItems", pointer, "xgrammar enforces tuples of one length")
        for index, below in enumerate(schema.get("prefixItems", ())):
            check_whitelist(below, f"{pointer}/prefixItems/{index}", root=False)
        if "items" in schema:
            check_whitelist(schema["items"], f"{pointer}/items", root=False)


def checked_tag(tag: Any) -> Any:
    """Return a structural tag whose JSON schemas are normalised and all enforced."""
    if isinstance(tag, list):
        return [checked_tag(part) for part in tag]
    if not isinstance(tag, dict):
        return tag
    out = {name: checked_tag(part) if name not in ("schema", "json_schema") else part for name, part in tag.items()}
    for name in ("schema", "json_schema"):
        if isinstance(out.get(name), dict | bool):
            out[name] = normalise(out[name])
            check_whitelist(out[name])
    return out
