"""Families that write a call as a JSON object, or as a name with a JSON object of arguments, between markers of their own.

A call begins for the client as soon as its name is known and its arguments have begun.  From then on what the model writes
is that call's; what goes wrong before makes all of it content.
"""

from __future__ import annotations

import json
import re
from typing import Any

from radixrt.text.source import Malformed, Read, Source

MAX_NAME = 256
MAX_HEAD = 1024  # between the marker of a call and its name
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_ARGUMENT_KEYS = ("arguments", "parameters")


def stream_arguments(source: Source, end: str) -> Read[None]:
    """Read the arguments of the call that has begun; whatever follows an error in them, up to ``end``, stays in them."""
    if not (yield from source.json_value(source.arguments)):
        emit = source.arguments
        if end:
            yield from source.until(end, emit=emit)
        else:
            yield from source.rest(emit)


def call_object(source: Source, end: str) -> Read[None]:
    """Read a call ``{"name": ..., "arguments": {...}}``, its keys in any order and others beside them.

    ``end``: the marker after the call, where the arguments end that are no JSON.  Raises Malformed.
    """
    yield from source.expect("{")
    name: str | None = None
    held: str | None = None
    begun = False
    while True:
        yield from source.space()
        if (yield from source.take("}")):
            break
        key = yield from source.json_string(MAX_NAME)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        if key == "name" and name is None:
            name = _unescaped((yield from source.json_string(MAX_NAME)))
        elif key in _ARGUMENT_KEYS and held is None and not begun:
            if name is not None and (yield from source.next_char()) == "{":
                source.begin(name)
                begun = True
                yield from stream_arguments(source, end)
                source.mark()
            else:
                held = yield from _held_arguments(source)
        elif not (yield from source.json_value(lambda text: None)):
            raise Malformed
        yield from source.space()
        if not (yield from source.take(",")):
            # Some models forget the bracket after the arguments'.
            if not (yield from source.take("}")) and not begun:
                raise Malformed
            break
    if not begun:
        if name is None:
            raise Malformed
        source.begin(name)
        source.arguments(held or "{}")
    source.forget()


def _held_arguments(source: Source) -> Read[str]:
    """Read arguments that come before the name, or as a string of JSON, or as null."""
    parts: list[str] = []
    if not (yield from source.json_value(parts.append)):
        raise Malformed
    value = _json("".join(parts))
    if isinstance(value, str):
        parts, value = [value], _json(value) if value.strip() else {}
    if value is None or value == {}:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return "".join(parts)


def _unescaped(text: str) -> str:
    name = _json(f'"{text}"')
    assert isinstance(name, str)
    return name


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None


def hermes(source: Source) -> Read[None]:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, of Hermes, Qwen and many others."""
    while (yield from source.until("<tool_call>", mark=True)) is not None:
        try:
            yield from source.space()
            yield from call_object(source, "</tool_call>")
            source.mark()
            yield from source.space()
            yield from source.take("</tool_call>")
            source.forget()
        except Malformed:
            source.give_up()


def json_list(source: Source) -> Read[None]:
    """``[{"name": ..., "arguments": {...}}, ...]`` and nothing else: how calls are written that are forced."""
    source.mark()
    try:
        yield from source.space()
        yield from _list(source)
    except Malformed:
        source.give_up()
    yield from source.rest()


def _list(source: Source) -> Read[None]:
    yield from source.expect("[")
    while True:
        yield from source.space()
        yield from call_object(source, "")
        source.mark()
        yield from source.space()
        if not (yield from source.take(",")):
            yield from source.take("]")
            source.forget()
            return


def llama3(source: Source) -> Read[None]:
    """``{"name": ..., "parameters": {...}}`` as the whole answer, several with ``;`` between, or after ``<|python_tag|>``."""
    source.mark()
    yield from source.space()
    tagged = True
    if not (yield from source.take("<|python_tag|>")) and (yield from source.next_char()) != "{":
        tagged = False
        source.give_up()
    while True:
        if not tagged and (yield from source.until("<|python_tag|>", mark=True)) is None:
            return
        tagged = False
        try:
            while True:
                yield from source.space()
                yield from call_object(source, ";")
                source.mark()
                yield from source.space()
                if not (yield from source.take(";")):
                    break
        except Malformed:
            pass
        source.give_up()


def mistral(source: Source) -> Read[None]:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or since the eleventh tokenizer ``[TOOL_CALLS]NAME[ARGS]{...}``."""
    while (yield from source.until("[TOOL_CALLS]", mark=True)) is not None:
        try:
            yield from source.space()
            if (yield from source.next_char()) == "[":
                yield from _list(source)
                continue
            name = yield from source.run(_NAME, MAX_NAME)
            if (yield from source.take("[CALL_ID]")):
                yield from source.run(_NAME, MAX_NAME)
            yield from source.take("[ARGS]")
            yield from _named(source, name, "[TOOL_CALLS]")
        except Malformed:
            source.give_up()


def deepseek(source: Source) -> Read[None]:
    """DeepSeek V3: ``function<sep>NAME`` and a fenced block of JSON; since V3.1 ``NAME<sep>`` and the JSON."""
    while (yield from source.until("<｜tool▁calls▁begin｜>", mark=True)) is not None:
        try:
            while True:
                yield from source.space()
                if not (yield from source.take("<｜tool▁call▁begin｜>")):
                    yield from source.expect("<｜tool▁calls▁end｜>")
                    source.forget()
                    break
                name, _ = yield from source.upto("<｜tool▁sep｜>", limit=MAX_HEAD)
                fenced = name.strip() == "function"
                if fenced:
                    name, _ = yield from source.upto("\n", limit=MAX_HEAD)
                    yield from source.space()
                    yield from source.take("```json")
                yield from source.space()
                yield from _named(source, name.strip(), "<｜tool▁call▁end｜>")
                source.mark()
                yield from source.space()
                if fenced:
                    yield from source.take("```")
                    yield from source.space()
                yield from source.take("<｜tool▁call▁end｜>")
                source.mark()
        except Malformed:
            source.give_up()


def kimi_k2(source: Source) -> Read[None]:
    """Kimi K2: a section of calls ``functions.NAME:INDEX<argument begin>{...}``."""
    while (yield from source.until("<|tool_calls_section_begin|>", mark=True)) is not None:
        try:
            while True:
                yield from source.space()
                if not (yield from source.take("<|tool_call_begin|>")):
                    yield from source.expect("<|tool_calls_section_end|>")
                    source.forget()
                    break
                id, _ = yield from source.upto("<|tool_call_argument_begin|>", limit=MAX_HEAD)
                name = re.sub(r":[0-9]+$", "", id.strip()).removeprefix("functions.")
                yield from source.space()
                yield from _named(source, name, "<|tool_call_end|>")
                source.mark()
                yield from source.space()
                yield from source.take("<|tool_call_end|>")
                source.mark()
        except Malformed:
            source.give_up()


def _named(source: Source, name: str, end: str) -> Read[None]:
    """Read the arguments of a call whose name is known."""
    if (yield from source.next_char()) != "{":
        raise Malformed
    source.begin(name)
    yield from stream_arguments(source, end)
