"""How tools, calls and results are shown to a model: by its own template where it knows them, else by text of ours.

Ours is the form of Hermes: the tools in the system message, calls and results as messages that any template can show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """You can call functions. These are the functions, as JSON, one a line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between the tags, once for each call:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>
The results come back to you in <tool_response> tags."""

Messages = list[dict[str, Any]]


def as_plain_messages(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Return a conversation for a template that knows no calls: they and their results become text."""
    shown: Messages = []
    for message in messages:
        if message.get("tool_calls"):
            calls = "\n".join(map(_call_text, message["tool_calls"]))
            content = "\n".join(filter(None, (message.get("content"), calls)))
            shown.append({**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content})
        elif message.get("role") in ("tool", "function"):
            content = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            if shown and shown[-1].get("role") == "user" and shown[-1].get("is_tool_response"):
                shown[-1]["content"] += f"\n{content}"
            else:
                shown.append({"role": "user", "content": content, "is_tool_response": True})
        else:
            shown.append(dict(message))
    return shown


def with_introduction(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Messages:
    """Return a conversation whose system message shows the tools."""
    introduction = _INTRODUCTION.format(tools="\n".join(_json(tool) for tool in tools))
    shown = [dict(message) for message in messages]
    if shown and shown[0].get("role") == "system":
        shown[0]["content"] = "\n\n".join(filter(None, (shown[0].get("content"), introduction)))
        return shown
    return [{"role": "system", "content": introduction}, *shown]


def with_ids(template: str, messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Return a conversation whose calls have the ids that a template insists on.

    Mistral's templates take nine letters and digits, Kimi's read the name of the function from the id.
    """
    if "tool_call_begin|>" in template and "functions." in template:
        return _renamed(messages, lambda name, index, id: f"functions.{name}:{index}")
    if "length != 9" in template or "length == 9" in template:
        return _renamed(messages, lambda name, index, id: hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:9])
    return [dict(message) for message in messages]


def with_argument_texts(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Return a conversation whose calls have their arguments as JSON text, for templates that join it to other text."""
    shown = [dict(message) for message in messages]
    for message in shown:
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _json(call["function"].get("arguments"))}}
                for call in message["tool_calls"]
            ]
    return shown


def _renamed(messages: Sequence[Mapping[str, Any]], rename: Any) -> Messages:
    ids: dict[str, str] = {}
    shown = [dict(message) for message in messages]
    index = 0
    for message in shown:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                old = str(call.get("id") or "")
                ids[old] = rename(call["function"]["name"], index, old)
                calls.append({**call, "id": ids[old]})
                index += 1
            message["tool_calls"] = calls
        elif isinstance(message.get("tool_call_id"), str):
            old = message["tool_call_id"]
            message["tool_call_id"] = ids.get(old, old)
    return shown


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function.get("arguments")
    return f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {_json({} if arguments is None else arguments)}}}\n</tool_call>'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
