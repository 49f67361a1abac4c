"""The definition of every op, in numpy: the oracle of the tests, and what runs where nothing was compiled."""

from __future__ import annotations

from typing import Any

import numpy as np


def common_prefix_length(a: Any, a_start: int, b: Any, b_start: int) -> int:
    """Count the leading items that ``a[a_start:]`` and ``b[b_start:]`` share.

    ``a`` and ``b`` are contiguous one-dimensional buffers of int32 (``array.array("i")``, numpy); neither is copied.
    Raises TypeError for another kind of buffer, ValueError for a start outside ``[0, len]``.
    """
    left, right = _tail(a, a_start), _tail(b, b_start)
    shorter = min(len(left), len(right))
    differs = left[:shorter] != right[:shorter]
    first = int(differs.argmax()) if shorter else 0
    return first if shorter and differs[first] else shorter


def _tail(buffer: Any, start: int) -> np.ndarray:
    items = np.asarray(memoryview(buffer))
    if items.dtype != np.int32 or items.ndim != 1 or not items.flags.c_contiguous:
        raise TypeError("[common_prefix_length] expected a contiguous one-dimensional buffer of int32")
    if not 0 <= start <= len(items):
        raise ValueError(f"[common_prefix_length] start {start} is outside [0, {len(items)}]")
    return items[start:]
