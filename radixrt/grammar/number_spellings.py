"""How the engine of schemas spells the numbers that a schema allows: which bytes begin one, and which are one."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

LARGEST = 1 << 53
"""The engine reads bounds of numbers as doubles, which tell whole numbers apart up to here."""
NUMERIC = b"0123456789+-.eE"
"""What numbers are made of."""
_BEGUN = re.compile(rb"-?((0|[1-9][0-9]*)(\.[0-9]*|(\.[0-9]+)?[eE][+-]?[0-9]*)?)?")
_WHOLE = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BEGUN_POSITIVE = re.compile(rb"((0|[1-9][0-9]*)(\.[0-9]*)?)?")
_WHOLE_POSITIVE = re.compile(rb"(0|[1-9][0-9]*)(\.[0-9]+)?")
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class Numbers(NamedTuple):
    """How the engine spells the numbers of a schema: whole ones of a range (None: no end), those that are zero or more, without an
    exponent, or any."""

    kind: str
    low: int | None = None
    high: int | None = None

    def begins(self, text: bytes) -> bool:
        """Whether a number may begin so."""
        match self.kind:
            case "number":
                return _BEGUN.fullmatch(text) is not None
            case "positive":
                return _BEGUN_POSITIVE.fullmatch(text) is not None
        digits = text.removeprefix(b"-")
        limits = self._magnitudes(is_negative=text.startswith(b"-")) if not digits or digits.isdigit() else None
        if limits is None:
            return not text
        least, most = limits
        if not digits:
            return True
        if digits.startswith(b"0"):
            return digits == b"0" and least == 0
        first = last = int(digits)
        while most is None or first <= most:
            if last >= least:
                return True
            first, last = first * 10, last * 10 + 9
        return False

    def is_whole(self, text: bytes) -> bool:
        """Whether it is a number."""
        match self.kind:
            case "number":
                return _WHOLE.fullmatch(text) is not None
            case "positive":
                return _WHOLE_POSITIVE.fullmatch(text) is not None
        digits = text.removeprefix(b"-")
        if not digits.isdigit() or (digits.startswith(b"0") and digits != b"0"):
            return False
        limits = self._magnitudes(is_negative=text.startswith(b"-"))
        return limits is not None and limits[0] <= int(digits) and (limits[1] is None or int(digits) <= limits[1])

    def _magnitudes(self, *, is_negative: bool) -> tuple[int, int | None] | None:
        """The range of the digits behind a sign, or without one; None where there are none.  The engine has ``-0`` in ranges that have
        both signs and both ends, or neither."""
        low, high = self.low, self.high
        if not is_negative:
            return None if high is not None and high < 0 else (max(low or 0, 0), high)
        if low is not None and low >= 0:
            return None
        most = None if low is None else -low
        if high is not None and high < 0:
            return -high, most
        return (0 if (low is None) == (high is None) else 1), most


@lru_cache(4096)
def is_whole(numbers: tuple[Numbers, ...], text: bytes) -> bool:
    """Whether a text is one of some numbers."""
    return any(of.is_whole(text) for of in numbers)


@lru_cache(1024)
def has_choices(numbers: Numbers) -> bool:
    """Whether a number may begin with one byte or another."""
    return sum(numbers.begins(bytes((byte,))) for byte in NUMERIC) > 1


def numbers_of(kind: str, leaf: dict[str, Any]) -> Numbers | None:
    """Return how the numbers of a schema are spelled; None where that is not known."""
    limits: dict[str, Any] = {keyword: leaf[keyword] for keyword in _LIMITS if keyword in leaf}
    if "multipleOf" in leaf or not all(isinstance(limit, int) and abs(limit) < LARGEST for limit in limits.values()):
        return None
    if kind == "number":
        return Numbers("number") if not limits else Numbers("positive") if limits == {"minimum": 0} else None
    low, above, high, below = map(limits.get, _LIMITS)
    lows = [*([] if low is None else [low]), *([] if above is None else [above + 1])]
    highs = [*([] if high is None else [high]), *([] if below is None else [below - 1])]
    return Numbers("integer", max(lows, default=None), min(highs, default=None))
