"""The engine for regexes and choices: a compressed automaton over bytes.

    text -> syntax (a tree) -> nfa (positions) -> determinize (over classes of characters) -> utf8 (over bytes) -> Tables
    texts -> choice -> Tables

``build_tables`` needs no vocabulary, so that a process of its own can do it and hand the result over as bytes;
``FsmGrammar`` makes a grammar of tables and a vocabulary.  What a pattern may cost is in ``limits``.
"""

from __future__ import annotations

import msgspec

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.choice import build_choice
from radixrt.grammar.fsm.code_points import named_class
from radixrt.grammar.fsm.determinize import determinize, minimize, trim
from radixrt.grammar.fsm.grammar import FsmGrammar
from radixrt.grammar.fsm.nfa import build_positions
from radixrt.grammar.fsm.syntax import parse
from radixrt.grammar.fsm.tables import Tables
from radixrt.grammar.fsm.utf8 import to_bytes as lower
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec

__all__ = ["FsmGrammar", "Tables", "build_tables", "compile", "from_bytes", "is_cheap", "prepare", "to_bytes"]

CHEAP_CHARACTERS = 16_384
CHEAP_WORK = 3_000
CHEAP_RANGES = 4_000
"""Ranges of characters on all edges together, each of which becomes a few bytes."""


def prepare(vocabulary: Vocabulary) -> None:
    """Make what every compilation needs and only the first one would have to make."""
    vocabulary.trie, vocabulary.lengths_of, vocabulary.end_mask  # noqa: B018
    for escape in (r"\d", r"\D", r"\w", r"\W", r"\s", r"\S"):
        named_class(escape, 0)


def compile(spec: GrammarSpec, vocabulary: Vocabulary) -> FsmGrammar:
    """Return the grammar of a ``regex`` or ``choice``; GrammarError when it is malformed, unsupported or too complex."""
    return FsmGrammar(build_tables(spec), vocabulary)


def build_tables(spec: GrammarSpec) -> Tables:
    """Return the automaton of a ``regex`` (matched as a whole, like ``re.fullmatch``) or of a ``choice`` (a JSON list of texts).

    GrammarError when it is malformed, unsupported or too complex.
    """
    if spec.kind == "choice":
        try:
            choices = msgspec.json.decode(spec.text, type=list[str])
        except msgspec.MsgspecError as error:
            raise GrammarError(f"choice: expected a list of texts: {error}", code="malformed_grammar") from None
        return Tables.build(*build_choice(choices))
    if spec.kind == "regex":
        automaton = minimize(trim(determinize(build_positions(parse(spec.text)))))
        return Tables.build(lower(automaton), automaton.accepting)
    raise GrammarError(f"the fsm backend takes a regex or a choice, and not {spec.kind}")


def is_cheap(spec: GrammarSpec) -> bool:
    """Whether ``compile`` surely takes some milliseconds: a first part of the work is done to see."""
    if spec.kind != "regex" or len(spec.text) > CHEAP_CHARACTERS:
        return len(spec.text) <= CHEAP_CHARACTERS
    try:
        tree = parse(spec.text)
    except GrammarError:
        return True
    try:
        automaton = determinize(build_positions(tree, CHEAP_WORK), CHEAP_WORK)
    except GrammarError:
        return False
    return sum(len(automaton.classes[symbol]) for moves in automaton.moves for symbol in moves) <= CHEAP_RANGES


def to_bytes(grammar: FsmGrammar) -> bytes:
    """Return the tables of a grammar, which hold all of it but the vocabulary."""
    return grammar.tables.to_bytes()


def from_bytes(data: bytes, vocabulary: Vocabulary) -> FsmGrammar:
    """Return the grammar of tables from another process; ValueError when they are none."""
    return FsmGrammar(Tables.from_bytes(data), vocabulary)
