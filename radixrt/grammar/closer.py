"""A short way to a legal end: what turns a text that runs out of tokens into one that is complete.

A greedy depth-first search: take what is forced, else what closes soonest, and go back where the grammar leaves no way on.
Best-first search finds shorter ends where it ends at all, and too often it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.errors import GrammarError
from radixrt.grammar.vocabulary import Vocabulary

ENDING_STRING = (b'"}', b'"]', b'"')
"""What ends a string."""
ENDING = (b"}}", b"]}", b"}", b"]", b'"', b",", b":")
"""What ends something outside strings, in the order to try it: a quote there begins something, and a comma goes on."""
FILLING = b'0123456789-ntf"{[ETabcdeghijklmopqrsuvwxyz'
"""What starts or goes on with a value, soonest done first."""
LETTERS = b"abcdefghijklm"
IN_STRING = 6
"""Outside strings JSON never allows that many of these letters, and inside one a bracket ends nothing."""
MAX_FORCED = 256
MAX_MIN_TOKENS = 4096


class ClosableState(Protocol):
    """What closing needs of a ``GrammarState``."""

    def accept(self, token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...
    def fill_mask(self, row: np.ndarray) -> None: ...
    def is_accepting(self) -> bool: ...
    def forced_bytes(self, limit: int) -> bytes: ...
    def string_end(self) -> bytes: ...


def close_tokens(state: ClosableState, vocabulary: Vocabulary, max_tokens: int, max_steps: int | None = None) -> list[int] | None:
    """Return at most ``max_tokens`` tokens after which the text may end; None when none were found in ``max_steps`` tries.

    The answer is a function of the state alone.  The state is left as it was.
    """
    if max_tokens <= 0:
        return [] if state.is_accepting() else None
    path: list[int] = []
    steps = 4 * max_tokens + 64 if max_steps is None else max_steps
    ways: list[Iterator[int]] = []
    used: Counter[int] = Counter()
    try:
        while not state.is_accepting():
            if len(path) < max_tokens:
                ways.append(_ways(state, vocabulary, used))
            else:
                used[path.pop()] -= 1
                state.rollback(1)
            while ways:
                token = next(ways[-1], None)
                if token is None:
                    ways.pop()
                    if path and ways:
                        used[path.pop()] -= 1
                        state.rollback(1)
                elif steps <= 0:
                    return None
                else:
                    steps -= 1
                    if state.accept(token):
                        path.append(token)
                        used[token] += 1
                        break
            if not ways:
                return None
        return list(path)
    finally:
        if path:
            state.rollback(len(path))


def first_choice(state: ClosableState, vocabulary: Vocabulary) -> int | None:
    """Return the token that a search for an end tries first; None where none is allowed."""
    return next(_ways(state, vocabulary, Counter()), None)


def min_tokens(state: ClosableState, vocabulary: Vocabulary) -> int:
    """Return the length of the shortest text found; GrammarError when there is none."""
    shortest = close_tokens(state, vocabulary, MAX_MIN_TOKENS, 2 * MAX_MIN_TOKENS)
    if shortest is None:
        raise GrammarError(f"The grammar has no finite answer, or none within {MAX_MIN_TOKENS} tokens.")
    return len(shortest)


def _ways(state: ClosableState, vocabulary: Vocabulary, used: Counter[int]) -> Iterator[int]:
    """Tokens that may come next, those that close first; among the others those used least on the way here."""
    if forced := state.forced_bytes(MAX_FORCED):
        yield from vocabulary.starts(forced)
        return
    if len(end := state.string_end()) > 1:
        yield from vocabulary.starts(end)
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    state.fill_mask(row)
    order = _orders.get(vocabulary)
    if order is None:
        order = _orders[vocabulary] = Order(vocabulary)
    words = row.data

    def is_allowed(token: int) -> int:
        return words[token >> 5] >> (token & 31) & 1

    in_string = sum(map(is_allowed, order.letters)) >= IN_STRING
    ends, fills = (order.quotes, order.others) if in_string else (order.ends, order.fills)
    yield from filter(is_allowed, ends)
    # Most places are left with their first choice, so the others are only looked for when they are asked for.
    yield from (token for token in fills if is_allowed(token) and not used[token])
    yield from sorted(filter(is_allowed, filter(used.__getitem__, fills)), key=used.__getitem__)
    yield from filter(is_allowed, order.blanks)
    if not any(map(is_allowed, order.short)):  # any that fits
        yield from np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist()


class Order:
    """The short tokens of a vocabulary, in the order to try them: outside strings ends before fills, in strings quotes before others."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        def tokens(texts: Iterable[bytes]) -> list[int]:
            return [vocabulary.token_of[text] for text in texts if text in vocabulary.token_of]

        single = [bytes([byte]) for byte in FILLING + bytes(byte for byte in range(0x21, 0x100) if byte not in FILLING)]
        self.letters = tokens(bytes([byte]) for byte in LETTERS)
        self.ends = tokens(ENDING)
        self.quotes = tokens(ENDING_STRING)
        self.fills = tokens(text for text in single if text not in ENDING)
        self.others = tokens(text for text in single if text != b'"')
        self.blanks = tokens((b" ", b"\n", b"\t", b"\r"))
        self.short = [*self.ends, *self.quotes, *self.others, *self.blanks]


_orders: WeakKeyDictionary[Vocabulary, Order] = WeakKeyDictionary()
