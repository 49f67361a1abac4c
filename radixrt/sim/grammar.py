"""A constraint small enough to check by hand: at some places of the output only these tokens, and an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radixrt.grammar.bitmask import allow_only


@dataclass(frozen=True, slots=True)
class Choices:
    """``allowed[i]``: what output token i may be, anything where it is missing.  The text is complete after ``length`` tokens."""

    allowed: Mapping[int, Sequence[int]]
    length: int

    @property
    def min_tokens(self) -> int:
        return self.length

    @property
    def memory_bytes(self) -> int:
        return 0

    def new_state(self) -> ChoicesState:
        return ChoicesState(self)


class ChoicesState:
    """How many tokens of a ``Choices`` have been accepted; a ``GrammarState``."""

    def __init__(self, choices: Choices, accepted: int = 0) -> None:
        self._choices = choices
        self._accepted = accepted

    def accept(self, token: int) -> bool:
        if token not in self._choices.allowed.get(self._accepted, (token,)):
            return False
        self._accepted += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= self._accepted
        self._accepted -= num_tokens

    def fill_mask(self, row: np.ndarray) -> None:
        if (tokens := self._choices.allowed.get(self._accepted)) is not None:
            allow_only(row, list(tokens))

    def draft(self, max_tokens: int) -> list[int]:
        forced: list[int] = []
        while len(forced) < max_tokens:
            tokens = self._choices.allowed.get(self._accepted + len(forced), ())
            if len(tokens) != 1:
                break
            forced.append(tokens[0])
        return forced

    def is_finished(self) -> bool:
        return self._accepted >= self._choices.length

    def is_accepting(self) -> bool:
        return self.is_finished()

    def fork(self) -> ChoicesState:
        return ChoicesState(self._choices, self._accepted)

    def forced_bytes(self, limit: int) -> bytes:
        return b""  # its tokens stand for no bytes

    def close(self, max_tokens: int) -> list[int] | None:
        rest = range(self._accepted, self._choices.length)
        return [self._choices.allowed.get(i, (0,))[0] for i in rest] if len(rest) <= max_tokens else None
