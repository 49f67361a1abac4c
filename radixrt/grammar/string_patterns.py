"""Strings under a pattern as automata over the bytes that JSON spells them with, up to the quote that closes them.

A pattern is read as the engine of schemas reads it: it matches anywhere unless it says where, and each character has one spelling,
or none where that would take ``\\u``.  What cannot be read so surely, or takes too much work, has no automaton.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.code_points import Ranges, complement, intersection, union
from radixrt.grammar.fsm.determinize import CharacterAutomaton, determinize, minimize, trim
from radixrt.grammar.fsm.limits import Budget
from radixrt.grammar.fsm.nfa import build_positions
from radixrt.grammar.fsm.syntax import parse
from radixrt.grammar.fsm.tables import DEAD, Edges, Tables
from radixrt.grammar.fsm.utf8 import to_bytes
from radixrt.grammar.schema.patterns import WITHOUT_UNSPELLED

MAX_WORK = 20_000
"""Steps of subset construction for one pattern: some 10 ms."""
MAX_MOVES = 10_000
"""Moves of an automaton that counts characters besides."""
MAX_MADE = 8
"""So many automata are made for one grammar, which compiles beside the step loop."""
MAX_REFUSED = 512
"""For how many strings it is kept that they have no automaton."""
MOVE_BYTES = 96
"""What a state or a move takes, its lists included."""
MAX_FORCED = 64
_ANY = r"[\s\S]"
_ANYTHING = _ANY + "*"
_TOKEN = re.compile(r"\\u\{([0-9a-f]+)\}|\\.|\[\^?|.", re.DOTALL)
_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", ord('"'): '"', ord("\\"): "\\"}
_ESCAPED: Ranges = union((code, code) for code in _ESCAPES)
_PLAIN: Ranges = complement(((0, 0x1F), *((code, code) for code in sorted(_ESCAPES) if code > 0x1F), (0x7F, 0x7F)))
"""Characters that are spelled as they are."""
_SPELLED = union((*_ESCAPED, *_PLAIN))


class Body:
    """What may be inside one kind of string: ``tables`` that accept behind the quote that closes it, and then whatever follows.

    State 0 is behind the opening quote.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.num_bytes = MOVE_BYTES * (tables.num_states + len(tables.target))
        self._behind = int(np.flatnonzero(tables.accepting)[0])

    def begins(self, text: bytes) -> bool:
        """Whether a string may begin so behind its opening quote, and go on with whatever the text has behind the closing one."""
        return self.tables.walk(0, text) != DEAD

    def forced(self, state: int) -> tuple[bytes, bool]:
        """Return what must come next, at most ``MAX_FORCED`` bytes, and whether the string does not end with it."""
        text = self.tables.forced(state, MAX_FORCED)
        return text, self.tables.walk(state, text) != self._behind


class Alternative(NamedTuple):
    """Strings that match a pattern in the engine's dialect and have so many characters, or some that are listed."""

    pattern: str = ""
    fewest: int = 0
    most: int | None = None
    texts: tuple[str, ...] = ()


