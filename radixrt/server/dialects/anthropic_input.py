"""Bodies of Anthropic's ``/v1/messages`` as chat bodies.  Pure.

Agents put a line that changes with every request at the head of their system prompt, and a note of the tokens they have left at its end;
either would end the shared prefix of every turn there.  ``steady_prefix`` takes the first away and moves the second behind the
conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from radixrt import samplers
from radixrt.errors import RequestError
from radixrt.server import bodies
from radixrt.server.problems import excerpt

_UNSUPPORTED = {"mcp_servers": "remote tools", "container": "containers"}
_SAME = {
    "model": "model", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stream": "stream", "max_tokens": "max_tokens",
    "stop_sequences": "stop", "seed": "seed", "min_p": "min_p", "chat_template_kwargs": "chat_template_kwargs",
    "ignore_eos": "ignore_eos", "repetition_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", **{name: name for name in samplers.NAMES},
}
# Anthropic's lifetimes of cached prefixes, in seconds.
_TTLS = {"5m": 300.0, "1h": 3600.0}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Blocks of history that say nothing to another model.
_SKIPPED = ("thinking", "redacted_thinking", "server_tool_use", "web_search_tool_result", "container_upload")

_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
_BUDGET_NOTE = re.compile(r"\s*<total_tokens>[^<]{0,64}</total_tokens>\s*\Z")


class MessagesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

    model: str | None = None
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


def read_body(raw: dict[str, Any], *, counts_only: bool = False) -> MessagesBody:
    """Check and type a body.  Raises RequestError."""
    bodies.refuse(raw, _UNSUPPORTED)
    body = bodies.typed(raw, MessagesBody)
    if body.max_tokens is None and not counts_only:
        raise RequestError("max_tokens is required.", param="max_tokens", code="missing_parameter")
    return body


def chat_body(raw: dict[str, Any], body: MessagesBody, *, steady: bool = True) -> tuple[dict[str, Any], list[str]]:
    """Return the chat body of a message, and what ``steady_prefix``, applied unless ``steady`` is off, has done.

    Raises RequestError.
    """
    chat = {theirs: raw[ours] for ours, theirs in _SAME.items() if raw.get(ours) is not None} | bodies.own_fields(raw)
    system = _system(body.system)
    note = ""
    rules: list[str] = []
    if steady:
        system, note, rules = steady_prefix(system)
    messages = [{"role": "system", "content": system}] if system else []
    for i, message in enumerate(body.messages):
        messages += _messages(message, f"messages[{i}]")
    if note and messages and messages[-1]["role"] == "user":
        messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n{note}"}
    chat["messages"] = messages
    if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        chat["continue_final_message"] = True
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()) if tool.get("type") in (None, "custom")]
    if tools:
        chat["tools"] = tools
        chat |= _tool_choice(body.tool_choice)
    elif (body.tool_choice or {}).get("type") in ("any", "tool"):
        raise RequestError("tool_choice needs tools.", param="tool_choice", code="invalid_value")
    given = (body.output_config or {}).get("format") or body.output_format
    if given is not None:
        if given.get("type") != "json_schema":
            raise RequestError("output_config.format must be of type json_schema.", param="output_config.format", code="invalid_value")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": given.get("schema"), "strict": True}}
    kind = (body.thinking or {}).get("type")
    if kind is not None:
        chat["chat_template_kwargs"] = {"enable_thinking": kind != "disabled", **(chat.get("chat_template_kwargs") or {})}
    return chat, rules


def steady_prefix(system: str) -> tuple[str, str, list[str]]:
    """Return a system prompt without what changes from request to request, the note to put behind the conversation, and the
    names of the rules that did something."""
    rules: list[str] = []
    system, found_line = _BILLING_LINE.subn("", system)
    if found_line:
        rules.append("billing_line")
    found = _BUDGET_NOTE.search(system)
    if found is None:
        return system, "", rules
    return system[: found.start()], found[0].strip(), [*rules, "total_tokens"]


def pin(body: MessagesBody, chat: dict[str, Any]) -> tuple[float, dict[str, Any]] | None:
    """Return the lifetime in seconds and the chat body of the prefix up to the last ``cache_control`` with a ttl; None without one."""
    found: tuple[float, int] | None = None
    num_system = sum(message["role"] == "system" for message in chat["messages"][:1])
    for blocks, end in ((body.tools, num_system), (body.system, num_system)):
        ttl = _ttl(blocks)
        found = (ttl, end) if ttl and end else found
    num_messages = len(chat["messages"])
    later = 0  # chat messages of those behind: a turn may have become several
    for message in reversed(body.messages):
        ttl = _ttl(message.get("content"))
        if ttl:
            found = (ttl, num_messages - later)
            break
        later += len(_messages(message, "messages"))
    if found is None:
        return None
    return found[0], {**chat, "messages": chat["messages"][: found[1]], "continue_final_message": False, "add_generation_prompt": False}


def _ttl(blocks: Any) -> float:
    """The lifetime that the last marked block asks for, 0 for none."""
    marks = [block.get("cache_control") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    ttls = [_TTLS.get(mark["ttl"], 0.0) for mark in marks if isinstance(mark, dict) and isinstance(mark.get("ttl"), str)]
    return ttls[-1] if ttls else 0.0


def _system(system: str | Sequence[dict[str, Any]] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text_block(block, f"system[{i}]") for i, block in enumerate(system)]
    # A billing line is a block of its own where agents send blocks.
    return "\n".join(text for i, text in enumerate(texts) if i or _BILLING_LINE.sub("", text) or len(texts) == 1)


def _messages(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A message as chat messages: results of tools come first, each as a message of its own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"{where}.role must be user or assistant.", param=f"{where}.role", code="invalid_value")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a string or a list of blocks.", param=f"{where}.content", code="invalid_type")
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        place = f"{where}.content[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use" and role == "assistant":
            arguments = orjson.dumps(block.get("input") or {}).decode()
            calls.append({"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}})
        elif kind == "tool_result" and role == "user":
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block, place)})
        elif kind not in _SKIPPED:
            texts.append(_text_block(block, place))
    if role == "assistant":
        own: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        return [own | {"tool_calls": calls} if calls else own]
    return results + ([{"role": role, "content": "\n".join(texts)}] if texts or not results else [])


def _result(block: dict[str, Any], where: str) -> str:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_block(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{where}.content must be a string or a list of blocks.", param=f"{where}.content", code="invalid_type")
    return f"Error: {content or ''}" if block.get("is_error") else content or ""


def _text_block(block: Any, where: str) -> str:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str):
        kind = excerpt(block.get("type")) if isinstance(block, dict) else type(block).__name__
        raise RequestError(f"{where} must be text, which is all this model takes; got {kind}.", param=where, code="invalid_value")
    return text


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.name is required.", param=f"{where}.name", code="missing_parameter")
    function: dict[str, Any] = {"name": name, "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}
    for field in ("description", "strict"):
        if tool.get(field) is not None:
            function[field] = tool[field]
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any] | None) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type")
    fields: dict[str, Any] = {}
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    else:
        raise RequestError(f"tool_choice of type {excerpt(kind)} is unknown.", param="tool_choice.type", code="invalid_value")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields
