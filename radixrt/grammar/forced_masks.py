"""Masks where llguidance knows the bytes that come next.

Left to itself it allows there one token only, the first of the forced text as it would cut that.  The tokens that may come are
those that the forced text starts with, and those that start with all of it and go on as the grammar allows.  The first are a
look-up, and of the second there are few unless the forced text is short.  Few are tried one by one.  Many are the engine's to
find: it looks for longer tokens in place of the last ``CUT_TOKENS`` of the forced text (``chop_tokens`` in its ``toktrie``), and
where that is all of it, and there are any, its mask has all that may come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.grammar.vocabulary import Vocabulary, whole_characters

CUT_TOKENS = 4
FEW = 6
"""So many tokens are tried in less time than a mask takes."""
_BITS = [*(1 << bit for bit in range(31)), -1 << 31]
"""By its place in a word of a packed row, the bit of a token."""


def is_seen_whole(vocabulary: Vocabulary, forced: bytes) -> bool:
    """Whether the engine's mask has all the tokens that start with a forced text and go on.

    It cuts a text by ``cut``, a character that is not complete at its end apart.  What starts inside a character it takes for
    another text, and what no tokens spell for none.
    """
    if forced[0] & 0xC0 == 0x80:
        return False
    if len(forced) <= CUT_TOKENS and all(bytes((byte,)) in vocabulary.token_of for byte in forced):  # however it is cut
        return True
    whole = whole_characters(forced, len(forced))
    tokens, others = cut(vocabulary, whole), cut(vocabulary, forced[len(whole) :])
    return tokens is not None and others is not None and len(tokens) + len(others) <= CUT_TOKENS


def cut(vocabulary: Vocabulary, text: bytes) -> list[int] | None:
    """Cut a text into the longest tokens from its start; None where there are none that spell it."""
    tokens: list[int] = []
    at = 0
    while at < len(text):
        token = next(vocabulary.starts(text[at:]), None)
        if token is None:
            return None
        tokens.append(token)
        at += len(vocabulary.bytes_of(token) or b"")
    return tokens


def allow(row: np.ndarray, tokens: Sequence[int]) -> None:
    """Allow some more tokens in a packed row."""
    if not tokens:
        return
    words = row.data
    for token in tokens:
        words[token >> 5] |= _BITS[token & 31]


def deny(row: np.ndarray, tokens: Sequence[int]) -> None:
    """Take some tokens out of a packed row."""
    words = row.data
    for token in tokens:
        words[token >> 5] &= ~_BITS[token & 31]
