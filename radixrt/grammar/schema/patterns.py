"""Regular expressions of schemas: ECMA-262's dialect rewritten to that of the engine, and patterns for what a text is not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import jsonschema_rs

from radixrt.grammar.schema.problems import refused

MAX_REPEAT = 1000
MAX_REPEAT_PRODUCT = 100_000
_PIECE = re.compile(
    r"""(?P<class>\[(?:[^\]\\]|\\.)*\])
      | (?P<open>\((?:\?:|\?<[A-Za-z_]\w*>)?(?!\?))
      | (?P<close>\))
      | (?P<escape>\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|[pP]\{[\w=]+\}|.))
      | (?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)
      | (?P<mark>[|^$])
      | (?P<dot>\.)
      | (?P<char>[^\\()\[\]*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_IN_CLASS = re.compile(r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|[pP]\{[\w=]+\}|.)|.", re.DOTALL)
_SETS = {"d": "0-9", "w": "A-Za-z0-9_", "s": r" \t\n\r\f\v\u{a0}\u{feff}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}"}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_LINE_ENDS = r"\n\r\u{2028}\u{2029}"
_SURROGATE = range(0xD800, 0xE000)
_LOW = {f"\\u{{{code:x}}}" for code in range(0x20)}
_UNSPELLED = r"\u{0}"
"""A character that no JSON without ``\\u`` spells.  Of a class with all control characters the engine takes every escape for one of
them, a quote's and a backslash's as well; so no class has this one."""
WITHOUT_UNSPELLED = f"&&[^{_UNSPELLED}]"
"""What leaves it out of a class."""


@lru_cache(maxsize=1024)
def engine_pattern(pattern: str, pointer: str = "") -> str:
    """Return an ECMA-262 pattern in the dialect of Rust's regex.  Raises GrammarError for what that lacks."""
    out: list[str] = []
    products, last, position = [1], 1, 0
    while position < len(pattern):
        match = _PIECE.match(pattern, position)
        if match is None:
            raise refused("pattern", pointer, f"the syntax at {pattern[position : position + 10]!r} is not supported")
        kind, piece = match.lastgroup, match.group()
        if kind == "repeat":
            last *= _times(piece, pointer)
            if last > MAX_REPEAT_PRODUCT:
                raise refused("pattern", pointer, f"nested repeats multiply to more than {MAX_REPEAT_PRODUCT}")
        elif kind == "open":
            products.append(1)
        elif kind == "close" and len(products) == 1:
            raise refused("pattern", pointer, "unexpected )")
        else:
            last = products.pop() if kind == "close" else 1
        products[-1] = max(products[-1], last)
        match kind:
            case "class":
                out.append(_class(piece[1:-1], pointer))
            case "open":
                out.append("(?:")
            case "escape":
                out.append(_escape(piece, pointer))
            case "dot":
                out.append(f"[^{_LINE_ENDS}]")
            case "char":
                out.append(_literal(piece))
            case _:
                out.append(piece)
        position = match.end()
    if len(products) != 1:
        raise refused("pattern", pointer, "a group is not closed")
    return "".join(out)


def _times(repeat: str, pointer: str) -> int:
    times = max(1, *(int(number[:9]) for number in ("1", *re.findall(r"\d+", repeat))))
    if times > MAX_REPEAT:
        raise refused("pattern", pointer, f"a repeat of more than {MAX_REPEAT}")
    return times


def _escape(piece: str, pointer: str) -> str:
    letter = piece[1]
    if letter in "dws":
        return f"[{_SETS[letter]}]"
    if letter in "DWS":
        return f"[^{_SETS[letter.lower()]}]"
    if letter in "pP":
        return piece
    return _literal(_character(piece, pointer))


def _character(piece: str, pointer: str) -> str:
    """The character that an escape stands for."""
    letter = piece[1]
    if letter in _CONTROLS and len(piece) == 2:
        return _CONTROLS[letter]
    if letter == "c" and len(piece) == 3:
        return chr(ord(piece[2]) % 32)
    if letter in "ux" and len(piece) > 2:
        code = int(piece[2:].strip("{}"), 16)
        if code in _SURROGATE or code > 0x10FFFF:
            raise refused("pattern", pointer, f"{piece} is no character")
        return chr(code)
    if letter.isalnum():
        raise refused("pattern", pointer, f"{piece} is not supported")
    return letter


def _class(inside: str, pointer: str) -> str:
    negated = inside.startswith("^")
    out: list[str] = []
    for match in _IN_CLASS.finditer(inside, int(negated)):
        piece = match.group()
        if piece == "-":
            out.append("-" if out and match.end() < len(inside) else r"\-")
        elif len(piece) == 1:
            out.append(_literal(piece))
        elif piece[1] in "dws":
            out.append(_SETS[piece[1]])
        elif piece[1] in "DWS":
            out.append(f"[^{_SETS[piece[1].lower()]}]")
        elif piece[1] in "pP":
            out.append(piece)
        else:
            out.append(_literal("\b" if piece == r"\b" else _character(piece, pointer)))
    if not out:
        if not negated:
            raise refused("pattern", pointer, "an empty class matches nothing")
        return r"[\s\S]"
    if negated:
        return f"[^{''.join(out)}{_UNSPELLED}]"
    return f"[{''.join(out)}{WITHOUT_UNSPELLED if '-' in out and any(piece in _LOW for piece in out) else ''}]"


def _literal(char: str) -> str:
    return char if char.isalnum() or char == "_" else f"\\u{{{ord(char):x}}}"


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Any:
    return jsonschema_rs.validator_for({"type": "string", "pattern": pattern}, offline=True)


def matches(pattern: str, text: str, pointer: str = "") -> bool:
    """Whether an ECMA-262 pattern matches somewhere in a text."""
    try:
        return bool(_matcher(pattern).is_valid(text))
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise refused("pattern", pointer, f"{pattern[:40]!r} is malformed or not supported") from error


def other_than(texts: Iterable[str]) -> str:
    """Return a pattern that matches every text but these."""
    return f"^(?:{_others(sorted(set(texts)))})$"


def _others(texts: list[str]) -> str:
    """What may follow where these texts may not: stop unless one of them does, leave all of them, or go on with some of them."""
    starts: dict[str, list[str]] = {}
    for text in texts:
        if text:
            starts.setdefault(text[0], []).append(text[1:])
    choices = [] if "" in texts else [""]
    choices.append(f"[^{''.join(map(_spelled, starts))}][\\s\\S]*" if starts else "[\\s\\S]+")
    choices += [f"{_spelled(char)}(?:{_others(rests)})" for char, rests in starts.items()]
    return "|".join(choices)


def _spelled(char: str) -> str:
    return char if char.isalnum() or ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
