"""The grammar seam: what the scheduler asks of a constraint, whichever engine compiled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class GrammarState(Protocol):
    """How far one request has come in its grammar.  It has accepted exactly the request's verified output tokens."""

    def accept(self, token: int) -> bool:
        """Advance by a token; False, with nothing changed, when the grammar forbids it."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""

    def fill_mask(self, row: np.ndarray) -> None:
        """Write the packed mask (int32 [ceil(V / 32)]) of the tokens allowed next."""

    def draft(self, max_tokens: int) -> Sequence[int]:
        """Return up to ``max_tokens`` tokens that the grammar leaves little or no choice about; they are verified like any draft."""

    def is_finished(self) -> bool:
        """Whether the text is complete and nothing but the end may follow."""


class Grammar(Protocol):
    """A compiled constraint, shared by requests."""

    def new_state(self) -> GrammarState: ...
