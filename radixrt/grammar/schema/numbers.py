"""Numbers as an engine can tell them apart: llguidance reads bounds and values as doubles, and whole bounds on as int64.

Beyond 2^53 a double stands for several whole numbers, and near the ends of int64 the engine's arithmetic overflows.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import ceil, floor, inf, nextafter

from radixrt.grammar.schema.problems import refused
from radixrt.grammar.schema.shapes import Bound
from radixrt.grammar.schema.values import exact

LARGEST = 1 << 53
"""Doubles tell all whole numbers up to here apart."""
FARTHEST = (1 << 63) - 1024
"""The largest double below the end of int64."""
DIGITS = 15
"""A double gives back every decimal number of so many digits."""
MAX_EXPONENT = 18


def is_told(number: float) -> bool:
    """Whether the engine writes a number of a schema as it is given."""
    mantissa, exponent = _decimal(exact(number))
    if abs(exponent) > MAX_EXPONENT:
        return False
    return abs(mantissa) <= (LARGEST if exponent <= 0 else 10**DIGITS)


def told(low: Bound | None, high: Bound | None, *, whole: bool) -> tuple[Bound | None, Bound | None]:
    """Return the bounds that the engine can tell: those given or else, further inside, very near ones; GrammarError without any."""
    found = None if low is None else _told(low, "minimum", whole=whole), None if high is None else _told(high, "maximum", whole=whole)
    least, most = found
    if least is None or most is None:
        return found
    if not whole and most[0] - least[0] < 1:
        # An excluded whole number is let through where the other bound differs from it in decimals only.
        least, most = _beside(least, 1), _beside(most, -1)
    if least[0] > most[0]:
        raise refused("minimum", "", "no number between the bounds can be told from its neighbours")
    return least, most


def _told(bound: Bound, keyword: str, *, whole: bool) -> Bound:
    number, excluded = bound
    low = keyword == "minimum"
    if not whole:
        mantissa, exponent = _decimal(number)
        if abs(mantissa) <= (LARGEST if exponent <= 0 else 10**DIGITS):
            return bound
        rounded = Context(prec=DIGITS, rounding=ROUND_CEILING if low else ROUND_FLOOR)
        return Fraction(rounded.divide(Decimal(number.numerator), Decimal(number.denominator))), False
    first = (floor(number) + 1 if excluded else ceil(number)) if low else (ceil(number) - 1 if excluded else floor(number))
    if abs(first) <= LARGEST:
        return bound
    if (first > FARTHEST) if low else (first < -FARTHEST):
        raise refused(keyword, "", f"{first} is beyond 64 bits")
    nearest = float(max(first, -FARTHEST) if low else min(first, FARTHEST))
    if (nearest < first) if low else (nearest > first):
        nearest = nextafter(nearest, inf if low else -inf)
    return Fraction(int(nearest)), False


def _beside(bound: Bound, sign: int) -> Bound:
    """Return a bound that is not itself a whole number excluded; ``sign``: where what it allows lies."""
    number, excluded = bound
    if not excluded or number.denominator != 1:
        return bound
    return number + sign * Fraction(1, 10 ** max(0, DIGITS - len(str(abs(int(number))).lstrip("0")))), False


def _decimal(number: Fraction) -> tuple[int, int]:
    """Return (mantissa, exponent of ten) of a number that has finitely many decimals, the mantissa without zeros at its end."""
    sign, digits, exponent = Context(prec=400).divide(Decimal(number.numerator), Decimal(number.denominator)).normalize().as_tuple()
    assert isinstance(exponent, int)
    return int("".join(map(str, digits))) * (-1 if sign else 1), exponent