class Bodies:
    """The automata of the strings of one grammar, which keeps them; grammars have in common those that are alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[Alternative, ...], Body | None] = {}
        self._left = MAX_MADE

    def of(self, *alternatives: Alternative) -> Body | None:
        """Return the automaton of the strings that are one of some alternatives; None where it is not known."""
        if alternatives not in self._known:
            known = _bodies.get(alternatives)
            if known is None and self._left > 0:
                self._left -= 1
                known = string_body(*alternatives)
            self._known[alternatives] = known
        return self._known[alternatives]

    @property
    def found(self) -> list[Body]:
        """Those that are known so far."""
        return [body for body in self._known.values() if body is not None]

    @property
    def num_bytes(self) -> int:
        """What they take, those as well that other grammars have too."""
        return sum(body.num_bytes for body in self.found)


def string_body(*alternatives: Alternative) -> Body | None:
    """Return the automaton of the strings that are one of some alternatives; None where it is not known."""
    body = _bodies.get(alternatives)
    if body is None and alternatives not in _refused:
        body = _make(alternatives)
        if body is not None:
            _bodies[alternatives] = body
        else:
            if len(_refused) >= MAX_REFUSED:
                _refused.clear()
            _refused.add(alternatives)
    return body


def _make(alternatives: tuple[Alternative, ...]) -> Body | None:
    texts = [_text(one, is_alone=len(alternatives) == 1) for one in alternatives]
    if None in texts:
        return None
    try:
        tree = parse("|".join(filter(None, texts)))
        automaton = minimize(trim(_spelled(determinize(build_positions(tree, MAX_WORK), MAX_WORK))))
        if len(alternatives) == 1 and (alternatives[0].fewest or alternatives[0].most is not None):
            automaton = minimize(trim(_counted(automaton, alternatives[0].fewest, alternatives[0].most)))
        return Body(_quoted(automaton))
    except GrammarError:
        return None


def _text(one: Alternative, *, is_alone: bool) -> str | None:
    """A regex of ``re`` that matches the whole of a string of an alternative, but for the length of one that is alone."""
    if one.texts:
        if not all(_holds(_SPELLED, ord(char)) for text in one.texts for char in text):
            return None
        return "|".join("".join(f"\\U{ord(char):08x}" for char in text) for text in one.texts)
    if is_alone or not (one.fewest or one.most is not None):
        return _whole(one.pattern)
    return None if one.pattern else f"{_ANY}{{{one.fewest},{'' if one.most is None else one.most}}}"


def _whole(pattern: str) -> str | None:
    """A pattern that matches anywhere, as one of ``re`` that matches a whole text; None where anchors or sets are too clever."""
    branches: list[list[str]] = [[]]
    depth, is_class = 0, False
    for match in _TOKEN.finditer(pattern.replace(WITHOUT_UNSPELLED, "")):
        token = match.group() if match[1] is None else f"\\U{int(match[1], 16):08x}"
        if is_class:
            if token[0] in "[&~" or token == branches[-1][-1] == "-":
                return None
            is_class = token != "]"
        elif token == "|" and depth == 0:
            branches.append([])
            continue
        else:
            is_class = token[0] == "["
            depth += {"(": 1, ")": -1}.get(token, 0)
        branches[-1].append(token)
    wholes = [_matching_whole(branch) for branch in branches]
    return None if None in wholes else "|".join(filter(None, wholes))


def _matching_whole(branch: list[str]) -> str | None:
    """The same for one alternative, given as tokens."""
    starts, ends = branch[:1] == ["^"], branch[-1:] == ["$"]
    inside = branch[starts : len(branch) - ends]
    if "^" in inside or "$" in inside:
        return None
    return f"(?:{'' if starts else _ANYTHING}(?:{''.join(inside)}){'' if ends else _ANYTHING})"


def _spelled(automaton: CharacterAutomaton) -> CharacterAutomaton:
    """Take the characters away that have no spelling."""
    classes = [intersection(ranges, _SPELLED) for ranges in automaton.classes]
    moves = [{symbol: target for symbol, target in row.items() if classes[symbol]} for row in automaton.moves]
    return CharacterAutomaton(classes, moves, automaton.accepting)


def _counted(automaton: CharacterAutomaton, fewest: int, most: int | None) -> CharacterAutomaton:
    """The texts of an automaton that have so many characters."""
    budget = Budget(MAX_MOVES, "its characters have to be counted")
    enough = fewest if most is None else most
    numbers = {(0, 0): 0}
    moves: list[dict[int, int]] = []
    accepting: list[bool] = []
    for state, length in (queue := [(0, 0)]):
        row: dict[int, int] = {}
        if most is None or length < most:
            budget.spend(len(automaton.moves[state]))
            for symbol, target in automaton.moves[state].items():
                after = target, min(length + 1, enough)
                if after not in numbers:
                    numbers[after] = len(numbers)
                    queue.append(after)
                row[symbol] = numbers[after]
        moves.append(row)
        accepting.append(automaton.accepting[state] and length >= fewest)
    return CharacterAutomaton(automaton.classes, moves, accepting)


def _quoted(automaton: CharacterAutomaton) -> Tables:
    """The automaton over bytes, closed by a quote."""
    escapes = [[ord(letter) for code, letter in _ESCAPES.items() if _holds(ranges, code)] for ranges in automaton.classes]
    plain = CharacterAutomaton([intersection(ranges, _PLAIN) for ranges in automaton.classes], automaton.moves, automaton.accepting)
    states: list[Edges] = to_bytes(plain)
    behind = len(states)
    states.append(((0, 0xFF, behind),))
    known: dict[Edges, int] = {}
    for state, row in enumerate(automaton.moves):
        edges = [*states[state]]
        if escaped := tuple(sorted((letter, letter, target) for symbol, target in row.items() for letter in escapes[symbol])):
            if escaped not in known:
                known[escaped] = len(states)
                states.append(escaped)
            edges.append((ord("\\"), ord("\\"), known[escaped]))
        if automaton.accepting[state]:
            edges.append((ord('"'), ord('"'), behind))
        states[state] = tuple(sorted(edges))
    return Tables.build(states, [state == behind for state in range(len(states))])


def _holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


_bodies: WeakValueDictionary[tuple[Alternative, ...], Body] = WeakValueDictionary()
_refused: set[tuple[Alternative, ...]] = set()
