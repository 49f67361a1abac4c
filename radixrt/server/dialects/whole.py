"""Whole answers as the pieces a stream would have brought, so that one builder serves both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from starlette.responses import Response

from radixrt.server import aside
from radixrt.server.chat import ChatTurn
from radixrt.server.choices import CallArguments, CallBegin, Content, Ended, Piece, Reasoning, WholeChoice
from radixrt.server.openai import json_response
from radixrt.types import Usage

# What the cache did for an answer, see ``radixrt.engine.reports``.
Report: TypeAlias = dict[str, Any] | None


class Builder(Protocol):
    """A dialect's answer while it is made."""

    def push(self, pieces: Iterable[Piece | Ended], usage: Usage, report: Report = None) -> Iterator[Any]:
        """Take in what came next; ``usage`` counts everything so far, and ``report`` comes with the end if it was asked for."""

    def object(self) -> dict[str, Any]: ...


def pieces_of(choice: WholeChoice) -> list[Piece | Ended]:
    """Return the pieces of a whole answer, each text in one."""
    pieces: list[Piece | Ended] = []
    if choice.reasoning:
        pieces.append(Reasoning(choice.reasoning))
    if choice.content:
        pieces.append(Content(choice.content))
    for index, call in enumerate(choice.calls):
        pieces += (CallBegin(index, call.id, call.name), CallArguments(index, call.arguments))
    return [*pieces, Ended(choice.finish_reason, choice.finish)]


async def respond(turn: ChatTurn, builder: Builder) -> Response:
    """Wait for the one answer of a turn and return what its builder makes of it; raises the answer's failure."""
    async with turn.outputs as outputs:
        ((found,),) = await outputs.collect()

    def build() -> Response:
        for _ in builder.push(pieces_of(turn.choices[0].collect(found)), found.usage, found.report):
            continue
        return json_response(builder.object())

    return await aside.build(build, aside.num_positions([[found]]))
