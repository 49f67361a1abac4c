"""Finds stop strings in a stream of text, and holds back what may turn out to be the start of one."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

# An automaton of the most and longest stops that the server takes is about 2 MB.
MAX_AUTOMATA = 16


class StopMatcher:
    """An Aho-Corasick automaton over the stop strings: each character is looked at once, however the text is cut.

    The match that ends first wins; of several that end at the same character, the longest.  Its state is the longest
    suffix of the text so far that is a proper prefix of a stop string, which is exactly what must be held back.
    Empty stop strings are ignored.  After a match the matcher is used up.

    Args:
        no_stop_trim: emit the matched stop string too, instead of ending before it.
    """

    __slots__ = ("_automaton", "_held", "_no_stop_trim", "_state")

    def __init__(self, stop: Sequence[str], *, no_stop_trim: bool = False) -> None:
        wanted = tuple(text for text in stop if text)
        self._automaton = _automaton(wanted) if wanted else None
        self._no_stop_trim = no_stop_trim
        self._state = 0
        self._held = ""

    @property
    def held(self) -> str:
        """The text held back."""
        return self._held

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text that can be shown now and the stop string it ran into, if any."""
        automaton = self._automaton
        if automaton is None:
            return text, None
        next_states, fail, matched = automaton.next_states, automaton.fail, automaton.matched
        state = self._state
        known = self._held + text
        for i, char in enumerate(text, start=len(self._held) + 1):
            while state and char not in next_states[state]:
                state = fail[state]
            state = next_states[state].get(char, 0)
            stop = matched[state]
            if stop is not None:
                self._state, self._held = 0, ""
                return known[:i] if self._no_stop_trim else known[: i - len(stop)], stop
        self._state = state
        shown = len(known) - automaton.depth[state]
        self._held = known[shown:]
        return known[:shown], None

    def flush(self) -> str:
        """Return the text held back: the answer ended without a match."""
        held = self._held
        self._state, self._held = 0, ""
        return held


@functools.lru_cache(maxsize=MAX_AUTOMATA)
def _automaton(stop: tuple[str, ...]) -> _Automaton:
    """Build an automaton, or share one: the answers of a request, and often of many requests, have the same stops."""
    return _Automaton(stop)


class _Automaton:
    """Immutable once built.  State 0 is the root.  ``matched[s]`` is the longest stop string that is a suffix of the text of state s."""

    __slots__ = ("depth", "fail", "matched", "next_states")

    def __init__(self, stop: Sequence[str]) -> None:
        self.next_states: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.matched: list[str | None] = [None]
        for text in stop:
            self._add(text)
        self.fail = [0] * len(self.depth)
        self._link()

    def _add(self, text: str) -> None:
        state = 0
        for char in text:
            if char not in self.next_states[state]:
                self.next_states[state][char] = len(self.depth)
                self.next_states.append({})
                self.depth.append(self.depth[state] + 1)
                self.matched.append(None)
            state = self.next_states[state][char]
        self.matched[state] = text

    def _link(self) -> None:
        # Breadth first: a state's fail state is shallower, so it is complete when it is looked at.
        queue = deque(self.next_states[0].values())
        while queue:
            parent = queue.popleft()
            if self.matched[parent] is None:
                self.matched[parent] = self.matched[self.fail[parent]]
            for char, state in self.next_states[parent].items():
                fallback = self.fail[parent]
                while fallback and char not in self.next_states[fallback]:
                    fallback = self.fail[fallback]
                self.fail[state] = self.next_states[fallback].get(char, 0)
                queue.append(state)
