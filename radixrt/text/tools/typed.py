"""Arguments that are written as bare text, as JSON of the type that the tool's schema asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_WORDS = {"True": True, "False": False, "None": None}
_MAX_BRANCHES = 64


def parameter_schema(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def is_text(schema: Any) -> bool:
    """Whether a value can only be a string, so that its text may be passed on as it comes."""
    return _types(schema) == {"string"}


def json_text(text: str, schema: Any) -> str:
    """Return a bare value as JSON text: of a type that the schema allows, as a string where it allows any."""
    types = _types(schema)
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    try:
        value = _WORDS[text.strip()] if text.strip() in _WORDS else json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "string" in types and _type(value) not in types:
        return json.dumps(text, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _types(schema: Any) -> set[str]:
    """The types a schema allows as far as it says so plainly; the empty set when it does not."""
    if not isinstance(schema, Mapping):
        return set()
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {name for name in given if isinstance(name, str)}
    if isinstance(schema.get("enum"), list):
        return {_type(value) for value in schema["enum"]}
    if "const" in schema:
        return {_type(schema["const"])}
    types: set[str] = set()
    for key in ("anyOf", "oneOf"):
        for branch in schema.get(key, [])[:_MAX_BRANCHES] if isinstance(schema.get(key), list) else []:
            if isinstance(branch, Mapping) and isinstance(branch.get("type"), str):
                types.add(branch["type"])
            else:
                return set()
    return types


def _type(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
