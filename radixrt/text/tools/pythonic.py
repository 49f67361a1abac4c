"""Calls written as a list of Python calls, of Llama 4 and others.  Read by hand: nothing of it is ever evaluated."""

from __future__ import annotations

import json
import re
from typing import Any

from radixrt.text.source import Malformed, Read, Source
from radixrt.text.tools.json_calls import MAX_NAME

MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>[\[\](){},:=]))",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^()\[\]{}'\"]*")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "0": "\0", "b": "\b", "f": "\f"}


def pythonic(source: Source) -> Read[None]:
    """``[name(key=value, ...), ...]`` at the beginning of an answer, or after ``<|python_start|>``."""
    source.mark()
    yield from source.space()
    found: str | None = (yield from source.take("<|python_start|>")) or "here"
    while found is not None:
        try:
            yield from source.space()
            yield from source.expect("[")
            while True:
                yield from source.space()
                name = yield from source.run(_NAME, MAX_NAME)
                yield from source.expect("(")
                arguments = _arguments((yield from _parenthesised(source)))
                source.begin(name)
                source.arguments(json.dumps(arguments, ensure_ascii=False))
                source.mark()
                yield from source.space()
                if not (yield from source.take(",")):
                    yield from source.expect("]")
                    break
            yield from source.space()
            yield from source.take("<|python_end|>")
            source.forget()
        except Malformed:
            source.give_up()
        found = yield from source.until("<|python_start|>", mark=True)


def _parenthesised(source: Source) -> Read[str]:
    """Take everything up to the parenthesis that closes what was opened before; returns it without that."""
    parts: list[str] = []
    depth = 1
    quote = ""
    while True:
        if quote:
            parts.append((yield from source.run(_IN_QUOTES[quote])))
            char = yield from source.next_char()
            if char == "\\":
                parts.append((yield from source.take("\\")))
                char = yield from source.next_char()
            elif char == quote:
                quote = ""
        else:
            parts.append((yield from source.run(_PLAIN)))
            char = yield from source.next_char()
            if char in ("'", '"'):
                quote = char
            elif char in ("(", "[", "{"):
                depth += 1
            elif char:
                depth -= 1
        if not char:
            raise Malformed
        yield from source.take(char)
        if not depth:
            return "".join(parts)
        parts.append(char)


_IN_QUOTES = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}


def _arguments(text: str) -> dict[str, Any]:
    """Parse ``key=value, ...``.  Raises Malformed."""
    tokens = _Tokens(text)
    arguments: dict[str, Any] = {}
    while tokens.kind:
        if tokens.kind != "word":
            raise Malformed
        key = tokens.take()
        tokens.expect("=")
        arguments[key] = _value(tokens, 0)
        if tokens.kind:
            tokens.expect(",")
    return arguments


def _value(tokens: _Tokens, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Malformed
    kind, text = tokens.kind, tokens.take()
    if kind == "string":
        value = _string(text)
        while tokens.kind == "string":
            value += _string(tokens.take())
        return value
    if kind == "number":
        return _number(text)
    if kind == "word" and text in _WORDS:
        return _WORDS[text]
    if text in ("[", "("):
        items = []
        end = "]" if text == "[" else ")"
        while tokens.text != end:
            items.append(_value(tokens, depth + 1))
            if tokens.text != end:
                tokens.expect(",")
        tokens.take()
        return items
    if text == "{":
        entries = {}
        while tokens.text != "}":
            key = _value(tokens, depth + 1)
            if not isinstance(key, str):
                raise Malformed
            tokens.expect(":")
            entries[key] = _value(tokens, depth + 1)
            if tokens.text != "}":
                tokens.expect(",")
        tokens.take()
        return entries
    raise Malformed


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        value = float(text) if len(text) < 400 else float("inf")
    if value in (float("inf"), float("-inf")):
        raise Malformed
    return value


def _string(text: str) -> str:
    def unescaped(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, "\\" + code)

    value = re.sub(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)", unescaped, text[1:-1], flags=re.DOTALL)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise Malformed
    return value


class _Tokens:
    """The tokens of a text, one looked at ahead; ``kind`` and ``text`` are '' at the end."""

    def __init__(self, text: str) -> None:
        self._rest = text.rstrip()
        self._at = 0
        self._advance()

    def _advance(self) -> None:
        if self._at == len(self._rest):
            self.kind = self.text = ""
            return
        found = _TOKEN.match(self._rest, self._at)
        if not found:
            raise Malformed
        self._at = found.end()
        assert found.lastgroup is not None
        self.kind, self.text = found.lastgroup, found[found.lastgroup]

    def take(self) -> str:
        text = self.text
        if not self.kind:
            raise Malformed
        self._advance()
        return text

    def expect(self, mark: str) -> None:
        if self.kind != "mark" or self.text != mark:
            raise Malformed
        self._advance()
