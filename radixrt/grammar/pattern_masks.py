"""Masks inside a JSON string under a pattern, looked up by the state of the pattern's automaton.

A state's table is all grammars' of a vocabulary whose strings are of that kind: only what may follow the string is a grammar's own.
It is made by who compiles the first of them, or, where there are many states, when somebody first comes to one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.grammar.fsm.closing import native_automaton
from radixrt.grammar.string_masks import StringTokens, string_tokens
from radixrt.grammar.string_patterns import Alternative, Body, string_body
from radixrt.grammar.vocabulary import Vocabulary
from radixrt_kernels.ops import ByteAutomaton

MAX_BYTES = 16 << 20
"""How much the automata of strings of a vocabulary may take, with the tables of their states."""
MAX_FILLED = 512
"""For so many states whoever compiles makes tables, of a tenth of a millisecond; others are made when somebody comes there."""
MAX_PARTIAL = 1024
"""For how many beginnings of a character it is kept what may end it."""


class StateMask(NamedTuple):
    """The tokens that a string may go on with: a packed mask, of those that close it all that do so in the right place, whatever
    they have behind the quote.  ``closes``: whether there are any."""

    mask: np.ndarray
    closes: bool


class Ends(NamedTuple):
    """The tokens that end a character of a string, and may go on in it: a packed mask, and how many characters they have at most,
    that one as well."""

    mask: np.ndarray
    most: int


class PatternMasks:
    """The tables of a vocabulary; safe to use from several threads.  It must not keep the vocabulary alive."""

    def __init__(self, vocabulary: Vocabulary, strings: StringTokens) -> None:
        self._inside = strings.inside(None)
        self._known: OrderedDict[Body, dict[int, StateMask]] = OrderedDict()
        self._num_bytes = 0
        self._automata: WeakKeyDictionary[Body, ByteAutomaton] = WeakKeyDictionary()
        self._ends: dict[bytes, Ends | None] = {}
        self._lock = Lock()

    def of(self, body: Body, state: int, vocabulary: Vocabulary) -> StateMask:
        """Return the table of a state; its mask is not to be written to, and ``closes`` says nothing inside a character."""
        with self._lock:
            states = self._known.get(body, {})
            if states:
                self._known.move_to_end(body)
            if (known := states.get(state)) is not None:
                return known
            automaton = self._automata.get(body)
            if automaton is None:
                automaton = self._automata[body] = native_automaton(body.tables, bytes([1]) * body.tables.num_states)
        row = np.zeros(vocabulary.num_words, dtype=np.int32)
        vocabulary.trie.fill_mask(automaton, state, row)
        row.setflags(write=False)
        made = StateMask(row, bool(np.any(row & ~self._inside)))
        with self._lock:
            self._keep(body, state, made)
        return made

    def _keep(self, body: Body, state: int, made: StateMask) -> None:
        states = self._known.get(body)
        if states is None:
            states = self._known[body] = {}
            self._num_bytes += body.num_bytes
        if state not in states:
            states[state] = made
            self._num_bytes += made.mask.nbytes
        while self._num_bytes > MAX_BYTES and self._known:
            oldest, others = self._known.popitem(last=False)
            self._num_bytes -= oldest.num_bytes + sum(other.mask.nbytes for other in others.values())

    def fill(self, bodies: Iterable[Body], vocabulary: Vocabulary) -> None:
        """Make the tables of all states of some automata, one after the other while they are few."""
        left = MAX_FILLED
        for body in bodies:
            left -= body.tables.num_states
            if left < 0:
                return
            if len(self._known.get(body, ())) < body.tables.num_states:
                for state in range(body.tables.num_states):
                    self.of(body, state, vocabulary)

    def ends(self, partial: bytes, vocabulary: Vocabulary) -> Ends | None:
        """Return the tokens that go on in any string behind the first bytes of a character; None where some may close it."""
        if partial not in self._ends:
            if len(self._ends) >= MAX_PARTIAL:
                self._ends.clear()
            self._ends[partial] = self._find_ends(partial, vocabulary)
        return self._ends[partial]

    def _find_ends(self, partial: bytes, vocabulary: Vocabulary) -> Ends | None:
        body = string_body(Alternative())
        assert body is not None
        mask = self.of(body, body.tables.walk(0, partial), vocabulary).mask
        tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        texts = [(partial + (vocabulary.bytes_of(token) or b"")) for token in tokens]
        if partial[0] == ord("\\") or any(b'"' in text for text in texts):
            return None
        return Ends(mask, max((sum(byte & 0xC0 != 0x80 for byte in text) for text in texts), default=0))


def pattern_masks(vocabulary: Vocabulary, escapes: str) -> PatternMasks:
    """Return the tables of a vocabulary, filled while they are used."""
    known = _known.get(vocabulary)
    if known is None:
        known = _known.setdefault(vocabulary, PatternMasks(vocabulary, string_tokens(vocabulary, escapes)))
    return known


_known: WeakKeyDictionary[Vocabulary, PatternMasks] = WeakKeyDictionary()
