"""From an automaton over characters to one over the bytes of their UTF-8.

The bytes of a set of ranges form a small graph: a node for what may follow a lead byte, shared where the same may follow.
States that tell the same sets apart share one graph, with other states at its ends.
"""

from __future__ import annotations

from radixrt.grammar.fsm.code_points import Ranges
from radixrt.grammar.fsm.determinize import CharacterAutomaton
from radixrt.grammar.fsm.limits import MAX_STATES, Budget
from radixrt.grammar.fsm.tables import Edges, joined

_LENGTHS = ((0x00, 0x7F, 0x00), (0x80, 0x7FF, 0xC0), (0x800, 0xD7FF, 0xE0), (0xE000, 0xFFFF, 0xE0), (0x10000, 0x10FFFF, 0xF0))
"""Code points of one encoded length, and the first byte of code point 0 in it.  Surrogates are not encoded."""

Graph = list[Edges]
"""Nodes, ends first and the root last: (lowest byte, highest byte, what follows), ``~n`` for node n, else a group."""


def to_bytes(automaton: CharacterAutomaton) -> list[Edges]:
    """Return the edges of the byte automaton; its first states are those of the automaton.  GrammarError when it is too large."""
    budget = Budget(MAX_STATES - len(automaton.moves), "its automaton has too many states")
    states: list[Edges] = [()] * len(automaton.moves)
    known: dict[Edges, int] = {}
    graphs: dict[tuple[tuple[int, int], ...], Graph] = {}
    for state, row in enumerate(automaton.moves):
        targets = list(dict.fromkeys(row.values()))
        group = {target: i for i, target in enumerate(targets)}
        shape = tuple((symbol, group[target]) for symbol, target in row.items())
        if shape not in graphs:
            graphs[shape] = _graph([(automaton.classes[symbol], i) for symbol, i in shape])
        numbers: list[int] = []
        *inner, root = graphs[shape]
        for node in inner:
            edges = tuple((low, high, targets[then] if then >= 0 else numbers[~then]) for low, high, then in node)
            if edges not in known:
                budget.spend()
                known[edges] = len(states)
                states.append(edges)
            numbers.append(known[edges])
        states[state] = tuple((low, high, targets[then] if then >= 0 else numbers[~then]) for low, high, then in root)
    return states


def _graph(groups: list[tuple[Ranges, int]]) -> Graph:
    """The graph of code points that lead to groups."""
    ranges = sorted((low, high, group) for ranges, group in groups for low, high in ranges)
    nodes: Graph = []
    known: dict[Edges, int] = {}
    root: list[tuple[int, int, int]] = []
    for low, high, lead in _LENGTHS:
        inside = [(max(a, low), min(b, high), group) for a, b, group in ranges if a <= high and b >= low]
        num_tails = {0x00: 0, 0xC0: 1, 0xE0: 2, 0xF0: 3}[lead]
        root += _edges(inside, num_tails, lead, nodes, known)
    nodes.append(joined(root))
    return nodes


def _edges(ranges: list[tuple[int, int, int]], num_tails: int, base: int, nodes: Graph, known: dict[Edges, int]) -> Edges:
    """The edges for code points of which the byte at hand and ``num_tails`` more are left."""
    if num_tails == 0:
        return joined([(base + low, base + high, group) for low, high, group in ranges])
    size = 64**num_tails
    blocks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (first, last) lead -> what may follow
    for low, high, group in ranges:
        while low <= high:
            lead, offset = divmod(low, size)
            if offset == 0 and high - low >= size - 1:
                last = (high + 1) // size - 1
                blocks[lead, last] = [(0, size - 1, group)]
                low = (last + 1) * size
            else:
                end = min(high, (lead + 1) * size - 1)
                blocks.setdefault((lead, lead), []).append((offset, end - lead * size, group))
                low = end + 1
    edges = []
    for (first, last), inside in sorted(blocks.items()):
        node = _edges(inside, num_tails - 1, 0x80, nodes, known)
        if node not in known:
            known[node] = len(nodes)
            nodes.append(node)
        edges.append((base + first, base + last, ~known[node]))
    return joined(edges)
