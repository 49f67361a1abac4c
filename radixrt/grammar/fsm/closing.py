"""Ends of a text in tokens: the fewest tokens of a given text, and ends found by a search over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.tables import DEAD, Tables
from radixrt.grammar.vocabulary import Vocabulary
from radixrt_kernels.ops import ByteAutomaton

MAX_SEARCHED = 16
"""How many states a search asks where their tokens lead; each takes a walk over the vocabulary."""
MAX_UNSPELLED = 1024
"""How many states may have no way on that is spelled byte by byte."""


def fewest_tokens(text: bytes, vocabulary: Vocabulary) -> list[int] | None:
    """Return the fewest tokens that spell a text, the longest first among equal ones; None when none do."""
    token_of, lengths_of = vocabulary.token_of, vocabulary.lengths_of
    never = len(text) + 1
    fewest = [never] * len(text) + [0]
    size = [0] * len(text)
    for start in range(len(text) - 1, -1, -1):
        for length in lengths_of.get(text[start : start + 2], (1,)):
            end = start + length
            if end <= len(text) and fewest[end] + 1 < fewest[start] and text[start:end] in token_of:
                fewest[start], size[start] = fewest[end] + 1, length
    if fewest[0] == never:
        return None
    tokens, start = [], 0
    while start < len(text):
        tokens.append(token_of[text[start : start + size[start]]])
        start += size[start]
    return tokens


def search_end(tables: Tables, automaton: ByteAutomaton, vocabulary: Vocabulary, start: int, max_tokens: int) -> list[int] | None:
    """Return the fewest tokens from a state to an end, at most ``max_tokens``; None when a short search finds none."""
    if tables.accepting[start]:
        return []
    came_by: dict[int, tuple[int, int]] = {}  # state -> (the state before, the token between)
    layer, num_searched = [start], 0
    for _ in range(max_tokens):
        following: list[int] = []
        for state in layer:
            num_searched += 1
            if num_searched > MAX_SEARCHED:
                return None
            for target, token in vocabulary.trie.reach(automaton, state):
                if target == start or target in came_by:
                    continue
                came_by[target] = state, token
                following.append(target)
                if tables.accepting[target]:
                    return _path(came_by, start, target)
        layer = following
    return None


def _path(came_by: dict[int, tuple[int, int]], start: int, state: int) -> list[int]:
    tokens = []
    while state != start:
        state, token = came_by[state]
        tokens.append(token)
    return tokens[::-1]


def live_states(tables: Tables, vocabulary: Vocabulary) -> bytes:
    """Return for each state, as a byte 0 or 1, whether tokens lead from it to an end.

    Most vocabularies have every byte as a token, and then all states are live.  GrammarError when the start is not, or when
    there are too many states to tell.
    """
    spelled = np.array([bytes([byte]) in vocabulary.token_of for byte in range(256)])
    num_spelled = np.append(0, np.cumsum(spelled))
    low, high = np.frombuffer(tables.low, dtype=np.uint8), np.frombuffer(tables.high, dtype=np.uint8)
    usable = num_spelled[high.astype(np.int64) + 1] > num_spelled[low]
    live = tables.distances(usable) != DEAD
    if unsure := np.flatnonzero(~live).tolist():
        if len(unsure) > MAX_UNSPELLED:
            raise GrammarError("the vocabulary lacks too many bytes that the pattern needs")
        everywhere = native_automaton(tables, bytes([1]) * tables.num_states)
        leads_to = {state: [target for target, _ in vocabulary.trie.reach(everywhere, state)] for state in unsure}
        changed = True
        while changed:
            found = [state for state, targets in leads_to.items() if live[targets].any()]
            changed = bool(found)
            live[found] = True
            for state in found:
                del leads_to[state]
    if not live[0]:
        raise GrammarError("no tokens of this model spell a text that the pattern matches", code="unsatisfiable_grammar")
    return bytes(live.tolist())


def native_automaton(tables: Tables, live: Sequence[int]) -> ByteAutomaton:
    """Return the tables as the op over them takes them."""
    return ByteAutomaton(tables.first, tables.low, tables.high, tables.target, bytes(live))
