"""The answers of Ollama's ``/api/chat`` and ``/api/generate``: one JSON object a line, the last one with counts and times.  Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import orjson

from radixrt.errors import RadixrtError
from radixrt.server.choices import CallArguments, CallBegin, Content, Ended, Piece, Reasoning
from radixrt.server.dialects.whole import Report
from radixrt.server.problems import error_json
from radixrt.server.sse import Framing
from radixrt.types import RequestOutput, Usage

_DONE_REASONS = {"stop": "stop", "length": "length", "tool_calls": "stop"}


def _encode_error(error: RadixrtError) -> bytes:
    return error_json(error, "/api/") + b"\n"


FRAMING = Framing("application/x-ndjson", _encode_error)


class OllamaWriter:
    """Lines of a streamed answer, and with ``whole`` the one object of an answer that is not.

    Args:
        parse: takes an output to pieces.
        chat: whether text goes into ``message``, as ``/api/chat`` has it, or into ``response``.
    """

    def __init__(self, model: str, parse: Callable[[RequestOutput], list[Piece | Ended]], *, chat: bool) -> None:
        self._model = model
        self._parse = parse
        self._chat = chat
        self._started = time.perf_counter_ns()
        self._first = 0
        self._calls: list[dict[str, str]] = []

    def start(self) -> bytes:
        return b""

    def size(self, prompt: int, output: RequestOutput) -> int:
        return 0

    def push(self, prompt: int, output: RequestOutput) -> bytes:
        return b"".join(orjson.dumps(line) + b"\n" for line in self._lines(self._parse(output), output.usage, output.report))

    def end(self) -> bytes:
        return b""

    def whole(self, pieces: Iterable[Piece | Ended], usage: Usage, report: Report = None) -> dict[str, Any]:
        """Return the object of a whole answer."""
        text = thinking = ""
        lines = self._lines(pieces, usage, report)
        for line in lines:
            said = line.get("message", line)
            text += said.get("content" if self._chat else "response", "")
            thinking += said.get("thinking", "")
        last = lines[-1]
        said = last.get("message", last)
        said["content" if self._chat else "response"] = text
        if thinking:
            said["thinking"] = thinking
        calls = [call for line in lines for call in line.get("message", {}).get("tool_calls", ())]
        if calls:
            said["tool_calls"] = calls
        return last

    def _lines(self, pieces: Iterable[Piece | Ended], usage: Usage, report: Report) -> list[dict[str, Any]]:
        self._first = self._first or time.perf_counter_ns()
        lines = []
        for piece in pieces:
            match piece:
                case Content(text):
                    lines.append(self._line({"content": text}, {"response": text}))
                case Reasoning(text):
                    lines.append(self._line({"content": "", "thinking": text}, {"response": "", "thinking": text}))
                case CallBegin(_, id, name):
                    self._calls.append({"id": id, "name": name, "arguments": ""})
                case CallArguments(index, text):
                    self._calls[index]["arguments"] += text
                case Ended(reason, _):
                    if self._calls:
                        lines.append(self._line({"content": "", "tool_calls": [_call(call) for call in self._calls]}, {"response": ""}))
                    lines.append(self._line({"content": ""}, {"response": ""}) | self._end(reason, usage, report))
        return lines

    def _line(self, message: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
        said = {"message": {"role": "assistant", **message}} if self._chat else response
        return {"model": self._model, "created_at": now(), **said, "done": False}

    def _end(self, reason: str, usage: Usage, report: Report) -> dict[str, Any]:
        ended = time.perf_counter_ns()
        return {
            "done": True, "done_reason": _DONE_REASONS.get(reason, reason), "total_duration": ended - self._started, "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens, "prompt_eval_duration": self._first - self._started,
            "eval_count": usage.completion_tokens, "eval_duration": ended - self._first, "cached_count": usage.cached_tokens,
            **({"radixrt": report} if report else {}),
        }


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _call(call: dict[str, str]) -> dict[str, Any]:
    """A call as Ollama's clients read it: arguments as an object; cut off before that, as text."""
    try:
        arguments = orjson.loads(call["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = {"_partial": call["arguments"]}
    return {"id": call["id"], "function": {"name": call["name"], "arguments": arguments}}
