"""Jump-forward: the text a grammar leaves no choice about, as tokens that the model is likely to agree to.

Forced text is not forced tokens: the same bytes can be cut in many ways, and the cut is the model's to choose.  What comes
from here is therefore a draft, verified like any other; it decides how many steps a text takes and never what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from radixrt.grammar.vocabulary import Vocabulary

UNSTABLE_TOKENS = 4
"""How many of the last tokens of a draft may be part of a longer token that reaches beyond the forced text."""


class ForcingState(Protocol):
    """What drafting needs of a ``GrammarState``."""

    def accept(self, token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...
    def fill_mask(self, row: np.ndarray) -> None: ...
    def forced_bytes(self, limit: int) -> bytes: ...


def draft_tokens(
    state: ForcingState, vocabulary: Vocabulary, recent_tokens: Sequence[int], max_tokens: int, max_bytes: int = 256
) -> list[int]:
    """Return up to ``max_tokens`` tokens of the text that must come next, leaving the state as it was.

    The forced bytes, at most ``max_bytes``, are cut jointly with the last of ``recent_tokens`` (what the state has accepted
    so far).  A token is left out, and so is what follows it, when the grammar refuses it, or when a longer token that
    reaches beyond the forced text is allowed in its place: that one is often what the model would take.
    """
    forced = state.forced_bytes(max_bytes) if max_tokens > 0 else b""
    tokens = _cut(vocabulary, recent_tokens, forced) if forced else []
    kept: list[int] = []
    rest = len(forced)
    try:
        for i, token in enumerate(tokens[:max_tokens]):
            reaches_end = len(tokens) - i <= UNSTABLE_TOKENS
            if (reaches_end and _is_open(state, vocabulary, forced[len(forced) - rest :])) or not state.accept(token):
                break
            kept.append(token)
            rest -= len(vocabulary.bytes_of(token) or b"")
    finally:
        if kept:
            state.rollback(len(kept))
    return kept


def _is_open(state: ForcingState, vocabulary: Vocabulary, text: bytes) -> bool:
    """Whether the state allows a token that starts with all of a text and goes on."""
    longer = vocabulary.extensions(text)
    if not len(longer):
        return False
    row = np.full(vocabulary.num_words, -1, dtype=np.int32)
    state.fill_mask(row)
    return bool(np.any(row[longer >> 5] >> (longer & 31) & 1))


def _cut(vocabulary: Vocabulary, recent_tokens: Sequence[int], forced: bytes) -> list[int]:
    """Tokens of the forced bytes as the end of a longer text: behind one recent token, else two, else none.  Empty when the
    tokenizer puts no boundary there, or the bytes are no text."""
    for num_recent in (1, 2, 0):
        if num_recent > len(recent_tokens):
            continue
        before = [vocabulary.bytes_of(token) for token in recent_tokens[len(recent_tokens) - num_recent :]]
        if None in before:
            continue
        text = b"".join(spelled or b"" for spelled in before) + forced
        if tokens := _tail(vocabulary, text, len(forced)):
            return tokens
    return []


def _tail(vocabulary: Vocabulary, text: bytes, length: int) -> list[int]:
    """The tokens of the last ``length`` bytes of a text; empty unless a token starts there."""
    try:
        tokens = vocabulary.encode(text.decode())
    except UnicodeDecodeError:  # a recent token ends or starts inside a character
        return []
    start, left = len(tokens), length
    while left > 0 and start > 0:
        start -= 1
        left -= len(vocabulary.bytes_of(tokens[start]) or b"")
    # Some tokenizers change a text (a space in front, a normal form): only tokens that spell the bytes are of use.
    return tokens[start:] if left == 0 and vocabulary.spell(tokens[start:]) == text[len(text) - length :] else []
