"""What a chat body says of tools: which there are, which may be called, and which must be.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from radixrt.errors import RequestError
from radixrt.limits import DEFAULTS, Limits
from radixrt.text.tools.formats import CallFormat, Frame
from radixrt.types import GrammarOptions, GrammarSpec

MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_OPTIONAL: tuple[tuple[str, type[object], str], ...] = (
    ("description", str, "a string"), ("strict", bool, "a boolean"), ("parameters", dict, "an object")
)  # fmt: skip
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: all of them, as the template shows them.  schemas: of the arguments of those that may be called.

    forced: the answer is calls and nothing else.  strict: whose schema must be obeyed or refused, whatever is chosen.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forced: bool = False
    max_calls: int | None = None
    strict: frozenset[str] = frozenset()

    def forced_spec(self, frame: Frame) -> GrammarSpec:
        """The constraint that makes an answer nothing but calls."""
        tools = [_entry(name, frame.head(name), schema, frame, strict=True) for name, schema in self.schemas.items()]
        # As models write calls, and templates show them: what is cached of an answer is found again by the next turn.
        return _spec(tools, frame, self.max_calls, whitespace="fixed")

    def call_spec(self, frame: Frame) -> GrammarSpec:
        """The constraint on one call, from after its trigger."""
        tools = [
            _entry(name, frame.head(name).removeprefix(frame.trigger), schema, frame, strict=name in self.strict)
            for name, schema in self.schemas.items()
        ]
        return _spec(tools, frame, 1, whitespace="flexible", strict=bool(self.strict))


def _entry(name: str, begin: str, schema: Mapping[str, Any], frame: Frame, *, strict: bool) -> dict[str, Any]:
    return {"name": name, "begin": begin, "schema": schema, "end": frame.end, "strict": strict}


def _spec(
    tools: list[dict[str, Any]], frame: Frame, most: int | None, *, whitespace: Literal["fixed", "flexible"], strict: bool = True
) -> GrammarSpec:
    text = {"prefix": frame.prefix, "separator": frame.separator, "suffix": frame.suffix, "min": 1, "max": most, "tools": tools}
    return GrammarSpec("tool_calls", msgspec.json.encode(text).decode(), GrammarOptions(whitespace=whitespace, strict=strict))


def tool_use(
    tools: Sequence[Mapping[str, Any]] | None, tool_choice: object, parallel_tool_calls: bool | None, form: CallFormat | None,
    limits: Limits = DEFAULTS,
) -> ToolUse:
    """Read the tools of a body; ``form`` is how the model writes calls, None when its calls are not read.  Raises RequestError."""
    if not tools:
        if tool_choice not in (None, "none", "auto"):
            raise RequestError("tool_choice needs tools.", param="tool_choice", code="invalid_value")
        return ToolUse()
    if len(tools) > limits.max_tools:
        raise RequestError(f"tools takes at most {limits.max_tools} tools, got {len(tools)}.", param="tools", code="invalid_value")
    schemas: dict[str, Mapping[str, Any]] = {}
    strict = set()
    for i, tool in enumerate(tools):
        name, schema, is_strict = _function(tool, f"tools[{i}]")
        if name in schemas:
            where = f"tools[{i}].function.name"
            raise RequestError(f"{where} {_shown(name)!r} is taken.", param=where, code="invalid_value")
        schemas[name] = schema
        if is_strict:
            strict.add(name)
    if len(json.dumps(tools, ensure_ascii=False).encode(errors="surrogatepass")) > limits.max_tools_bytes:
        raise RequestError(f"tools are larger than {limits.max_tools_bytes} bytes.", param="tools", code="tools_too_large")
    mode, names = _choice(tool_choice, schemas)
    if mode == "none":
        return ToolUse(tools)
    if form is None:
        if mode == "auto":
            return ToolUse(tools)
        message = "This server reads no tool calls (--tool-call-parser none), so none can be required."
        raise RequestError(message, param="tool_choice", code="unsupported_parameter")
    allowed = {name: schemas[name] for name in names}
    named = isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function"
    max_calls = 1 if parallel_tool_calls is False or named else form.max_calls
    return ToolUse(tools, allowed, mode == "required", max_calls, frozenset(strict & allowed.keys()))


def _function(tool: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any], bool]:
    """Name, schema of the arguments and strictness of a tool."""
    if tool.get("type", "function") != "function":
        kind = _shown(tool.get("type"))
        raise RequestError(f"{where}.type must be 'function', got {kind}.", param=f"{where}.type", code="unsupported_parameter")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function must be an object.", param=f"{where}.function", code="invalid_type")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = f"{where}.function.name must be 1 to 128 characters of [A-Za-z0-9_.-]."
        raise RequestError(message, param=f"{where}.function.name", code="invalid_value")
    for key, expected, what in _OPTIONAL:
        if function.get(key) is not None and not isinstance(function[key], expected):
            raise RequestError(f"{where}.function.{key} must be {what}.", param=f"{where}.function.{key}", code="invalid_type")
    parameters = function.get("parameters")
    if parameters is None:
        return name, _NO_PARAMETERS, bool(function.get("strict"))
    if _depth(parameters) > MAX_DEPTH:
        message = f"{where}.function.parameters is nested more than {MAX_DEPTH} levels deep."
        raise RequestError(message, param=f"{where}.function.parameters", code="invalid_value")
    if parameters.get("type", "object") != "object":
        message = f"{where}.function.parameters must be a schema of type object."
        raise RequestError(message, param=f"{where}.function.parameters", code="invalid_value")
    return name, {"type": "object", **parameters}, bool(function.get("strict"))


def _shown(value: object) -> str:
    """A piece of the caller's input, bounded."""
    text = str(value)
    return text if len(text) <= 64 else f"{text[:63]}…"


def _depth(value: object) -> int:
    """How deep a value is nested; looks no further than just beyond MAX_DEPTH."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner: list[object] = []
        for item in level:
            inner += item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
        level = [item for item in inner if isinstance(item, Mapping | list)]
    return depth


def _choice(choice: object, names: Mapping[str, object]) -> tuple[str, Sequence[str]]:
    """Return none, auto or required, and which tools may be called."""
    if choice is None or choice in ("none", "auto", "required"):
        return str(choice or "auto"), list(names)
    if choice == "any":
        return "required", list(names)
    if isinstance(choice, Mapping):
        if choice.get("type") == "function":
            return "required", [_named(choice, names, "tool_choice")]
        if choice.get("type") == "allowed_tools":
            allowed = choice.get("allowed_tools", choice)
            tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
            if not isinstance(tools, list) or not tools or allowed.get("mode", "auto") not in ("auto", "required"):
                message = "tool_choice.allowed_tools must have a mode, 'auto' or 'required', and a list of tools."
                raise RequestError(message, param="tool_choice.allowed_tools", code="invalid_value")
            found = [_named(tool, names, f"tool_choice.allowed_tools.tools[{i}]") for i, tool in enumerate(tools)]
            return allowed.get("mode", "auto"), list(dict.fromkeys(found))
    message = "tool_choice must be 'none', 'auto', 'required', a function of tools, or allowed_tools."
    raise RequestError(message, param="tool_choice", code="invalid_value")


def _named(tool: object, names: Mapping[str, object], where: str) -> str:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in names:
        raise RequestError(f"{where} names {_shown(name)!r}, which is not among the tools.", param="tool_choice", code="invalid_value")
    return name
