"""The answer of ``/v1/responses``: output items that grow by parsed pieces, and the events that tell of it.  Pure.

A whole answer is the same builder fed at once, so that both forms say the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from radixrt.errors import RadixrtError
from radixrt.server.choices import CallArguments, CallBegin, Content, Ended, Piece, Reasoning
from radixrt.server.dialects.responses_input import ResponsesBody
from radixrt.server.dialects.whole import Report
from radixrt.server.problems import error_json
from radixrt.server.service import new_id
from radixrt.server.sse import Framing
from radixrt.types import RequestOutput, Usage

Event = tuple[str, dict[str, Any]]


class ResponseBuilder:
    """One response while it is made: ``push`` pieces, read ``object`` at any time.

    ``text_format`` is what is echoed as ``text.format``.
    """

    def __init__(self, id: str, body: ResponsesBody, model: str, created: int) -> None:
        self.output: list[dict[str, Any]] = []
        self._usage: Usage | None = None
        self._report: Report = None
        self._open: str | None = None
        self._object: dict[str, Any] = {
            "id": id, "object": "response", "created_at": created, "status": "in_progress", "background": False, "error": None,
            "incomplete_details": None, "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {}, "model": model, "output": self.output,
            "parallel_tool_calls": body.parallel_tool_calls is not False, "previous_response_id": body.previous_response_id,
            "reasoning": body.reasoning or {"effort": None, "summary": None}, "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature, "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto", "tools": body.tools or [], "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled", "usage": None, "user": body.user,
        }

    @property
    def id(self) -> str:
        id: str = self._object["id"]
        return id

    def object(self) -> dict[str, Any]:
        """Return the response as it is now."""
        usage = None if self._usage is None else usage_object(self._usage) | ({"radixrt": self._report} if self._report else {})
        return self._object | {"usage": usage}

    def start(self) -> Iterator[Event]:
        yield "response.created", {"response": self.object()}
        yield "response.in_progress", {"response": self.object()}

    def push(self, pieces: Iterable[Piece | Ended], usage: Usage, report: Report = None) -> Iterator[Event]:
        """Take in what came next; ``usage`` counts everything so far, and ``report`` comes with the end if it was asked for."""
        self._usage, self._report = usage, report
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._say("message", text)
                case Reasoning(text):
                    yield from self._say("reasoning", text)
                case CallBegin(_, id, name):
                    yield from self._begin_call(id, name)
                case CallArguments(_, text):
                    self.output[-1]["arguments"] += text
                    yield "response.function_call_arguments.delta", {**self._place(), "delta": text}
                case Ended(reason, _):
                    yield from self._end(reason)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _add(self, kind: str, item: dict[str, Any]) -> Event:
        self._open = kind
        self.output.append(item)
        shown = {**item, "content": []} if "content" in item else dict(item)
        return "response.output_item.added", {"output_index": len(self.output) - 1, "item": shown}

    def _say(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._close()
            if kind == "message":
                part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                item = {"id": new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": [part]}
            else:
                part = {"type": "reasoning_text", "text": ""}
                item = {"id": new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": [part]}
            yield self._add(kind, item)
            yield "response.content_part.added", {**self._place(), "content_index": 0, "part": dict(part)}
        self.output[-1]["content"][0]["text"] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield _TEXT[kind] + ".delta", {**self._place(), "content_index": 0, "delta": text, **more}

    def _begin_call(self, id: str, name: str) -> Iterator[Event]:
        yield from self._close()
        item = {"id": new_id("fc"), "type": "function_call", "status": "in_progress", "call_id": id, "name": name, "arguments": ""}
        yield self._add("function_call", item)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        """End the open item."""
        kind, self._open = self._open, None
        if kind is None:
            return
        item = self.output[-1]
        item["status"] = status
        if kind == "function_call":
            yield "response.function_call_arguments.done", {**self._place(), "name": item["name"], "arguments": item["arguments"]}
        else:
            part = item["content"][0]
            more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            yield _TEXT[kind] + ".done", {**self._place(), "content_index": 0, "text": part["text"], **more}
            yield "response.content_part.done", {**self._place(), "content_index": 0, "part": part}
        yield "response.output_item.done", {"output_index": len(self.output) - 1, "item": item}

    def _end(self, reason: str) -> Iterator[Event]:
        if not self.output:
            # Clients look for a message even where nothing was said.
            yield from self._say("message", "")
        incomplete = reason == "length"
        status = "incomplete" if incomplete else "completed"
        yield from self._close(status)
        self._object |= {"status": status, "completed_at": None if incomplete else int(time.time())}
        if incomplete:
            self._object["incomplete_details"] = {"reason": "max_output_tokens"}
        yield f"response.{status}", {"response": self.object()}


_TEXT = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponsesWriter:
    """The events of a streamed response, numbered.  ``parse`` reads an output; ``done`` is called when the response is complete."""

    def __init__(self, builder: ResponseBuilder, parse: Callable[[RequestOutput], list[Piece | Ended]], done: Callable[[], None]) -> None:
        self._builder = builder
        self._parse = parse
        self._done = done
        self._sequence = 0

    def start(self) -> bytes:
        return self._encode(self._builder.start())

    def size(self, prompt: int, output: RequestOutput) -> int:
        return 0

    def push(self, prompt: int, output: RequestOutput) -> bytes:
        events = self._encode(self._builder.push(self._parse(output), output.usage, output.report))
        if output.finish is not None:
            self._done()
        return events

    def end(self) -> bytes:
        return b""

    def _encode(self, events: Iterable[Event]) -> bytes:
        parts = []
        for kind, fields in events:
            parts.append(b"event: " + kind.encode() + b"\ndata: ")
            parts.append(orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields}) + b"\n\n")
            self._sequence += 1
        return b"".join(parts)


def _encode_error(error: RadixrtError) -> bytes:
    return b"event: error\ndata: " + error_json(error) + b"\n\n"


FRAMING = Framing("text/event-stream", _encode_error)


def history_messages(output: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of a response as chat messages, for the response that continues it."""
    messages: list[dict[str, Any]] = []
    for item in output:
        if item["type"] == "message":
            messages.append({"role": "assistant", "content": item["content"][0]["text"]})
        elif item["type"] == "function_call":
            if not messages:
                messages.append({"role": "assistant", "content": ""})
            call = {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages
