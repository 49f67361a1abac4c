"""Subset construction over classes of characters, without states that lead nowhere, and made minimal.

A character class here is a set of code points that no part of the pattern tells apart; there are few of them, and automata
over them stay small where automata over bytes would not.  ``utf8`` makes bytes of them afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.code_points import SCALARS, Ranges, intersection, union
from radixrt.grammar.fsm.limits import MAX_CHARACTER_STATES, MAX_WORK, Budget
from radixrt.grammar.fsm.nfa import PositionAutomaton


@dataclass(frozen=True, slots=True)
class CharacterAutomaton:
    """A deterministic automaton.  ``moves[s]``: class to next state, where there is one.  State 0 is the start."""

    classes: list[Ranges]
    moves: list[dict[int, int]]
    accepting: list[bool]


def determinize(automaton: PositionAutomaton, max_work: int = MAX_WORK) -> CharacterAutomaton:
    """Return the deterministic automaton, by subset construction; GrammarError when it takes more than ``max_work`` steps."""
    work = Budget(max_work, "it can be in too many places at once")
    classes, classes_of = _partition(automaton.ranges)
    end = 1 << len(automaton.ranges)
    states = {automaton.start: 0}
    moves: list[dict[int, int]] = []
    for positions in (queue := [automaton.start]):
        targets: dict[int, int] = defaultdict(int)
        for position in _bits(positions & ~end):
            follow = automaton.follow[position]
            work.spend(1 + len(classes_of[position]))
            for symbol in classes_of[position]:
                targets[symbol] |= follow
        row: dict[int, int] = {}
        for symbol, target in targets.items():
            if target not in states:
                states[target] = len(states)
                queue.append(target)
            row[symbol] = states[target]
        moves.append(row)
        if len(states) > MAX_CHARACTER_STATES:
            raise GrammarError("the pattern is too complex: its automaton has too many states", code="grammar_too_complex")
    return CharacterAutomaton(classes, moves, [bool(positions & end) for positions in states])


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _partition(sets: Sequence[Ranges]) -> tuple[list[Ranges], list[list[int]]]:
    """Cut the code points that occur in sets, and in a text, into classes; returns those, and of which each set consists."""
    distinct = {ranges: i for i, ranges in enumerate(dict.fromkeys(sets))}
    events: dict[int, int] = defaultdict(int)  # code point -> which sets begin or end there
    for ranges, i in distinct.items():
        for low, high in intersection(ranges, SCALARS):
            events[low] ^= 1 << i
            events[high + 1] ^= 1 << i
    found: dict[int, list[tuple[int, int]]] = {}
    open_sets, start = 0, 0
    for code, changed in sorted(events.items()):
        if open_sets and code > start:
            found.setdefault(open_sets, []).append((start, code - 1))
        open_sets, start = open_sets ^ changed, code
    members: list[list[int]] = [[] for _ in distinct]
    for symbol, sets_here in enumerate(found):
        for i in _bits(sets_here):
            members[i].append(symbol)
    return [union(ranges) for ranges in found.values()], [members[distinct[ranges]] for ranges in sets]


def trim(automaton: CharacterAutomaton) -> CharacterAutomaton:
    """Drop the states from which no end is reached; GrammarError when the start is one."""
    sources: list[list[int]] = [[] for _ in automaton.moves]
    for state, row in enumerate(automaton.moves):
        for target in row.values():
            sources[target].append(state)
    live = set(queue := [state for state, accepts in enumerate(automaton.accepting) if accepts])
    for state in queue:
        fresh = [source for source in sources[state] if source not in live]
        live.update(fresh)
        queue += dict.fromkeys(fresh)
    if 0 not in live:
        raise GrammarError("the pattern matches no text", code="unsatisfiable_grammar")
    return _rename(automaton, [state if state in live else -1 for state in range(len(automaton.moves))])


def minimize(automaton: CharacterAutomaton) -> CharacterAutomaton:
    """Merge the states of a trimmed automaton that accept the same texts.

    Hopcroft's algorithm; where moves may be missing, as here, every block of the first partition has to be a splitter
    (Valmari and Lehtinen, 2008).
    """
    sources: list[dict[int, list[int]]] = [{} for _ in automaton.moves]
    for state, row in enumerate(automaton.moves):
        for symbol, target in row.items():
            sources[target].setdefault(symbol, []).append(state)
    blocks = [{s for s, accepts in enumerate(automaton.accepting) if accepts is kind} for kind in (True, False)]
    blocks = [block for block in blocks if block]
    block_of = [0] * len(automaton.moves)
    for i, block in enumerate(blocks):
        for state in block:
            block_of[state] = i
    waiting = set(range(len(blocks)))
    while waiting:
        reached: dict[int, list[int]] = defaultdict(list)
        for state in blocks[waiting.pop()]:
            for symbol, states in sources[state].items():
                reached[symbol] += states
        for states in reached.values():
            hit: dict[int, set[int]] = defaultdict(set)
            for state in states:
                hit[block_of[state]].add(state)
            for old, part in hit.items():
                if len(part) == len(blocks[old]):
                    continue
                blocks[old] -= part
                new = len(blocks)
                blocks.append(part)
                for state in part:
                    block_of[state] = new
                waiting.add(new if old in waiting or len(part) <= len(blocks[old]) else old)
    return _rename(automaton, block_of)


def _rename(automaton: CharacterAutomaton, new_name: Sequence[int]) -> CharacterAutomaton:
    """Give states new names, one to those that are merged and -1 to those that go; the start stays 0."""
    order = {name: i for i, name in enumerate(dict.fromkeys(name for name in new_name if name >= 0))}
    first = {name: state for state, name in reversed(list(enumerate(new_name)))}
    number = [order.get(name, -1) for name in new_name]
    moves = [{c: number[t] for c, t in automaton.moves[first[name]].items() if number[t] >= 0} for name in order]
    return CharacterAutomaton(automaton.classes, moves, [automaton.accepting[first[name]] for name in order])
