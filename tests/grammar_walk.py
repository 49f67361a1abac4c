"""Texts through compiled grammars, by mask and acceptance, over a small vocabulary."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from radixrt.grammar.vocabulary import Vocabulary

PIECES = (b'"}', b'": ', b'", "', b"true", b"null", b"  ", "é".encode(), b"12")
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), *PIECES, None, None], (264, 265), lambda text: list(text.encode()), 301)
"""Every byte, some longer tokens, two end tokens and padding."""


def pieces(letters: Sequence[str], seed: int) -> Vocabulary:
    """Every byte, texts put together from letters at random, and parts of characters."""
    rng = random.Random(seed)
    found = {"".join(rng.choices(letters, k=rng.randrange(1, 6))).encode() for _ in range(600)}
    found |= {piece[rng.randrange(2) :][: rng.randrange(1, 6)] for piece in sorted(found)}
    texts = sorted({*(bytes((byte,)) for byte in range(256)), *found} - {b""})
    return Vocabulary([*texts, None], (len(texts),), lambda text: list(text.encode()))


def allowed(state: Any, vocabulary: Vocabulary = BYTES) -> set[int]:
    """The tokens that a state's mask allows."""
    row = np.full(vocabulary.num_words, -1, dtype=np.int32)
    state.fill_mask(row)
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def accepts(grammar: Any, text: str, vocabulary: Vocabulary = BYTES) -> bool:
    """Whether a grammar lets a text through, token by token, and end."""
    state = grammar.new_state()
    row = np.full(vocabulary.num_words, -1, dtype=np.int32)
    for token in vocabulary.encode(text):
        row[:] = -1
        state.fill_mask(row)
        if not row[token >> 5] >> (token & 31) & 1:
            return False
        assert state.accept(token)
    return bool(state.is_accepting())
