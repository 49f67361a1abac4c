"""The answer of ``/v1/messages``: content blocks that grow by parsed pieces, and the events that tell of it.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from radixrt.errors import RadixrtError
from radixrt.server.choices import CallArguments, CallBegin, Content, Ended, Piece, Reasoning
from radixrt.server.dialects.whole import Report
from radixrt.server.problems import error_json
from radixrt.server.sse import Framing
from radixrt.types import RequestOutput, Usage

PATH = "/v1/messages"
PING = {"type": "ping"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _encode(event: dict[str, Any]) -> bytes:
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _encode_error(error: RadixrtError) -> bytes:
    return b"event: error\ndata: " + error_json(error, PATH) + b"\n\n"


FRAMING = Framing("text/event-stream", _encode_error)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts; ``input_tokens`` are those that did not come from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens, "output_tokens": usage.completion_tokens,
    }


class MessageBuilder:
    """One message while it is made: ``push`` pieces, read ``object`` at the end.

    with_thinking: reasoning becomes thinking blocks; otherwise it is left out, as it is when nobody asked for it.
    rules: what was done for a steady prefix, which the usage reports.
    """

    def __init__(self, id: str, model: str, *, with_thinking: bool, rules: Sequence[str] = ()) -> None:
        self._message: dict[str, Any] = {
            "id": id, "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None, "stop_sequence": None,
        }
        self._blocks: list[dict[str, Any]] = self._message["content"]
        self._with_thinking = with_thinking
        self._rules = list(rules)
        self._open: str | None = None
        self._arguments = ""
        self._usage = Usage()
        self._report: dict[str, Any] = {}

    def object(self) -> dict[str, Any]:
        """Return the message as it is now."""
        return self._message | {"usage": self._counts()}

    def _counts(self) -> dict[str, Any]:
        facts = self._report | ({"steady_prefix": self._rules} if self._rules else {})
        return usage_object(self._usage) | ({"radixrt": facts} if facts else {})

    def start(self, usage: Usage) -> Iterator[dict[str, Any]]:
        """The head of a stream; ``usage`` counts the prompt."""
        self._usage = usage
        head = self.object()
        yield {"type": "message_start", "message": {**head, "content": [], "usage": {**head["usage"], "output_tokens": 0}}}

    def push(self, pieces: Iterable[Piece | Ended], usage: Usage, report: Report = None) -> Iterator[dict[str, Any]]:
        """Take in what came next; ``usage`` counts everything so far, and ``report`` comes with the end if it was asked for."""
        self._usage, self._report = usage, report or {}
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._say("text", "text_delta", "text", text)
                case Reasoning(text):
                    if self._with_thinking:
                        yield from self._say("thinking", "thinking_delta", "thinking", text)
                case CallBegin(_, id, name):
                    yield from self._close()
                    yield self._add("tool_use", {"type": "tool_use", "id": id, "name": name, "input": {}})
                case CallArguments(_, text):
                    self._arguments += text
                    yield self._delta({"type": "input_json_delta", "partial_json": text})
                case Ended(reason, finish):
                    yield from self._end(reason, finish.matched)

    def _add(self, kind: str, block: dict[str, Any]) -> dict[str, Any]:
        self._open = kind
        self._blocks.append(block)
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _say(self, kind: str, delta: str, field: str, text: str) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._close()
            block = {"type": kind, field: ""}
            if kind == "thinking":
                block["signature"] = ""
            yield self._add(kind, block)
            if len(self._blocks) == 1:
                yield PING
        self._blocks[-1][field] += text
        yield self._delta({"type": delta, field: text})

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is None:
            return
        if self._open == "tool_use":
            self._blocks[-1]["input"] = _object(self._arguments)
            self._arguments = ""
        self._open = None
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _end(self, reason: str, matched: int | str | None) -> Iterator[dict[str, Any]]:
        if not self._blocks:
            yield from self._say("text", "text_delta", "text", "")
        yield from self._close()
        sequence = matched if reason == "stop" and isinstance(matched, str) else None
        because = _STOP_REASONS.get(reason, "end_turn") if sequence is None else "stop_sequence"
        stop = {"stop_reason": because, "stop_sequence": sequence}
        self._message |= stop
        yield {"type": "message_delta", "delta": stop, "usage": self._counts()}
        yield {"type": "message_stop"}


def _object(arguments: str) -> Any:
    """The input of a call; what was cut off before it was JSON is shown as text."""
    try:
        return orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return {"_partial": arguments}


class MessageWriter:
    """The events of a streamed message.  The head waits for the first output, which tells what came from the cache."""

    def __init__(self, builder: MessageBuilder, parse: Callable[[RequestOutput], list[Piece | Ended]]) -> None:
        self._builder = builder
        self._parse = parse
        self._started = False

    def start(self) -> bytes:
        return b""

    def size(self, prompt: int, output: RequestOutput) -> int:
        return 0

    def push(self, prompt: int, output: RequestOutput) -> bytes:
        events: list[dict[str, Any]] = []
        if not self._started:
            self._started = True
            events += self._builder.start(output.usage)
        events += self._builder.push(self._parse(output), output.usage, output.report)
        return b"".join(map(_encode, events))

    def end(self) -> bytes:
        return b""
