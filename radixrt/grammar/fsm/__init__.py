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
from radixrt.grammar.fsm.determinize import determinize, minimize, trim
from radixrt.grammar.fsm.grammar import FsmGrammar
from radixrt.grammar.fsm.nfa import build_positions
from radixrt.grammar.fsm.syntax import parse
from radixrt.grammar.fsm.tables import Tables
from radixrt.grammar.fsm.utf8 import to_bytes
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec

__all__ = ["FsmGrammar", "Tables", "build_tables", "compile"]


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
            raise GrammarError(f"choice: expected a list of texts: {error}") from None
        return Tables.build(*build_choice(choices))
    if spec.kind == "regex":
        automaton = minimize(trim(determinize(build_positions(parse(spec.text)))))
        return Tables.build(to_bytes(automaton), automaton.accepting)
    raise GrammarError(f"the fsm backend takes a regex or a choice, and not {spec.kind}")
