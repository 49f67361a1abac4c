"""Constraints that sleep: free text in reasoning, and before a tool call, and the grammar from where a marker was written.

``Dormant`` wraps the states of a grammar and is one itself: a function of the accepted tokens.  While it sleeps it allows
everything and costs nothing, but for the tokens that would write the marker together with text the grammar does not begin with.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from radixrt.grammar.base import Grammar, GrammarState
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import Dormancy

_SPACE = b" \t\r\n"


class _Phase(enum.Enum):
    BEGIN = enum.auto()  # the first token may open the reasoning
    INSIDE = enum.auto()  # reasoning, until its end marker
    FREE = enum.auto()  # free text, until the trigger
    AWAKE = enum.auto()
    ENDED = enum.auto()


class _Frame(NamedTuple):
    """Where a text is.  ``tail``: the end of the free text, as much as a marker may begin in; ``recent``: its last tokens."""

    phase: _Phase
    tail: bytes = b""
    recent: tuple[int, ...] = ()
    inner: GrammarState | None = None


class Waking:
    """What the states of one request share: the grammar, when it sleeps, and which text may follow a marker in one token.

    ``ignores_end``: free text goes on after an end token, which has no text.
    """

    def __init__(self, grammar: Grammar, dormancy: Dormancy, vocabulary: Vocabulary, *, ignores_end: bool = False) -> None:
        self.grammar = grammar
        self.dormancy = dormancy
        self.vocabulary = vocabulary
        self.ignores_end = ignores_end
        self.until = dormancy.until.encode()
        self.trigger = dormancy.trigger.encode()
        self._feeds: dict[bytes, tuple[int, ...] | None] = {}
        self._inside: dict[bytes, tuple[int, ...]] = {}

    def marker(self, phase: _Phase) -> bytes:
        """The text that ends a phase, empty for none."""
        return self.until if phase is _Phase.INSIDE else self.trigger if phase is _Phase.FREE else b""

    def feed(self, extra: bytes) -> tuple[int, ...] | None:
        """Tokens that spell ``extra`` and that the grammar begins with; None when it does not.

        Which tokens does not matter: the state after them depends on their bytes.
        """
        if extra not in self._feeds:
            self._feeds[extra] = self._found(extra)
        return self._feeds[extra]

    def _found(self, extra: bytes) -> tuple[int, ...] | None:
        tokens: list[int] = []
        at = 0
        state = self.grammar.new_state()
        while at < len(extra):
            for end in range(min(len(extra), at + self.vocabulary.max_token_bytes), at, -1):
                token = self.vocabulary.token_of.get(extra[at:end])
                if token is not None and state.accept(token):
                    break
            else:
                return None
            tokens.append(token)
            at = end
        return tuple(tokens)

    def holding(self, marker: bytes) -> tuple[int, ...]:
        """The tokens that hold a whole marker and something after it."""
        if marker not in self._inside:
            spelled = self.vocabulary.token_of.items()
            self._inside[marker] = tuple(token for text, token in spelled if marker in text and not text.endswith(marker))
        return self._inside[marker]


class Dormant:
    """Implements ``GrammarState``."""

    def __init__(self, waking: Waking) -> None:
        self._waking = waking
        dormancy = waking.dormancy
        if dormancy.inside:
            self._frame = _Frame(_Phase.INSIDE)
        elif dormancy.begin_token >= 0:
            self._frame = _Frame(_Phase.BEGIN, inner=None if dormancy.trigger else waking.grammar.new_state())
        else:
            self._frame = self._outside()
        # Before each token: the frame, and how many tokens it gave to the state of that frame.
        self._history: list[tuple[_Frame, int]] = []

    def accept(self, token: int) -> bool:
        frame = self._frame
        after, given = self._after(frame, token)
        if after is None:
            return False
        self._history.append((frame, given))
        self._frame = after
        return True

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self._frame, given = self._history.pop()
            if given:
                assert self._frame.inner is not None
                self._frame.inner.rollback(given)

    def fill_mask(self, row: np.ndarray) -> None:
        frame, dormancy = self._frame, self._waking.dormancy
        if frame.phase is _Phase.ENDED:
            row[:] = self._waking.vocabulary.end_mask
        elif frame.inner is not None:
            frame.inner.fill_mask(row)
            if frame.phase is _Phase.BEGIN:
                row.view(np.uint32)[dormancy.begin_token >> 5] |= np.uint32(1 << (dormancy.begin_token & 31))
        else:
            if not self.is_accepting():
                row &= ~self._waking.vocabulary.end_mask
            words = row.view(np.uint32)
            for token in self._spoilt(frame):
                words[token >> 5] &= ~np.uint32(1 << (token & 31))

    def draft(self, max_tokens: int) -> Sequence[int]:
        frame = self._frame
        return frame.inner.draft(max_tokens) if frame.phase is _Phase.AWAKE and frame.inner is not None else ()

    def is_finished(self) -> bool:
        frame = self._frame
        return frame.phase is _Phase.ENDED or (frame.phase is _Phase.AWAKE and frame.inner is not None and frame.inner.is_finished())

    def is_accepting(self) -> bool:
        """While it sleeps the text may end only if the grammar need not hold at all."""
        frame = self._frame
        if frame.phase is _Phase.ENDED:
            return True
        return frame.inner.is_accepting() if frame.inner is not None else bool(self._waking.trigger)

    def fork(self) -> Dormant:
        other = Dormant.__new__(Dormant)
        other._waking = self._waking
        forks: dict[int, GrammarState] = {}

        def forked(frame: _Frame) -> _Frame:
            if frame.inner is None:
                return frame
            if id(frame.inner) not in forks:
                forks[id(frame.inner)] = frame.inner.fork()
            return frame._replace(inner=forks[id(frame.inner)])

        other._frame = forked(self._frame)
        other._history = [(forked(frame), given) for frame, given in self._history]
        return other

    def forced_bytes(self, limit: int) -> bytes:
        frame = self._frame
        return frame.inner.forced_bytes(limit) if frame.phase is _Phase.AWAKE and frame.inner is not None else b""

    def close(self, max_tokens: int) -> Sequence[int] | None:
        """As every state; reasoning is ended too, where something must follow it."""
        frame = self._frame
        if frame.inner is not None:
            return frame.inner.close(max_tokens)
        if self.is_accepting():
            return ()
        dormancy = self._waking.dormancy
        marker = dormancy.until_tokens or tuple(self._waking.vocabulary.encode(dormancy.until))
        if len(marker) > max_tokens:
            return None
        after = self.fork()
        if not all(after.accept(token) for token in marker) or after._frame.phase is not _Phase.AWAKE:
            return None
        rest = after.close(max_tokens - len(marker))
        return None if rest is None else (*marker, *rest)

    def _outside(self) -> _Frame:
        """Outside reasoning."""
        if self._waking.trigger:
            return _Frame(_Phase.FREE)
        return _Frame(_Phase.AWAKE, inner=self._waking.grammar.new_state())

    def _after(self, frame: _Frame, token: int) -> tuple[_Frame | None, int]:
        """The frame after a token, None when it is forbidden, and how many tokens the state of ``frame`` was given."""
        waking = self._waking
        if frame.phase is _Phase.ENDED:
            return None, 0
        if frame.phase is _Phase.BEGIN:
            if token == waking.dormancy.begin_token:
                return _Frame(_Phase.INSIDE), 0
            frame = _Frame(_Phase.FREE) if frame.inner is None else frame._replace(phase=_Phase.AWAKE)
        if frame.inner is not None:
            if not frame.inner.accept(token):
                return None, 0
            if waking.trigger and frame.inner.is_finished():
                return _Frame(_Phase.ENDED if waking.dormancy.once else _Phase.FREE), 1
            return frame, 1
        if waking.vocabulary.is_end(token) and token not in waking.dormancy.until_tokens:
            if not waking.trigger:
                return None, 0
            if not waking.ignores_end:
                return _Frame(_Phase.ENDED), 0
        return self._in_free_text(frame, token), 0

    def _in_free_text(self, frame: _Frame, token: int) -> _Frame | None:
        waking = self._waking
        until = waking.dormancy.until_tokens if frame.phase is _Phase.INSIDE else ()
        if until:
            recent = (*frame.recent, token)[-len(until) :]
            return self._outside() if recent == until else frame._replace(recent=recent)
        marker = waking.marker(frame.phase)
        text = frame.tail + (waking.vocabulary.bytes_of(token) or b"")
        found = text.find(marker) if marker else -1
        if found < 0:
            return frame._replace(tail=text[-(len(marker) - 1) :] if len(marker) > 1 else b"")
        extra = text[found + len(marker) :]
        if frame.phase is _Phase.INSIDE:
            extra = extra.lstrip(_SPACE)
            if waking.trigger:
                # A trigger in the same token as the end of the reasoning is let go: no model has such a token.
                return _Frame(_Phase.FREE, tail=extra[-(len(waking.trigger) - 1) :] if len(waking.trigger) > 1 else b"")
        tokens = waking.feed(extra)
        if tokens is None:
            return None
        inner = waking.grammar.new_state()
        for fed in tokens:
            accepted = inner.accept(fed)
            assert accepted, "the same text was accepted before"
        return _Frame(_Phase.AWAKE, inner=inner)

    def _spoilt(self, frame: _Frame) -> list[int]:
        """The tokens that would wake the grammar with text that it does not begin with."""
        if frame.phase is _Phase.BEGIN:
            frame = _Frame(_Phase.FREE)
        marker = self._waking.marker(frame.phase)
        if not marker or (frame.phase is _Phase.INSIDE and self._waking.dormancy.until_tokens):
            return []
        vocabulary = self._waking.vocabulary
        tokens = set(self._waking.holding(marker))
        for length in range(1, min(len(marker) - 1, len(frame.tail)) + 1):
            if frame.tail.endswith(marker[:length]):
                tokens.update(vocabulary.extensions(marker[length:]).tolist())
        return [token for token in tokens if self._in_free_text(frame, token) is None]


def wrap(grammar: Grammar, dormancy: Dormancy, vocabulary: Vocabulary, *, ignores_end: bool = False) -> Dormant:
    """Return a state of a grammar that sleeps."""
    return Dormant(Waking(grammar, dormancy, vocabulary, ignores_end=ignores_end))
