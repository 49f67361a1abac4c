"""Reads the text of one answer as it comes: reasoning apart from content, calls apart from both.

Stages in a row, each a reader over a ``Source``: what one takes for content is the text of the next.  The pieces of a whole
text and of any cuts of it are the same but for where they are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from radixrt.text.pieces import Content, Message, Piece
from radixrt.text.source import Read, Source


class Reader(Protocol):
    """A way of writing answers.  Reads a whole answer, to its end."""

    def __call__(self, source: Source, /) -> Read[None]: ...


class AnswerParser:
    """The state of one answer; ``push`` text, the last time with ``end``."""

    def __init__(self, stages: Sequence[tuple[Reader, Source]]) -> None:
        self._stages = [_Stage(reader, source) for reader, source in stages]

    def push(self, text: str, *, end: bool = False) -> list[Piece]:
        """Return what more is known of the answer."""
        pieces: list[Piece] = [Content(text)] if text else []
        for stage in self._stages:
            pieces = stage.push(pieces, end=end)
        return pieces


def parse(stages: Sequence[tuple[Reader, Source]], text: str) -> Message:
    """Read a whole answer."""
    return Message.of(AnswerParser(stages).push(text, end=True))


class _Stage:
    def __init__(self, reader: Reader, source: Source) -> None:
        self._source = source
        self._read = reader(source)
        self._begun = False

    def push(self, pieces: Iterable[Piece], *, end: bool) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                self._resume(piece.text, end=False)
                found += self._source.take_pieces()
            else:
                found.append(piece)
        if end:
            self._resume("", end=True)
            self._source.flush()
            found += self._source.take_pieces()
        return found

    def _resume(self, text: str, *, end: bool) -> None:
        self._source.feed(text, end=end)
        ended = next(self._read, True)
        assert bool(ended) == end, "a reader reads to the end of the text, and no further"
