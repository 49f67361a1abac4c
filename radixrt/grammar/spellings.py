"""What the APIs call constraints: OpenAI's ``response_format``, SGLang's and vLLM's fields, llama.cpp's, the Responses and the
Messages API.  All become a ``GrammarSpec``, of which a request has at most one.

Fields come as parsed JSON; null asks for nothing.  GrammarError names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from radixrt.errors import GrammarError
from radixrt.grammar import spec as specs
from radixrt.types import GrammarOptions, GrammarSpec

T = TypeVar("T")
Read = Callable[[Any, GrammarOptions], GrammarSpec]

# Fields that are a constraint by themselves: SGLang's, of which llama.cpp has the same json_schema, and its grammar.
PLAIN: dict[str, Read] = {
    "json_schema": specs.json_schema,
    "regex": specs.regex,
    "ebnf": specs.ebnf,
    "choice": specs.choice,
    "structural_tag": specs.structural_tag,
    "grammar": specs.gbnf,
}
GUIDED: dict[str, Read] = {
    "guided_json": specs.json_schema,
    "guided_regex": specs.regex,
    "guided_choice": specs.choice,
    "guided_grammar": specs.ebnf,
}
STRUCTURED: dict[str, Read] = {
    "json": specs.json_schema,
    "regex": specs.regex,
    "choice": specs.choice,
    "grammar": specs.ebnf,
    "structural_tag": specs.structural_tag,
}
FIELDS = frozenset({*PLAIN, *GUIDED, "response_format", "structured_outputs"})
OPTIONS = "grammar_options"
TRUNCATE = ("close", "fit", "hard")
_TRUNCATE = "truncate must be 'close', 'fit' or 'hard'."
_NO_EFFECT = ("disable_fallback", "backend", "_backend", "_backend_was_auto")
_FORMATS = "text, json_object, json_schema or structural_tag"


def constraint(fields: Mapping[str, Any], *, prefix: str = "") -> GrammarSpec | None:
    """Return the one constraint that a body, or the sampling parameters in it, ask for; None for none.

    ``prefix``: what comes before the names of fields in errors.  Raises GrammarError for a second one.
    """
    found: list[tuple[str, GrammarSpec]] = []
    options = _reading(prefix + OPTIONS, lambda: specs.options_of(fields.get(OPTIONS)))
    for name in sorted(FIELDS & fields.keys()):
        value = fields[name]
        if value is None or (name == "grammar" and value == ""):  # clients of llama.cpp always send one
            continue
        for what, read in _readers(name, value, options):
            param = prefix + what
            spec = _reading(param, read)
            if spec is not None:
                found.append((param, msgspec.structs.replace(spec, param=param)))
    if len(found) > 1:
        names = " and ".join(param for param, _ in found)
        raise GrammarError(f"A request has at most one constraint; {names} exclude each other.", param=found[1][0])
    return found[0][1] if found else None


def format_of(value: object, options: GrammarOptions = specs.DEFAULTS, *, param: str) -> GrammarSpec | None:
    """Read a format whose schema lies in it, as in the Responses API (``text.format``) and the Messages API
    (``output_config.format``): ``{"type": "json_schema", "schema": …}``, ``json_object`` or ``text``."""
    spec = _reading(param, lambda: _format(value, options))
    return None if spec is None else msgspec.structs.replace(spec, param=param)


def _readers(name: str, value: Any, options: GrammarOptions) -> Iterator[tuple[str, Callable[[], GrammarSpec | None]]]:
    """Yield the constraints of a field, each with the name errors give it."""
    if name == "response_format":
        yield name, lambda: _format(value, options)
    elif name == "structured_outputs":
        yield from _structured(value, options) if isinstance(value, Mapping) else [(name, _raises(f"{name} must be an object."))]
    else:
        read = PLAIN.get(name) or GUIDED[name]
        yield name, lambda: read(value, options)


def _structured(value: Mapping[str, Any], options: GrammarOptions) -> Iterator[tuple[str, Callable[[], GrammarSpec | None]]]:
    """vLLM's object: one of its keys is the constraint."""
    if value.get("disable_any_whitespace"):
        options = msgspec.structs.replace(options, whitespace="compact")
    if (truncate := value.get("truncate")) is not None:
        if truncate not in TRUNCATE:
            yield "structured_outputs", _raises(_TRUNCATE)
            return
        options = _truncated(options, truncate)
    for key, given in value.items():
        param = f"structured_outputs.{key}"
        if given is None or given is False or key in ("disable_any_whitespace", "truncate", *_NO_EFFECT):
            continue
        if key == "json_object":
            yield param, lambda: specs.json_object(options)
        elif key in STRUCTURED:
            yield param, _bound(STRUCTURED[key], given, options)
        else:
            yield param, _raises(f"structured_outputs takes no {key!r}.")


def _format(value: object, options: GrammarOptions) -> GrammarSpec | None:
    if not isinstance(value, Mapping):
        raise GrammarError("The format must be an object.")
    if value.get("truncate") is not None:
        options = _truncated(options, value["truncate"])
    elif options.truncate == "close":
        # OpenAI cuts an answer off that has no room, and its clients tell that by its finish reason.
        options = msgspec.structs.replace(options, truncate="fit")
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return specs.json_object(options) if value.get("schema") is None else specs.json_schema(value["schema"], options)
        case "json_schema":
            described = value.get("json_schema", value)
            if not isinstance(described, Mapping) or described.get("schema") is None:
                raise GrammarError("A format of type json_schema needs a schema.")
            options = msgspec.structs.replace(options, strict=bool(described.get("strict")))
            return specs.json_schema(described["schema"], options)
        case "structural_tag":
            return specs.structural_tag(value, options)
        case other:
            raise GrammarError(f"The format must be of type {_FORMATS}, got {str(other)[:100]!r}.")


def _truncated(options: GrammarOptions, truncate: object) -> GrammarOptions:
    if truncate not in TRUNCATE:
        raise GrammarError(_TRUNCATE)
    return msgspec.structs.replace(options, truncate=truncate)


def _raises(message: str) -> Callable[[], GrammarSpec]:
    def read() -> GrammarSpec:
        raise GrammarError(message)

    return read


def _bound(read: Read, value: Any, options: GrammarOptions) -> Callable[[], GrammarSpec]:
    return lambda: read(value, options)


def _reading(param: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except GrammarError as error:
        raise GrammarError(error.message, param=param, code=error.code, keyword=error.keyword, pointer=error.pointer) from None
