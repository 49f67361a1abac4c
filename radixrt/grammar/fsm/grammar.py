"""An automaton over bytes as the grammar of a vocabulary: masks of its states, and the state of one request."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np

from radixrt.grammar.fsm.closing import fewest_tokens, live_states, native_automaton, search_end
from radixrt.grammar.fsm.tables import DEAD, Tables
from radixrt.grammar.jump_forward import draft_tokens
from radixrt.grammar.vocabulary import Vocabulary

MAX_MASK_BYTES = 8 << 20
"""How much the masks of one grammar may take; the one used longest ago is made again when it is needed."""

_ENDED = -2
"""The state behind an end token."""


class FsmGrammar:
    """Tables and a vocabulary, shared by requests; safe to use from several threads.

    GrammarError when no tokens spell a text of the automaton.
    """

    def __init__(self, tables: Tables, vocabulary: Vocabulary) -> None:
        self.tables = tables
        self.vocabulary = vocabulary
        self.live = live_states(tables, vocabulary)
        self._automaton = native_automaton(tables, self.live)
        self._masks: OrderedDict[int, np.ndarray] = OrderedDict()
        self._max_masks = max(MAX_MASK_BYTES // max(4 * vocabulary.num_words, 1), 1)
        self._lock = Lock()
        self.min_tokens = self._fewest()

    def new_state(self) -> FsmState:
        """Return the state before any token."""
        return FsmState(self)

    @property
    def memory_bytes(self) -> int:
        """The most that tables and masks may come to take."""
        return 2 * self.tables.memory_bytes + 4 * self.vocabulary.num_words * min(self._max_masks, self.tables.num_states)

    def mask(self, state: int) -> np.ndarray:
        """Return the packed mask of a state, made at the first visit; not to be written to."""
        with self._lock:
            if (row := self._masks.get(state)) is not None:
                self._masks.move_to_end(state)
                return row
        row = np.empty(self.vocabulary.num_words, dtype=np.int32)
        self.vocabulary.trie.fill_mask(self._automaton, state, row)
        if self.tables.accepting[state]:
            row |= self.vocabulary.end_mask
        row.setflags(write=False)
        with self._lock:
            self._masks[state] = row
            if len(self._masks) > self._max_masks:
                self._masks.popitem(last=False)
        return row

    def close(self, state: int, max_tokens: int) -> list[int] | None:
        """Return at most ``max_tokens`` tokens from a state to an end.

        They spell a text of the fewest bytes, unless that takes too many tokens and a short search finds fewer.
        """
        if self.tables.distance[state] <= max_tokens * self.vocabulary.max_token_bytes:
            tokens = fewest_tokens(self.tables.shortest_end(state), self.vocabulary)
            if tokens is not None and len(tokens) <= max_tokens:
                return tokens
        return search_end(self.tables, self._automaton, self.vocabulary, state, max_tokens)

    def _fewest(self) -> int | None:
        """The fewest tokens of a text, as far as a short search can tell."""
        tokens = self.close(0, self.tables.num_states)
        if tokens is None:
            return None
        fewer = search_end(self.tables, self._automaton, self.vocabulary, 0, len(tokens) - 1)
        return len(tokens if fewer is None else fewer)


class FsmState:
    """Implements ``GrammarState``: the states behind the tokens of one request."""

    def __init__(self, grammar: FsmGrammar) -> None:
        self._grammar = grammar
        self._tokens: list[int] = []
        self._states = [0]

    def accept(self, token: int) -> bool:
        vocabulary, tables = self._grammar.vocabulary, self._grammar.tables
        state = self._states[-1]
        if vocabulary.is_end(token):
            if not self.is_accepting():
                return False
            state = _ENDED
        else:
            spelled = vocabulary.bytes_of(token)
            if spelled is None or state == _ENDED:
                return False
            state = tables.walk(state, spelled)
            if state == DEAD or not self._grammar.live[state]:
                return False
        self._states.append(state)
        self._tokens.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self._tokens)
        keep = len(self._tokens) - num_tokens
        del self._tokens[keep:], self._states[keep + 1 :]

    def fill_mask(self, row: np.ndarray) -> None:
        state = self._states[-1]
        row[:] = self._grammar.vocabulary.end_mask if state == _ENDED else self._grammar.mask(state)

    def draft(self, max_tokens: int) -> list[int]:
        return draft_tokens(self, self._grammar.vocabulary, self._tokens[-2:], max_tokens)

    def is_finished(self) -> bool:
        state = self._states[-1]
        return state == _ENDED or (self.is_accepting() and self._grammar.tables.is_final(state))

    def is_accepting(self) -> bool:
        state = self._states[-1]
        return state == _ENDED or bool(self._grammar.tables.accepting[state])

    def fork(self) -> FsmState:
        twin = FsmState(self._grammar)
        twin._tokens, twin._states = self._tokens.copy(), self._states.copy()
        return twin

    def forced_bytes(self, limit: int) -> bytes:
        state = self._states[-1]
        return b"" if state == _ENDED else self._grammar.tables.forced(state, limit)

    def close(self, max_tokens: int) -> list[int] | None:
        state = self._states[-1]
        return [] if state == _ENDED else self._grammar.close(state, max_tokens)
