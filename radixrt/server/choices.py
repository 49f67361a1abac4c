"""The choices of a chat as pieces that no wire form knows: what the parsers of each dialect's answers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.engine.stream import Answer
from radixrt.text.answer_parser import AnswerParser
from radixrt.text.pieces import Call, CallArguments, CallBegin, Content, Message, Piece, Reasoning
from radixrt.types import Finish, FinishReason, RequestOutput

__all__ = ["Call", "CallArguments", "CallBegin", "Choice", "Content", "Ended", "Piece", "Reasoning", "WholeChoice"]


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over.  ``finish_reason``: OpenAI's, ``tool_calls`` among them."""

    finish_reason: str
    finish: Finish


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """A whole answer.  ``calls``: id, name and arguments as JSON text of each."""

    content: str
    reasoning: str
    calls: list[Call]
    finish_reason: str
    finish: Finish


class Choice:
    """Reads one answer; without a parser all of its text is content.  ``forced``: it is calls and nothing else."""

    def __init__(self, parser: AnswerParser | None = None, *, forced: bool = False) -> None:
        self._parser = parser
        self._forced = forced
        self._num_calls = 0

    def push(self, output: RequestOutput) -> list[Piece | Ended]:
        """Return what an event says; ``Ended`` comes last, once."""
        return self._push(output.text_delta, output.finish)

    def collect(self, answer: Answer) -> WholeChoice:
        """Read a whole answer, with a choice that has not been pushed to."""
        *pieces, ended = self._push(answer.text, answer.finish)
        assert isinstance(ended, Ended)
        message = Message.of([piece for piece in pieces if not isinstance(piece, Ended)])
        return WholeChoice(message.content, message.reasoning, message.calls, ended.finish_reason, ended.finish)

    def _push(self, text: str, finish: Finish | None) -> list[Piece | Ended]:
        pieces: list[Piece | Ended] = []
        if self._parser is not None:
            pieces += self._parser.push(text, end=finish is not None)
            self._num_calls += sum(isinstance(piece, CallBegin) for piece in pieces)
        elif text:
            pieces.append(Content(text))
        if finish is not None:
            # Calls that are complete are so too where there was no room for another.
            called = self._num_calls and (finish.reason is FinishReason.STOP or (self._forced and finish.whole))
            pieces.append(Ended("tool_calls" if called else finish.reason.value, finish))
        return pieces


def plain_choices(count: int) -> Sequence[Choice]:
    """Choices whose text is content."""
    return [Choice() for _ in range(count)]
