"""Sets of characters as sorted ranges of code points, and the classes of ``re`` asked of ``re`` itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

import numpy as np

Ranges = tuple[tuple[int, int], ...]
"""Sorted ranges of code points, both ends included, that neither overlap nor touch."""

MAX_CODE_POINT = 0x10FFFF
ALL: Ranges = ((0, MAX_CODE_POINT),)
SCALARS: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
"""What a text can hold: all but the halves of surrogate pairs."""
NEWLINE: Ranges = ((10, 10),)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Join ranges in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Return the code points outside a set."""
    rest: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if start < low:
            rest.append((start, low - 1))
        start = high + 1
    return (*rest, (start, MAX_CODE_POINT)) if start <= MAX_CODE_POINT else tuple(rest)


def intersection(ranges: Ranges, other: Ranges) -> Ranges:
    """Return the code points of both sets."""
    both: list[tuple[int, int]] = []
    i = j = 0
    while i < len(ranges) and j < len(other):
        low, high = max(ranges[i][0], other[j][0]), min(ranges[i][1], other[j][1])
        if low <= high:
            both.append((low, high))
        if ranges[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


@cache
def named_class(escape: str, flags: int) -> Ranges:
    r"""Return what ``\d``, ``\w``, ``\s`` or an upper-case one of them matches in a text, Unicode unless ``re.ASCII``."""
    every = np.arange(MAX_CODE_POINT + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    found = re.finditer(f"{escape}+", every, flags & re.ASCII)
    return tuple((match.start(), match.end() - 1) for match in found)


@cache
def _by_case(flags: int) -> tuple[str, Ranges]:
    """The characters for which ignoring case makes a difference, and the code points of all others."""
    blocks = ("".join(map(chr, range(start, start + 256))) for start in range(0, MAX_CODE_POINT, 256))
    changed = "".join(block for block in blocks if not block == block.lower() == block.upper())
    cased = {c for c in changed if not c == c.lower() == c.upper()}
    if flags & re.ASCII:
        cased = {c for c in cased if c.isascii()}
    return "".join(sorted(cased)), complement(union((ord(c), ord(c)) for c in cased))


@lru_cache(maxsize=256)
def ignoring_case(ranges: Ranges, source: str, flags: int) -> Ranges:
    """Return what a character or class, matching ``ranges`` with its case, matches without; ``source`` is its spelling."""
    cased, others = _by_case(flags & re.ASCII)
    matched = (ord(match.group()) for match in re.finditer(source, cased, (flags & re.ASCII) | re.IGNORECASE))
    return union((*intersection(ranges, others), *((code, code) for code in matched)))
