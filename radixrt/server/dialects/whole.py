"""Whole answers as the pieces a stream would have brought, so that one builder serves both."""

from __future__ import annotations

from radixrt.server.choices import CallArguments, CallBegin, Content, Ended, Piece, Reasoning, WholeChoice


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
