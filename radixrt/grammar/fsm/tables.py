"""The byte automaton as flat tables: what masks, accepting, forced text and closing are read from.

States from which no end is reached are not in it.  A chain of states with one way out each is also there as one edge, the
text of its bytes: the compressed automaton of SGLang (Zheng and others, 2024, section 4).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Self

import msgspec
import numpy as np

Edges = tuple[tuple[int, int, int], ...]
"""The edges of one state: (lowest byte, highest byte, next state), in order."""

DEAD = -1


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    first: bytes
    low: bytes
    high: bytes
    target: bytes
    accepting: bytes


class Tables:
    """A deterministic automaton over bytes; state 0 is the start.

    Attributes:
        first: int32 [S + 1]; the edges of state s are ``first[s]`` to ``first[s + 1]``.
        low, high: bytes of length E; the bytes that an edge is for, both included.
        target: int32 [E]; where an edge leads.
        accepting: bool [S]; whether the text may end in a state.
    """

    def __init__(self, first: np.ndarray, low: bytes, high: bytes, target: np.ndarray, accepting: np.ndarray) -> None:
        self.first, self.low, self.high, self.target, self.accepting = first, low, high, target, accepting
        self.num_states = len(accepting)

    @classmethod
    def build(cls, states: Sequence[Edges], accepting: Sequence[bool]) -> Self:
        """Return the tables of states given by their edges."""
        edges = [edge for state in states for edge in state]
        first = np.zeros(len(states) + 1, dtype=np.int32)
        np.cumsum([len(state) for state in states], out=first[1:])
        padded = np.zeros(len(states), dtype=np.bool_)
        padded[: len(accepting)] = accepting
        target = np.array([target for _, _, target in edges], dtype=np.int32)
        return cls(first, bytes(low for low, _, _ in edges), bytes(high for _, high, _ in edges), target, padded)

    def to_bytes(self) -> bytes:
        """Return the tables as bytes, which ``from_bytes`` reads on the same kind of machine."""
        packed = _Packed(self.first.tobytes(), self.low, self.high, self.target.tobytes(), self.accepting.tobytes())
        return msgspec.msgpack.encode(packed)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what ``to_bytes`` wrote; ValueError when it is no automaton."""
        try:
            packed = msgspec.msgpack.decode(data, type=_Packed)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no automaton: {error}") from None
        first, target = np.frombuffer(packed.first, dtype=np.int32), np.frombuffer(packed.target, dtype=np.int32)
        flags = np.frombuffer(packed.accepting, dtype=np.uint8)
        tables = cls(first, packed.low, packed.high, target, flags.astype(np.bool_))
        low, high = np.frombuffer(packed.low, dtype=np.uint8), np.frombuffer(packed.high, dtype=np.uint8)
        num_edges = len(target)
        sound = (
            len(first) == len(flags) + 1 >= 2
            and len(low) == len(high) == num_edges
            and first[0] == 0
            and first[-1] == num_edges
            and bool(np.all(np.diff(first) >= 0))
            and bool(np.all(low <= high))
            and bool(np.all((target >= 0) & (target < len(flags))))
        )
        if sound:
            follows = np.ones(num_edges, dtype=np.bool_)  # whether an edge is of the same state as the one before
            follows[first[:-1][first[:-1] < num_edges]] = False
            sound = bool(np.all(high[:-1][follows[1:]] < low[1:][follows[1:]])) and not np.any(tables.distance == DEAD)
        if not sound:
            raise ValueError("no automaton: its tables contradict each other")
        return tables

    def step(self, state: int, byte: int) -> int:
        """Return where a byte leads, or ``DEAD``."""
        edge = bisect_right(self.low, byte, self._first[state], self._first[state + 1]) - 1
        return self._target[edge] if edge >= self._first[state] and byte <= self.high[edge] else DEAD

    def walk(self, state: int, text: bytes) -> int:
        """Return where a text leads, or ``DEAD``."""
        i = 0
        while i < len(text) and state != DEAD:
            run, states = self.run(state, len(text) - i)
            if run:
                state = states[-1] if text.startswith(run, i) else DEAD
                i += len(run)
            else:
                state = self.step(state, text[i])
                i += 1
        return state

    def run(self, state: int, limit: int) -> tuple[bytes, Sequence[int]]:
        """Return the compressed edge of a state: up to ``limit`` bytes that must come next, and the state behind each.

        Empty where the text may end or go on in two ways.  A run may end where another one begins.
        """
        starts, ends, text, behind = self._runs
        at = starts[state]
        end = min(ends[state], at + limit)
        return text[at:end], behind[at:end]

    def forced(self, state: int, limit: int) -> bytes:
        """Return what must come next, at most ``limit`` bytes of it and whole characters only."""
        parts: list[bytes] = []
        size = 0
        while size < limit:
            run, states = self.run(state, limit - size)
            if not run:
                break
            parts.append(run)
            size += len(run)
            state = states[-1]
        text = b"".join(parts)
        if text and self.is_inside_character(state):
            lead = max((i for i in range(max(len(text) - 3, 0), len(text)) if text[i] >= 0xC0), default=0)
            return text[:lead]
        return text

    def is_inside_character(self, state: int) -> bool:
        """Whether a state is between the bytes of one character."""
        edge = self._first[state]
        return edge < self._first[state + 1] and 0x80 <= self.low[edge] < 0xC0

    def is_final(self, state: int) -> bool:
        """Whether nothing may follow."""
        return self._first[state] == self._first[state + 1]

    @cached_property
    def distance(self) -> np.ndarray:
        """int32 [S]: the fewest bytes from a state to an end; ``DEAD`` where there is no way."""
        return self.distances(np.ones(len(self.target), dtype=np.bool_))

    def distances(self, usable: np.ndarray) -> np.ndarray:
        """Return int32 [S], the fewest bytes to an end by the edges that are ``usable``, bool [E]; else ``DEAD``."""
        target = self.target[usable]
        order = np.argsort(target, kind="stable")
        into = np.searchsorted(target[order], np.arange(self.num_states + 1)).tolist()
        sources = np.repeat(np.arange(self.num_states), np.diff(self.first))[usable][order].tolist()
        distance = [0 if accepts else DEAD for accepts in self.accepting.tolist()]
        reached = np.flatnonzero(self.accepting).tolist()
        for state in reached:
            for source in sources[into[state] : into[state + 1]]:
                if distance[source] == DEAD:
                    distance[source] = distance[state] + 1
                    reached.append(source)
        return np.array(distance, dtype=np.int32)

    def shortest_end(self, state: int) -> bytes:
        """Return a shortest text from a state to an end; among equal ones, readable bytes."""
        text = bytearray()
        while (left := self._distance[state]) > 0:
            run, states = self.run(state, left)
            if run:
                text += run
                state = states[-1]
                continue
            edges = range(self._first[state], self._first[state + 1])
            nearer = [edge for edge in edges if self._distance[self._target[edge]] == left - 1]
            choices = ((edge, _readable(self.low[edge], self.high[edge])) for edge in nearer)
            edge, byte = min(choices, key=lambda choice: not 32 < choice[1] < 127)
            text.append(byte)
            state = self._target[edge]
        return bytes(text)

    @property
    def memory_bytes(self) -> int:
        """How many bytes the tables take."""
        return 30 * self.num_states + 10 * len(self.target)

    @cached_property
    def _first(self) -> array[int]:
        return array("i", self.first.tobytes())  # its items are read faster than those of numpy

    @cached_property
    def _target(self) -> array[int]:
        return array("i", self.target.tobytes())

    @cached_property
    def _distance(self) -> array[int]:
        return array("i", self.distance.tobytes())

    @cached_property
    def _runs(self) -> tuple[array[int], array[int], bytes, array[int]]:
        """Where the run of each state starts and ends; the bytes of all runs, and the state behind each byte.

        A state is in one run only: one that meets a run already written down ends there.
        """
        start, end = array("i", [0]) * self.num_states, array("i", [0]) * self.num_states
        text, behind = bytearray(), array("i")
        seen = bytearray(self.num_states)
        for head in range(self.num_states):
            members: list[int] = []
            state = head
            while not seen[state] and self._is_forced(state):
                seen[state] = 1
                edge = self._first[state]
                members.append(state)
                start[state] = len(text)
                text.append(self.low[edge])
                state = self._target[edge]
                behind.append(state)
            for member in members:
                end[member] = len(text)
        return start, end, bytes(text), behind

    def _is_forced(self, state: int) -> bool:
        edge = self._first[state]
        return self._first[state + 1] == edge + 1 and self.low[edge] == self.high[edge] and not self.accepting[state]


def joined(edges: Iterable[tuple[int, int, int]]) -> Edges:
    """Return sorted edges, those of adjacent bytes to the same place as one."""
    merged: list[tuple[int, int, int]] = []
    for low, high, target in edges:
        if merged and merged[-1][1] + 1 == low and merged[-1][2] == target:
            merged[-1] = (merged[-1][0], high, target)
        else:
            merged.append((low, high, target))
    return tuple(merged)


def _readable(low: int, high: int) -> int:
    """A byte of a range, one that can be read if there is one."""
    for byte in b'"0aA ':
        if low <= byte <= high:
            return byte
    return max(low, 33) if high >= 33 else low
