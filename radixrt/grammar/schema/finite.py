"""Which parts of a plain schema some finite instance fits; the others are taken out, so that nothing leads into them."""

from __future__ import annotations

from typing import Any

from radixrt.errors import GrammarError
from radixrt.grammar.schema.document import Schema


def prune(root: Schema, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions, without what no finite instance fits; GrammarError where none fits the whole."""
    good: set[str] = set()
    found = True
    while found:
        new = {name for name, schema in definitions.items() if name not in good and _fits(schema, good)}
        good |= new
        found = bool(new)
    if not _fits(root, good):
        raise GrammarError("The schema has no finite answer: nothing can meet it.", code="unsatisfiable_schema")
    pruned = _pruned(root, good)
    kept = {name: _pruned(schema, good) for name, schema in definitions.items() if name in good}
    schema = pruned if isinstance(pruned, dict) else {}
    while "$ref" in schema:  # the root stands in place
        below = kept[schema["$ref"].rpartition("/")[2]]
        schema = below if isinstance(below, dict) else {}
    used = _reachable(schema, kept)
    return {**schema, "$defs": {name: kept[name] for name in kept if name in used}} if used else schema


def _fits(schema: Schema, good: set[str]) -> bool:
    """Whether some finite instance fits, as far as is known of the definitions."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2] in good
    if "anyOf" in schema:
        return any(_fits(choice, good) for choice in schema["anyOf"])
    if "enum" in schema:
        return bool(schema["enum"])
    types = schema.get("type", "null")
    for kind in [types] if isinstance(types, str) else types:
        if kind == "object":
            names = schema.get("properties", {})
            if all(_fits(names.get(name, True), good) for name in schema.get("required", ())):
                return True
        elif kind == "array":
            prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
            if all(_fits(prefix[i] if i < len(prefix) else rest, good) for i in range(min(schema.get("minItems", 0), len(prefix) + 1))):
                return True
        else:
            return True
    return False


def _pruned(schema: Schema, good: set[str]) -> Schema:
    """The same schema with False for every part that no finite instance fits."""
    if isinstance(schema, bool):
        return schema
    if not _fits(schema, good):
        return False
    if "anyOf" in schema:
        choices = [_pruned(choice, good) for choice in schema["anyOf"] if _fits(choice, good)]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    out = dict(schema)
    for keyword in ("properties", "patternProperties"):
        if keyword in out:
            out[keyword] = {name: _pruned(below, good) for name, below in out[keyword].items()}
    if "additionalProperties" in out:
        out["additionalProperties"] = _pruned(out["additionalProperties"], good)
    if "prefixItems" in out or "items" in out:
        prefix = [_pruned(below, good) for below in out.get("prefixItems", [])]
        rest = _pruned(out.get("items", True), good)
        reach = prefix.index(False) if False in prefix else len(prefix) if rest is False else None
        if reach is not None:
            if out.get("minItems", 0) > reach:
                types = out.get("type", "array")
                out["type"] = [kind for kind in types if kind != "array"] if isinstance(types, list) else types
            out["maxItems"] = min(reach, out.get("maxItems", reach))
            prefix, rest = prefix[:reach], True
        out.pop("prefixItems", None)
        out.pop("items", None)
        out.update({"prefixItems": prefix} if prefix else {}, **({} if rest is True else {"items": rest}))
    return out


def _reachable(schema: Schema, definitions: dict[str, Any]) -> set[str]:
    """The names of the definitions that a schema leads to."""
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            reference = value.get("$ref")
            if (
                isinstance(reference, str)
                and reference.startswith("#/$defs/")
                and (name := reference[8:]) not in found
                and name in definitions
            ):
                found.add(name)
                waiting.append(definitions[name])
            waiting += [below for keyword, below in value.items() if keyword != "enum"]
    return found
