"""Every way to ask for a constraint becomes a ``GrammarSpec`` here, within limits that are checked before any engine sees it.

Values come as a caller gave them (parsed JSON or text).  Each function raises GrammarError; who calls it knows the name of
the request field and sets ``param``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt.errors import GrammarError
from radixrt.types import GrammarKind, GrammarOptions, GrammarSpec

MAX_BYTES = 256 << 10
MAX_DEPTH = 64
MAX_CHOICES = 10_000
MAX_REGEX_BYTES = 32 << 10

JSON_KINDS = ("json_schema", "json_object")
# Kinds whose text is JSON, and is nested as JSON is.
_JSON_TEXTS = ("json_schema", "json_object", "choice", "structural_tag", "tool_calls")
_WHAT = {
    "json_schema": "schema", "json_object": "schema", "regex": "regular expression", "choice": "list of choices", "ebnf": "grammar",
    "gbnf": "grammar", "structural_tag": "structural tag", "tool_calls": "set of tools",
}  # fmt: skip
_OPENING, _CLOSING = "([{", ")]}"
DEFAULTS = GrammarOptions()


def json_schema(schema: object, options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """JSON that a schema allows; the schema as an object, a boolean, or the JSON text of either."""
    value = _parsed(schema, "schema") if isinstance(schema, str) else schema
    if not isinstance(value, dict | bool):
        raise GrammarError("A JSON schema must be an object or a boolean.")
    return _spec("json_schema", _compact(value, "schema"), options)


def json_object(options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """Any JSON object."""
    return GrammarSpec("json_object", '{"type":"object"}', options)


def regex(pattern: object, options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """Text that a regular expression matches as a whole."""
    return _spec("regex", _text(pattern, "A regular expression"), options)


def choice(choices: object, options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """One of several texts."""
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not all(isinstance(item, str) for item in choices):
        raise GrammarError("Choices must be a list of strings.")
    if not 0 < len(choices) <= MAX_CHOICES:
        raise GrammarError(f"There must be between 1 and {MAX_CHOICES} choices, got {len(choices)}.")
    return _spec("choice", _compact(list(choices), "list of choices"), options)


def ebnf(grammar: object, options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """Text of a grammar in the EBNF of xgrammar, which SGLang and vLLM take."""
    return _spec("ebnf", _text(grammar, "A grammar"), options)


def gbnf(grammar: object, options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """Text of a grammar in llama.cpp's GBNF."""
    return _spec("gbnf", _text(grammar, "A grammar"), options)


def structural_tag(tag: object, options: GrammarOptions = DEFAULTS) -> GrammarSpec:
    """Free text with constrained parts, as SGLang, vLLM and xgrammar describe it: an object or its JSON text."""
    value = _parsed(tag, "structural tag") if isinstance(tag, str) else tag
    if not isinstance(value, dict):
        raise GrammarError("A structural tag must be an object.")
    return _spec("structural_tag", _compact(value, "structural tag"), options)


def options_of(given: object) -> GrammarOptions:
    """Read options given as an object; null stands for the defaults."""
    if given is None or isinstance(given, GrammarOptions):
        return given or DEFAULTS
    try:
        return msgspec.convert(given, GrammarOptions)
    except msgspec.ValidationError as error:
        raise GrammarError(f"{error}.") from None


def check(spec: GrammarSpec) -> None:
    """Raise GrammarError for a spec over the limits; whoever made it, this comes before any engine."""
    what, text = _WHAT[spec.kind], spec.text
    limit = MAX_REGEX_BYTES if spec.kind == "regex" else MAX_BYTES
    if len(text) > limit or len(text.encode(errors="surrogatepass")) > limit:
        raise GrammarError(f"The {what} is larger than {limit} bytes.", code="grammar_too_large")
    if not text:
        raise GrammarError(f"The {what} is empty.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"The {what} is not valid Unicode: it has lone surrogates.") from None
    if "\0" in text:
        raise GrammarError(f"The {what} has a NUL character.")
    if nesting(text, quotes=spec.kind != "regex") > MAX_DEPTH:
        raise GrammarError(f"The {what} is nested more than {MAX_DEPTH} levels deep.", code="grammar_too_deep")


def nesting(text: str, *, quotes: bool) -> int:
    """Return how deep brackets are nested in a text, those after a backslash and, with ``quotes``, those inside "" apart."""
    depth = deepest = 0
    quoted = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"' and quotes:
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif char in _CLOSING:
            depth = max(0, depth - 1)
    return deepest


def _spec(kind: GrammarKind, text: str, options: GrammarOptions) -> GrammarSpec:
    spec = GrammarSpec(kind, text, options)
    check(spec)
    return spec


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"{what} must be a string.")
    return value


def _parsed(text: str, what: str) -> Any:
    if len(text) > MAX_BYTES:
        raise GrammarError(f"The {what} is larger than {MAX_BYTES} bytes.", code="grammar_too_large")
    if nesting(text, quotes=True) > MAX_DEPTH:
        raise GrammarError(f"The {what} is nested more than {MAX_DEPTH} levels deep.", code="grammar_too_deep")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"The {what} is not valid JSON: {error}.") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _compact(value: object, what: str) -> str:
    """JSON without spaces.  Keys stay in order: it is the order they are generated in."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"The {what} is no JSON: {error}.") from None
