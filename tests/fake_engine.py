"""An engine for tests of the compile service: its specs say how compiling them is to go.

``ok NAME`` compiles, ``choose TEXTS`` (a JSON list) to a grammar of these texts, ``error`` is refused, ``malformed`` for good,
``bug`` breaks the engine, ``sleep SECONDS`` takes so long, ``spin`` for ever, ``eat`` needs all memory there is, ``crash`` ends
the process.  ``cheap`` in front: compile in the service's own thread.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from text_grammar import TextGrammar

from radixrt.errors import GrammarError
from radixrt.grammar.base import GrammarState
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.sim.grammar import Choices
from radixrt.types import GrammarSpec

SIZE = 1000
compiled_here: list[str] = []
prepared: list[Vocabulary] = []


@dataclass(frozen=True)
class FakeGrammar:
    text: str
    pid: int
    vocabulary_size: int
    memory_bytes: int = SIZE

    @property
    def min_tokens(self) -> int:
        return 1

    def new_state(self) -> GrammarState:
        return Choices({}, 1).new_state()


def compile(spec: GrammarSpec, vocabulary: Vocabulary) -> FakeGrammar | TextGrammar:
    compiled_here.append(spec.text)
    command, _, argument = spec.text.removeprefix("cheap ").partition(" ")
    if command == "choose":
        return TextGrammar(json.loads(argument), vocabulary)
    if command == "error":
        raise GrammarError("as asked", keyword="type", pointer="/a")
    if command == "malformed":
        raise GrammarError("as asked", code="malformed_grammar")
    if command == "bug":
        raise KeyError("as asked")
    if command == "sleep":
        time.sleep(float(argument))
    while command == "spin":
        continue
    if command == "crash":
        os.abort()
    if command == "eat":
        eaten = []
        while True:
            eaten.append(bytearray(64 << 20))
    return FakeGrammar(spec.text, os.getpid(), vocabulary.size)


def prepare(vocabulary: Vocabulary) -> None:
    prepared.append(vocabulary)


def is_cheap(spec: GrammarSpec) -> bool:
    return spec.text.startswith("cheap")


def to_bytes(grammar: FakeGrammar) -> bytes:
    return f"{grammar.pid} {grammar.vocabulary_size} {grammar.text}".encode()


def from_bytes(data: bytes, vocabulary: Vocabulary) -> FakeGrammar:
    pid, size, text = data.decode().split(" ", 2)
    assert int(size) == vocabulary.size
    return FakeGrammar(text, int(pid), vocabulary.size)
