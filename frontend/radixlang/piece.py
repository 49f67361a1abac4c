"""What a state is made of: pieces of text, each of which knows the one before it.

A state is a pointer to its last piece, so that a fork costs nothing and shares all that came before it.  A piece is
settled when its text is known, which for text that somebody has still to write is the end of its ``pending`` future.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from radixlang.errors import Site
from radixlang.feed import Feed
from radixlang.options import Sampling

Future = concurrent.futures.Future
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a backend wrote.

    tokens: the text as tokens, where the backend knows them.  meta: SGLang's meta information.  forced: which
    tokens a grammar left no choice about.  state: what the backend needs to go on from here.
    """

    text: str
    tokens: list[int] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    state: Any = None


class Piece:
    """One stretch of a state.

    kind: "text", "begin" and "end" of a role, "gen", "select" or "join".  role: which is open behind it.  chat: whether
    any was opened so far.  state: what a backend remembers of everything up to here.  shared: several states go on from here.
    """

    __slots__ = (
        "answers", "before", "branches", "chat", "feed", "kind", "name", "pending", "role", "sampling", "shared", "site", "state",
        "text", "turn",
    )  # fmt: skip

    def __init__(self, before: Piece | None, kind: str, text: str = "", *, role: str | None = None, name: str | None = None) -> None:
        self.before = before
        self.kind = kind
        self.text = text
        self.name = name
        self.role = role
        self.chat: bool = kind == "begin" or (before is not None and before.chat)
        self.pending: Future[Any] | None = before.pending if before is not None else None
        self.answers: list[Answer] = []
        self.branches: list[tuple[Piece | None, Piece | None]] = []  # of a join: (first not included, last)
        self.state: Any = None
        self.shared = False
        self.sampling: Sampling | None = None
        self.turn: Turn | None = None if kind == "begin" or before is None or role is None else before.turn
        self.feed: Feed[str] | None = None
        self.site: Site | None = None

    async def settled(self) -> None:
        """Wait until the text up to here is known.  Raises the error that keeps it from being."""
        if self.pending is not None:
            await asyncio.wrap_future(self.pending)


class Turn:
    """A message that is being put together; ``closed`` when no more pieces will be added to it."""

    __slots__ = ("closed", "pieces", "results")

    def __init__(self) -> None:
        self.closed: Future[None] = Future()
        self.pieces: list[Piece] = []
        self.results: Any = None

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def walk(last: Piece | None, first: Piece | None = None) -> Iterator[Piece]:
    """Yield the pieces behind ``first`` up to ``last`` in order, those that were joined in in place of the join."""
    chain = []
    at = last
    while at is not first and at is not None:
        chain.append(at)
        at = at.before
    for piece in reversed(chain):
        if piece.kind == "join":
            for start, end in piece.branches:
                yield from walk(end, start)
        else:
            yield piece


def text_of(last: Piece | None, first: Piece | None = None) -> str:
    """Return the settled text between two pieces; in a chat each message is a paragraph that begins with its role."""
    parts = []
    for piece in walk(last, first):
        if piece.kind == "begin":
            parts.append(f"{piece.role}: ")
        elif piece.kind == "end":
            parts.append("\n")
        else:
            parts.append(piece.text)
    return "".join(parts)


def messages_of(last: Piece | None) -> list[Message]:
    """Return the settled messages up to a piece; the last one is unfinished when a role is open there."""
    messages: list[Message] = []
    parts: list[str] = []
    for piece in walk(last):
        if piece.kind == "begin":
            assert piece.role is not None
            messages.append({"role": piece.role, "content": ""})
            parts = []
        elif messages:
            parts.append(piece.text)
            if piece.kind == "end":
                messages[-1]["content"] = "".join(parts)
                parts = []
    if messages and parts:
        messages[-1]["content"] = "".join(parts)
    return messages
