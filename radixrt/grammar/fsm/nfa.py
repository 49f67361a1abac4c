"""From the tree of a regex to a nondeterministic automaton over characters, after Thompson (1968).

Nodes that consume nothing are gone at the end: what is left are positions (one for each character or class of the written-out
regex), and for each the set of positions that may follow, packed into an integer.  An anchor limits what may follow it: behind
``$`` a last newline, behind ``\\Z`` nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.code_points import NEWLINE, Ranges
from radixrt.grammar.fsm.limits import MAX_POSITIONS, MAX_WORK, Budget
from radixrt.grammar.fsm.syntax import Alternatives, Anchor, Characters, Node, Repeat, Sequence

FREE, LAST_NEWLINE, NOTHING = range(3)
"""What may still come: anything, one newline at most, nothing."""


@dataclass(frozen=True, slots=True)
class PositionAutomaton:
    """``ranges[p]``: what position p matches.  ``follow[p]``: bits of the positions behind it, and bit ``len(ranges)`` when the
    text may end there; ``start`` likewise for the whole."""

    ranges: list[Ranges]
    follow: list[int]
    start: int


def build_positions(tree: Node, max_work: int = MAX_WORK) -> PositionAutomaton:
    """Return the automaton of a tree; GrammarError when it is too large, or takes more than ``max_work`` steps."""
    if (size := _num_positions(tree)) > min(MAX_POSITIONS, max_work):
        raise GrammarError(
            f"the pattern is too complex: {size:,} parts once its repetitions are written out, and {MAX_POSITIONS:,} are allowed"
        )
    builder = _Builder()
    start = builder.add(tree, builder.accept)
    return builder.positions(start, max_work)


def _num_positions(node: Node) -> int:
    """How many nodes a tree becomes; counted, not built."""
    match node:
        case Sequence(items) | Alternatives(items):
            return 1 + sum(map(_num_positions, items))
        case Repeat(item, low, high):
            return 1 + _num_positions(item) * max(low, high or 0, 1)
    return 1


class _Builder:
    """Nodes are numbered; ``_consumes[n]`` what a node consumes, ``_anchors[n]`` what it stands for, ``_next[n]`` where it leads."""

    def __init__(self) -> None:
        self._next: list[list[int]] = []
        self._consumes: dict[int, Ranges] = {}
        self._anchors: dict[int, Anchor] = {}
        self.accept = self._node([])

    def _node(self, targets: list[int]) -> int:
        self._next.append(targets)
        return len(self._next) - 1

    def add(self, node: Node, then: int) -> int:
        """Write a tree down in front of a node, last part first; returns its first node."""
        match node:
            case Characters(ranges):
                then = self._node([then])
                self._consumes[then] = ranges
            case Anchor():
                then = self._node([then])
                self._anchors[then] = node
            case Sequence(items):
                for item in reversed(items):
                    then = self.add(item, then)
            case Alternatives(branches):
                then = self._node([self.add(branch, then) for branch in branches])
            case Repeat(item, low, high):
                after = then
                if high is None:
                    then = self._node([after])
                    self._next[then].append(self.add(item, then))
                else:
                    for _ in range(high - low):
                        then = self._node([after, self.add(item, then)])
                for _ in range(low):
                    then = self.add(item, then)
        return then

    def positions(self, start: int, max_work: int) -> PositionAutomaton:
        """Take the nodes that consume nothing away."""
        work = Budget(max_work, "its parts may follow one another in too many ways")
        numbers = {node: i for i, node in enumerate(self._consumes)}
        ranges = list(self._consumes.values())
        total = len(numbers)
        # Behind an anchor only a newline is matched, by a second copy of the positions.
        limited = {node: total + i for i, node in enumerate(numbers)} if self._anchors else {}
        end = total + len(limited)

        def closure(node: int, room: int, *, at_start: bool) -> int:
            bits, stack, seen = 0, [(node, room)], {(node, room)}
            while stack:
                node, room = stack.pop()
                work.spend()
                if node == self.accept:
                    bits |= 1 << end
                elif node in numbers:
                    if room != NOTHING:
                        bits |= 1 << (numbers[node] if room == FREE else limited[node])
                    continue
                elif (anchor := self._anchors.get(node)) is not None:
                    if not anchor.at_end and not at_start:
                        continue
                    if anchor.at_end:
                        room = max(room, LAST_NEWLINE if anchor.before_newline else NOTHING)
                for target in self._next[node]:
                    if (target, room) not in seen:
                        seen.add((target, room))
                        stack.append((target, room))
            return bits

        follow = [closure(self._next[node][0], FREE, at_start=False) for node in numbers]
        if limited:
            follow += [closure(self._next[node][0], NOTHING, at_start=False) for node in numbers]
            ranges += [tuple((low, high) for low, high in [(10, 10)] if _holds(ranges[i], NEWLINE[0][0])) for i in range(total)]
        return PositionAutomaton(ranges, follow, closure(start, FREE, at_start=True))


def _holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)
