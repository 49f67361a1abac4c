"""What compiling one pattern may cost.  Every bound is checked before the work it bounds, so that a bomb is refused at once."""

from __future__ import annotations

from radixrt.errors import GrammarError

MAX_PATTERN = 65_536
"""Characters of a regex."""
MAX_DEPTH = 100
"""Groups inside groups."""
MAX_POSITIONS = 10_240
"""Parts of a regex, once its repetitions are written out."""
MAX_WORK = 400_000
"""Elementary steps of closure and subset construction."""
MAX_CHOICE_BYTES = 4 << 20
"""Bytes of all choices together."""
MAX_CHARACTER_STATES = 20_000
"""States of the automaton over characters."""
MAX_STATES = 200_000
"""States of the byte automaton."""


class Budget:
    """Counts down, and refuses what goes beyond it."""

    def __init__(self, amount: int, what: str) -> None:
        self._left = amount
        self._what = what

    def spend(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left < 0:
            raise GrammarError(f"the pattern is too complex: {self._what}", code="grammar_too_complex")
