"""One turn of a chat in the engine's words: what its tools and its reasoning make of the sampling parameters, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.engine.tools import ToolUse, tool_use
from radixrt.errors import RequestError
from radixrt.limits import DEFAULTS, Limits
from radixrt.text.answer_formats import AnswerFormats
from radixrt.text.answer_parser import AnswerParser
from radixrt.text.pieces import Message, Piece
from radixrt.types import Dormancy, SamplingParams


@dataclass(frozen=True, slots=True)
class Turn:
    """Made by ``of``, once the prompt is known.  ``sampling`` has the constraint of the tools, asleep while the model reasons."""

    sampling: SamplingParams
    use: ToolUse
    _formats: AnswerFormats
    _inside: bool
    _separate_reasoning: bool

    @classmethod
    def of(
        cls, formats: AnswerFormats, use: ToolUse, sampling: SamplingParams, prompt: list[int], *, separate_reasoning: bool = True
    ) -> Turn:
        inside = formats.starts_inside(prompt)
        sleep = formats.dormancy(inside=inside)
        spec = sampling.grammar
        frame = formats.frame()
        if use.forced:
            spec = use.forced_spec(frame)
        elif use.schemas and spec is None and frame.trigger:
            spec = use.call_spec(frame)
            sleep = msgspec.structs.replace(sleep or Dormancy(), trigger=frame.trigger, once=use.max_calls == 1)
        if spec is not None and sleep is not None:
            spec = msgspec.structs.replace(spec, options=msgspec.structs.replace(spec.options, dormancy=sleep))
        changes: dict[str, Any] = {"grammar": spec}
        if formats.reads_control_tokens(tools=bool(use.schemas), reasoning=separate_reasoning):
            changes["skip_special_tokens"] = False
        return cls(msgspec.structs.replace(sampling, **changes), use, formats, inside, separate_reasoning)

    def parser(self) -> AnswerParser | None:
        """A parser for one of its answers; None when all of its text is content."""
        use = self.use
        return self._formats.parser(
            use.schemas, forced=use.forced, max_calls=use.max_calls, inside=self._inside, separate_reasoning=self._separate_reasoning
        )


def read_tools(
    formats: AnswerFormats, tools: Sequence[Mapping[str, Any]] | None, tool_choice: object, parallel_tool_calls: bool | None,
    sampling: SamplingParams, limits: Limits = DEFAULTS,
) -> ToolUse:
    """Read the tools of a chat.  Raises RequestError, also when a call is required of an answer that is constrained otherwise."""
    use = tool_use(tools, tool_choice, parallel_tool_calls, formats.calls, limits)
    if use.forced and sampling.grammar is not None:
        message = "A required tool call and another constraint on the answer exclude each other."
        raise RequestError(message, param="tool_choice", code="invalid_value")
    return use


class MessageReader:
    """Reads the growing texts of a turn's answers, by index, as messages in OpenAI's shape."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parsers: dict[int, AnswerParser | None] = {}
        self._seen: dict[int, int] = {}
        self._pieces: dict[int, list[Piece]] = {}

    def read(self, index: int, text: str, *, end: bool) -> dict[str, Any]:
        """Return the message of an answer whose text so far is ``text``."""
        if index not in self._parsers:
            self._parsers[index], self._seen[index], self._pieces[index] = self._turn.parser(), 0, []
        parser = self._parsers[index]
        if parser is None:
            return {"role": "assistant", "content": text}
        self._pieces[index] += parser.push(text[self._seen[index] :], end=end)
        self._seen[index] = len(text)
        return message_object(Message.of(self._pieces[index]))


def message_object(message: Message) -> dict[str, Any]:
    """A message in OpenAI's shape; its content is null beside calls when there is none."""
    shown: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.calls:
        shown["content"] = message.content or None
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.calls
        ]
    return shown
