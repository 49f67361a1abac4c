"""Families that write each argument between tags of its own, as bare text."""

from __future__ import annotations

import json

from radixrt.text.source import Malformed, Read, Source
from radixrt.text.tools.json_calls import MAX_HEAD
from radixrt.text.tools.typed import is_text, json_text, parameter_schema


class _Arguments:
    """Writes the arguments of the call that began last, one after the other."""

    def __init__(self, source: Source, name: str) -> None:
        source.begin(name)
        self._source = source
        self._schema = source.tools[name]
        self._names: set[str] = set()

    def read(self, name: str, *ends: str) -> Read[None]:
        """Read the value of an argument, up to the first of the markers."""
        source, schema = self._source, parameter_schema(self._schema, name)
        again = name in self._names
        if not again:
            source.arguments(f"{', ' if self._names else '{'}{json.dumps(name, ensure_ascii=False)}: ")
        self._names.add(name)
        if again:
            yield from source.until(*ends, emit=lambda text: None)
        elif is_text(schema):
            source.arguments('"')
            found = yield from source.until(*ends, emit=lambda text: source.arguments(json.dumps(text, ensure_ascii=False)[1:-1]))
            # Of an answer that was cut off, the string stays open.
            source.arguments('"' if found else "")
        else:
            parts: list[str] = []
            found = yield from source.until(*ends, emit=parts.append)
            text = "".join(parts)
            source.arguments(json_text(text, schema) if found else text)

    def end(self) -> None:
        self._source.arguments("}" if self._names else "{}")
        self._source.mark()


def qwen3_coder(source: Source) -> Read[None]:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``, of Qwen3-Coder."""
    while (found := (yield from source.until("<tool_call>", "<function=", mark=True))) is not None:
        try:
            if found == "<tool_call>":
                yield from source.space()
                yield from source.expect("<function=")
            name, _ = yield from source.upto(">", limit=MAX_HEAD)
            arguments = _Arguments(source, name.strip())
            while True:
                yield from source.space()
                if not (yield from source.take("<parameter=")):
                    break
                key, _ = yield from source.upto(">", limit=MAX_HEAD)
                yield from source.take("\n")
                yield from arguments.read(key.strip(), "\n</parameter>", "</parameter>")
            if source.ended and not (yield from source.next_char()):
                return
            arguments.end()
            yield from source.take("</function>")
            yield from source.space()
            if found == "<tool_call>":
                yield from source.take("</tool_call>")
            source.forget()
        except Malformed:
            source.give_up()


def glm(source: Source) -> Read[None]:
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``, of GLM since 4.5."""
    while (yield from source.until("<tool_call>", mark=True)) is not None:
        try:
            yield from source.space()
            name, found = yield from source.upto("\n", "<arg_key>", "</tool_call>", limit=MAX_HEAD)
            arguments = _Arguments(source, name.strip())
            if found == "\n":
                yield from source.space()
                found = yield from source.take("<arg_key>", "</tool_call>")
            while found == "<arg_key>":
                key, _ = yield from source.upto("</arg_key>", limit=MAX_HEAD)
                yield from source.space()
                yield from source.expect("<arg_value>")
                yield from arguments.read(key.strip(), "</arg_value>")
                yield from source.space()
                found = yield from source.take("<arg_key>", "</tool_call>")
            if not found and source.ended and not (yield from source.next_char()):
                return
            arguments.end()
            source.forget()
        except Malformed:
            source.give_up()
