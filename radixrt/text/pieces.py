"""What an answer is made of, as its text is read: reasoning, content and tool calls, whatever the model's way of writing them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thinks before it answers."""

    text: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """More of the answer itself."""

    text: str


class CallBegin(msgspec.Struct, frozen=True, gc=False):
    """A call begins; ``index`` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Reasoning | Content | CallBegin | CallArguments


@dataclass(slots=True)
class Call:
    """A whole call; ``arguments`` is JSON text, incomplete where the answer was cut off inside it."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Message:
    """A whole answer, put together from its pieces."""

    content: str
    reasoning: str
    calls: list[Call]

    @classmethod
    def of(cls, pieces: list[Piece]) -> Message:
        content, reasoning = [], []
        calls: list[Call] = []
        for piece in pieces:
            match piece:
                case Content(text):
                    content.append(text)
                case Reasoning(text):
                    reasoning.append(text)
                case CallBegin(_, id, name):
                    calls.append(Call(id, name))
                case CallArguments(index, text):
                    calls[index].arguments += text
        return cls("".join(content), "".join(reasoning), calls)
