"""Bodies of Ollama's ``/api/chat`` and ``/api/generate`` as chat and completion bodies.  Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from radixrt import samplers
from radixrt.errors import RequestError
from radixrt.server import bodies

_UNSUPPORTED = {"images": "images", "suffix": "insertion", "context": "the context of an earlier answer; send messages to /api/chat"}
_PENALTIES = {
    "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}
_OPTIONS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed", "stop": "stop", **_PENALTIES,
    **{name: name for name in samplers.NAMES},
}


class OllamaBody(msgspec.Struct, frozen=True, kw_only=True):
    """What ``/api/chat`` and ``/api/generate`` share.  ``stream`` is on unless it is false; ``keep_alive`` has no meaning here."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: Any = None


class OllamaChatBody(OllamaBody, frozen=True, kw_only=True):
    """The body of ``/api/chat``."""

    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateBody(OllamaBody, frozen=True, kw_only=True):
    """The body of ``/api/generate``; ``raw`` leaves the chat template out."""

    prompt: str = ""
    system: str | None = None
    template: str | None = None
    raw: bool | None = None


def served_name(name: str) -> str:
    """Return a model's name without the tag that Ollama's clients add when there is none."""
    return name.removesuffix(":latest")


def chat_body(raw: dict[str, Any]) -> tuple[OllamaChatBody, dict[str, Any]]:
    """Return a body of ``/api/chat`` and the chat body it stands for.  Raises RequestError."""
    bodies.refuse(raw, _UNSUPPORTED)
    body = bodies.typed(raw, OllamaChatBody)
    chat = _common(raw, body) | {"messages": [_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)]}
    if body.tools:
        chat["tools"] = body.tools
    return body, chat


def generate_body(raw: dict[str, Any]) -> tuple[OllamaGenerateBody, dict[str, Any]]:
    """Return a body of ``/api/generate`` and the chat body it stands for; a ``raw`` one has ``prompt`` in place of messages.

    Raises RequestError.
    """
    bodies.refuse(raw, _UNSUPPORTED | {"template": "templates from requests"})
    body = bodies.typed(raw, OllamaGenerateBody)
    if body.raw:
        if body.system:
            raise RequestError("system has no place in a raw prompt.", param="system", code="invalid_value")
        return body, _common(raw, body) | {"prompt": body.prompt}
    system = [{"role": "system", "content": body.system}] if body.system else []
    return body, _common(raw, body) | {"messages": [*system, {"role": "user", "content": body.prompt}]}


def _common(raw: dict[str, Any], body: OllamaBody) -> dict[str, Any]:
    options = body.options or {}
    chat: dict[str, Any] = {"model": served_name(body.model), "stream": body.stream is not False, **bodies.own_fields(raw)}
    chat |= {theirs: options[ours] for ours, theirs in _OPTIONS.items() if options.get(ours) is not None}
    if options.get("repeat_last_n") == 0:
        # A window of no tokens.  Any other is taken for the whole output, which is what penalties here look at.
        for name in _PENALTIES.values():
            chat.pop(name, None)
    length = options.get("num_predict")
    # Negative: until the end, or until the context is full.
    if length is not None and not (type(length) is int and length < 0):
        chat["max_tokens"] = length
    if body.format == "json":
        chat["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": body.format, "strict": True}}
    elif body.format:
        raise RequestError("format must be 'json' or a JSON schema.", param="format", code="invalid_value")
    if body.think is not None:
        chat["chat_template_kwargs"] = {"enable_thinking": bool(body.think)}
    return chat


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """A message with its calls as chat bodies have them: with an id and with arguments as JSON text."""
    if message.get("images"):
        raise RequestError(f"{where}.images (images) is not supported.", param=f"{where}.images", code="unsupported_parameter")
    result = {field: message[field] for field in ("role", "content", "tool_call_id") if message.get(field) is not None}
    calls = message.get("tool_calls")
    if calls:
        result["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]", f"call_{where}_{i}") for i, call in enumerate(calls)]
    result.setdefault("content", "")
    return result


def _call(call: Any, where: str, id: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{where}.function is required.", param=where, code="missing_parameter")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments or {}).decode()
    return {"id": call.get("id") or id, "type": "function", "function": {"name": function.get("name"), "arguments": arguments}}
