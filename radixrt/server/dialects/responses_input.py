"""Bodies of ``/v1/responses`` as chat bodies.  Pure.

Items of types this server does not know, and tools it has not got, are left out: agents offer more than any one server has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt import samplers
from radixrt.errors import RequestError
from radixrt.server import bodies
from radixrt.server.problems import excerpt

_UNSUPPORTED = {
    "background": "answers in the background", "conversation": "conversations; use previous_response_id", "prompt": "stored prompts",
}
# Fields whose meaning is the same in a chat body, under the name they have there.
_SAME = {
    "model": "model", "temperature": "temperature", "top_p": "top_p", "stream": "stream", "max_output_tokens": "max_completion_tokens",
    "parallel_tool_calls": "parallel_tool_calls", "seed": "seed", "stop": "stop", "top_k": "top_k", "min_p": "min_p",
    "chat_template_kwargs": "chat_template_kwargs",
    "repetition_penalty": "repetition_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos", **{name: name for name in samplers.NAMES},
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/v1/responses``: what this route reads itself; sampling fields go on to the chat body."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    top_logprobs: int | None = None
    user: str | None = None


def read_body(raw: dict[str, Any]) -> ResponsesBody:
    """Check and type a body.  Raises RequestError."""
    bodies.refuse(raw, _UNSUPPORTED)
    body = bodies.typed(raw, ResponsesBody)
    if body.input is None and body.previous_response_id is None:
        raise RequestError("input is required.", param="input", code="missing_parameter")
    if body.truncation not in (None, "disabled", "auto"):
        raise RequestError("truncation must be 'disabled' or 'auto'.", param="truncation", code="invalid_value")
    return body


def chat_body(raw: dict[str, Any], body: ResponsesBody, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the chat body of a response; ``history`` are the messages of the response it continues.

    Raises RequestError.
    """
    chat = {theirs: raw[ours] for ours, theirs in _SAME.items() if raw.get(ours) is not None} | bodies.own_fields(raw)
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    chat["messages"] = merge_system([*instructions, *history, *input_messages(body.input)])
    tools = [function_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()) if tool.get("type") == "function"]
    if tools:
        chat["tools"] = tools
        if body.tool_choice is not None:
            chat["tool_choice"] = tool_choice(body.tool_choice)
    elif body.tool_choice == "required":
        raise RequestError("tool_choice needs a function among the tools.", param="tool_choice", code="invalid_value")
    given = (body.text or {}).get("format")
    if given is not None:
        chat["response_format"] = response_format(given)
    effort = (body.reasoning or {}).get("effort")
    if isinstance(effort, str):
        chat["reasoning_effort"] = effort
    if body.top_logprobs:
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return chat


def input_messages(given: str | Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the chat messages of ``input``; calls of functions join the assistant's message before them."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        where = f"input[{i}]"
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"), f"{where}.content")})
        elif kind == "function_call":
            call = {
                "id": item.get("call_id"), "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments") or "{}"},
            }
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "item_reference":
            message = "item_reference is not supported; send the item, or previous_response_id."
            raise RequestError(message, param=where, code="unsupported_parameter")
    return messages


def merge_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with leading system and developer ones joined: most templates take a single one, at the head."""
    head = 0
    while head < len(messages) and messages[head]["role"] in ("system", "developer"):
        head += 1
    if head < 2:
        return list(messages)
    text = "\n\n".join(_plain(message["content"]) for message in messages[:head])
    return [{"role": "system", "content": text}, *messages[head:]]


def function_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a function in the form that chat bodies have."""
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.name is required.", param=f"{where}.name", code="missing_parameter")
    function = {field: tool[field] for field in ("name", "description", "parameters", "strict") if tool.get(field) is not None}
    return {"type": "function", "function": function}


def tool_choice(given: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a tool choice in the form that chat bodies have."""
    if isinstance(given, str):
        return given
    kind = given.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    if kind == "allowed_tools":
        names = [tool.get("name") for tool in given.get("tools") or () if isinstance(tool, dict)]
        allowed = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode", "auto"), "tools": allowed}}
    raise RequestError(f"tool_choice of type {excerpt(kind)} is not supported.", param="tool_choice", code="unsupported_parameter")


def response_format(given: Any) -> dict[str, Any]:
    """Return ``text.format`` as the ``response_format`` of a chat body."""
    if not isinstance(given, dict):
        raise RequestError("text.format must be an object.", param="text.format", code="invalid_type")
    if given.get("type") != "json_schema":
        return given
    fields = ("name", "schema", "strict", "description")
    return {"type": "json_schema", "json_schema": {field: given[field] for field in fields if field in given}}


def _content(value: Any, where: str) -> Any:
    """Return the text of a message: a string, or parts as chat bodies have them."""
    if not isinstance(value, list):
        return value
    parts: list[dict[str, Any]] = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal")})
        elif kind in _TEXT_PARTS:
            parts.append({"type": "text", "text": part.get("text")})
        else:
            raise RequestError(f"{where}[{i}] must be text: this model takes only text.", param=f"{where}[{i}]", code="invalid_value")
    return parts


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in content or () if isinstance(part, dict))
