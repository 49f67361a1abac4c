"""Harmony, the form of gpt-oss: an answer is messages on channels, of which one is for reasoning and one for calls."""

from __future__ import annotations

import re

from radixrt.text.source import Malformed, Read, Source
from radixrt.text.tools.json_calls import stream_arguments

MAX_HEADER = 512
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.\-]+)")
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")


def harmony(source: Source) -> Read[None]:
    """Read ``<|channel|>CHANNEL to=functions.NAME<|message|>TEXT<|end|><|start|>...``, from after ``<|start|>assistant``."""
    opened = ""
    while True:
        source.mark()
        yield from source.space()
        if not (yield from source.next_char()):
            return
        channel = "final"
        try:
            if opened or (yield from source.take("<|start|>", "<|channel|>")):
                header, _ = yield from source.upto("<|message|>", limit=MAX_HEADER)
                channel = _channel(header)
                name = _RECIPIENT.search(header)
                if name:
                    yield from source.space()
                    if (yield from source.next_char()) not in ("{", ""):
                        raise Malformed
                    source.begin(name[1])
                    yield from stream_arguments(source, "<|call|>")
                    yield from source.space()
                    opened = yield from source.take(*_ENDS)
                    opened = opened if opened == "<|start|>" else ""
                    continue
                source.forget()
            else:
                source.give_up()
        except Malformed:
            channel = "final"
            source.give_up()
        emit = source.reasoning if channel == "analysis" else source.content
        found = yield from source.until(*_ENDS, emit=emit)
        if found is None:
            return
        opened = found if found == "<|start|>" else ""


def _channel(header: str) -> str:
    """The channel that a header names, with or without its marker, which may have been taken."""
    _, marked, name = header.rpartition("<|channel|>")
    words = (name if marked else header).split()
    return words[0] if words else "final"
