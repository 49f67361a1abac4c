"""The text of one answer as it comes, for readers that are written as if all of it were there.

A reader is a generator: it asks the ``Source`` for what it wants next and is suspended until that is decided.  What a
request returns depends on the text alone and not on how it was cut, hence neither does what a reader makes of it.  Text
that a reader has taken since ``until`` found a marker can be given back as content for as long as no call has begun, so
that nothing is lost on what turns out not to be a call.  Nothing is read twice: the work is linear in the text.
"""

from __future__ import annotations

import functools
import re
import sys
import uuid
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from radixrt.text.pieces import CallArguments, CallBegin, Content, Piece, Reasoning

T = TypeVar("T")
Read = Generator[None, None, T]
Emit = Callable[[str], None]
Tools = Mapping[str, Mapping[str, Any]]  # the tools that may be called: name to JSON schema of the arguments

MAX_DEPTH = 256
MAX_SCALAR = 1024
_SPACE = re.compile(r"\s*")
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_WHOLE_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})')
_HEX = frozenset("0123456789abcdefABCDEF")


class Malformed(Exception):
    """What was read is no call after all."""


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Source:
    """Text in, pieces out; the reader takes from it and says what the text means.

    tools: what may be called.  max_calls: further calls are content.  trim: white space beside calls is nobody's.
    """

    def __init__(
        self, tools: Tools | None = None, *, max_calls: int | None = None, trim: bool = False, new_id: Callable[[], str] = new_call_id
    ) -> None:
        self.tools = tools or {}
        self.ended = False
        self.num_calls = 0
        self._max_calls = max_calls
        self._new_id = new_id
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._trim = trim
        self._space = ""
        self._after_call = False
        self._pieces: list[Piece] = []

    # What feeds it.

    def feed(self, text: str, *, end: bool) -> None:
        done = self._at if self._mark is None else self._mark
        self._text = self._text[done:] + text
        self._at -= done
        if self._mark is not None:
            self._mark = 0
        self.ended = end

    def take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> None:
        """At the end of the text: what was held back belongs to the content."""
        self.give_up()
        self._put(Content, self._space)
        self._space = ""

    # What a reader says.

    def content(self, text: str) -> None:
        if not self._trim:
            self._put(Content, text)
            return
        if self._after_call:
            text = text.lstrip()
        shown = (self._space + text).rstrip()
        if shown:
            self._after_call = False
            self._put(Content, shown)
        self._space = (self._space + text)[len(shown) :]

    def reasoning(self, text: str) -> None:
        self._put(Reasoning, text)

    @property
    def full(self) -> bool:
        """Whether no further call may begin."""
        return self._max_calls is not None and self.num_calls >= self._max_calls

    def begin(self, name: str) -> None:
        """A call begins; what was read for it is spent.  Raises Malformed when nothing of that name may be called."""
        if self.full or name not in self.tools:
            raise Malformed
        self._mark = None
        self._space = ""
        self._after_call = True
        self._pieces.append(CallBegin(self.num_calls, self._new_id(), name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More arguments of the call that began last."""
        if not text:
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, CallArguments):
            self._pieces[-1] = CallArguments(last.index, last.text + text)
        else:
            self._pieces.append(CallArguments(self.num_calls - 1, text))

    def mark(self) -> None:
        """What is taken from here on can be given back."""
        self._mark = self._at

    def give_up(self) -> None:
        """Make what was taken since the mark content."""
        if self._mark is not None:
            mark, self._mark = self._mark, None
            self.content(self._text[mark : self._at])

    def forget(self) -> None:
        """What was taken since the mark is nobody's."""
        self._mark = None

    def _put(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if not text:
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, kind):
            self._pieces[-1] = kind(last.text + text)
        else:
            self._pieces.append(kind(text))

    # What a reader asks.

    def until(self, *markers: str, emit: Emit | None = None, mark: bool = False) -> Read[str | None]:
        """Pass the text before the first of the markers on, as content if not to ``emit``, and take the marker.

        Returns None at the end of the text.  ``mark``: the marker can be given back.  No marker may be the beginning of
        another, nor lie inside another but at its end.
        """
        emit = emit or self.content
        pattern, starts = _markers(markers)
        while True:
            found = pattern.search(self._text, self._at)
            if found:
                emit(self._text[self._at : found.start()])
                self._at = found.end()
                if mark:
                    self._mark = found.start()
                return found[0]
            stop = len(self._text)
            if not self.ended:
                stop -= _held(self._text, self._at, starts)
            emit(self._text[self._at : stop])
            self._at = stop
            if self.ended:
                return None
            yield

    def rest(self, emit: Emit | None = None) -> Read[None]:
        """Pass all text on, to the end."""
        emit = emit or self.content
        while True:
            emit(self._text[self._at :])
            self._at = len(self._text)
            if self.ended:
                return
            yield

    def take(self, *literals: str) -> Read[str]:
        """Take the first of the literals that the text goes on with; '' when it is none of them."""
        while True:
            waiting = False
            for literal in literals:
                if self._text.startswith(literal, self._at):
                    if waiting:
                        break
                    self._at += len(literal)
                    return literal
                if not self.ended:
                    waiting = waiting or literal.startswith(self._text[self._at : self._at + len(literal)])
            if not waiting:
                return ""
            yield

    def expect(self, *literals: str) -> Read[str]:
        """As ``take``; raises Malformed when it is none of them."""
        taken = yield from self.take(*literals)
        if not taken:
            raise Malformed
        return taken

    def space(self) -> Read[str]:
        """Take white space."""
        return (yield from self.run(_SPACE))

    def run(self, pattern: re.Pattern[str], limit: int | None = None) -> Read[str]:
        """Take the longest run of characters of a class, given as ``[...]*``; raises Malformed after ``limit`` of them."""
        taken = ""
        while True:
            # The end is the same however the text was cut.
            end = len(self._text) if limit is None else self._at + limit - len(taken)
            found = pattern.match(self._text, self._at, end)
            assert found is not None, "a run may be empty"
            self._at = found.end()
            taken += found[0]
            if limit is not None and len(taken) >= limit:
                raise Malformed
            if self._at < len(self._text) or self.ended:
                return taken
            yield

    def upto(self, *markers: str, limit: int) -> Read[tuple[str, str]]:
        """Take the text before the first of the markers, and the marker; raises Malformed when none comes within ``limit``."""
        pattern, _ = _markers(markers)
        while True:
            longest = self._at + limit + max(map(len, markers))
            found = pattern.search(self._text, self._at, longest)
            if found:
                text = self._text[self._at : found.start()]
                self._at = found.end()
                return text, found[0]
            if len(self._text) >= longest or self.ended:
                raise Malformed
            yield

    def next_char(self) -> Read[str]:
        """Return the next character without taking it; '' at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def json_string(self, limit: int) -> Read[str]:
        """Take a JSON string; returns its text as it stands between the quotes."""
        parts: list[str] = []
        if not (yield from self._json_string(parts.append, limit)):
            raise Malformed
        return "".join(parts)[1:-1]

    def json_value(self, emit: Emit) -> Read[bool]:
        """Take one JSON value, giving its text to ``emit`` as it comes; False, before the first character that is wrong.

        Control characters inside strings are escaped, since models write them.
        """
        stack: list[str] = []
        want = "value"
        while True:
            emit((yield from self.space()))
            char = yield from self.next_char()
            if want in ("value", "item") and char and char in "{[":
                self._at += 1
                emit(char)
                stack.append(char)
                if len(stack) > MAX_DEPTH:
                    return False
                want = "key or end" if char == "{" else "item or end"
                continue
            if (want in ("key or end", "more") and stack[-1] == "{" and char == "}") or (
                want in ("item or end", "more") and stack[-1] == "[" and char == "]"
            ):
                self._at += 1
                emit(char)
                stack.pop()
            elif want == "item or end":
                want = "item"
                continue
            elif want == "more" and char == ",":
                self._at += 1
                emit(char)
                want = "key" if stack[-1] == "{" else "item"
                continue
            elif want in ("key", "key or end") and char == '"':
                if not (yield from self._json_string(emit)):
                    return False
                emit((yield from self.space()))
                if not (yield from self.take(":")):
                    return False
                emit(":")
                want = "value"
                continue
            elif want in ("value", "item"):
                if char == '"':
                    if not (yield from self._json_string(emit)):
                        return False
                else:
                    scalar = yield from self._scalar()
                    if not scalar:
                        return False
                    emit(scalar)
            else:
                return False
            if not stack:
                return True
            want = "more"

    def _scalar(self) -> Read[str]:
        """Take a number, true, false or null; '' with nothing taken when it is none."""
        while True:
            found = _SCALAR.match(self._text, self._at)
            assert found is not None
            if found.end() < len(self._text) or self.ended or len(found[0]) > MAX_SCALAR:
                break
            yield
        if len(found[0]) > MAX_SCALAR or not _WHOLE_SCALAR.fullmatch(found[0]):
            return ""
        self._at = found.end()
        return found[0]

    def _json_string(self, emit: Emit, limit: int = sys.maxsize) -> Read[bool]:
        if not (yield from self.take('"')):
            return False
        emit('"')
        while True:
            found = _IN_STRING.match(self._text, self._at, min(len(self._text), self._at + limit))
            assert found is not None
            emit(found[0])
            self._at = found.end()
            limit -= len(found[0])
            if limit <= 0:
                return False
            char = yield from self.next_char()
            if char == '"':
                self._at += 1
                emit('"')
                return True
            if not char:
                return False
            if char == "\\":
                escape = yield from self._escape()
                if not escape:
                    return False
                emit(escape)
            elif char < " ":
                self._at += 1
                emit(f"\\u{ord(char):04x}" if char not in "\n\r\t" else {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char])

    def _escape(self) -> Read[str]:
        while True:
            found = _ESCAPE.match(self._text, self._at)
            if found:
                self._at = found.end()
                return found[0]
            rest = self._text[self._at : self._at + 6]
            open = rest == "\\" or (rest.startswith("\\u") and len(rest) < 6 and set(rest[2:]) <= _HEX)
            if self.ended or not open:
                return ""
            yield


@functools.lru_cache(maxsize=256)
def _markers(markers: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str]]:
    """The pattern of some markers, and their proper beginnings."""
    starts = frozenset(marker[:length] for marker in markers for length in range(1, len(marker)))
    return re.compile("|".join(map(re.escape, markers))), starts


def _held(text: str, at: int, starts: frozenset[str]) -> int:
    """How many characters at the end of a text may be the beginning of a marker."""
    longest = min(max(map(len, starts), default=0), len(text) - at)
    for length in range(longest, 0, -1):
        if text[-length:] in starts:
            return length
    return 0
