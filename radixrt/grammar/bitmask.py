"""Token masks, packed 32 tokens to an int32: bit ``t % 32`` of word ``t // 32`` is set when token t is allowed."""

from __future__ import annotations

import numpy as np


def allow_all(num_rows: int, vocab_size: int) -> np.ndarray:
    """Return masks [num_rows, ceil(V / 32)] int32 that allow every token."""
    return np.full((num_rows, (vocab_size + 31) // 32), -1, dtype=np.int32)


def allow_only(row: np.ndarray, tokens: list[int]) -> None:
    """Make a packed row allow exactly these tokens."""
    words = np.zeros(len(row), dtype=np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << (token % 32))
    row[:] = words.view(np.int32)
