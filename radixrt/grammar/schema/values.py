"""JSON values as JSON Schema compares them: 1 equals 1.0, and true equals neither."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

TYPES = ("null", "boolean", "number", "string", "array", "object")


def type_of(value: Any) -> str:
    """Return the JSON type of a value; an integer is a number."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def key_of(value: Any) -> Any:
    """Return a hashable key, equal for equal values."""
    match value:
        case list():
            return ("array", tuple(map(key_of, value)))
        case dict():
            return ("object", frozenset((name, key_of(item)) for name, item in value.items()))
        case bool() | None | str():
            return (type_of(value), value)
        case _:
            return ("number", exact(value))


def exact(number: float) -> Fraction:
    """Return the number that a JSON text spells: 0.1 is a tenth."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def plain(number: Fraction) -> int | float:
    """Return a number in its shortest spelling."""
    return int(number) if number.denominator == 1 else float(number)


def canonical(value: Any) -> Any:
    """Return an equal value whose whole numbers are ints."""
    match value:
        case list():
            return [canonical(item) for item in value]
        case dict():
            return {name: canonical(item) for name, item in value.items()}
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
