"""The grammar seam: what the scheduler asks of a constraint, whichever engine compiled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class GrammarState(Protocol):
    """How far one request has come in its grammar: a function of the tokens it has accepted, and of nothing else.

    It has accepted exactly the request's verified output tokens.  End tokens may come where the text may end, and nothing
    but them ends it where it could also go on.
    """

    def accept(self, token: int) -> bool:
        """Advance by a token; False, with nothing changed, when the grammar forbids it."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, an end token among them."""

    def fill_mask(self, row: np.ndarray) -> None:
        """Write the packed mask (int32 [ceil(V / 32)]) of the tokens allowed next; end tokens where ``is_accepting``.

        The row comes allowing everything; a state that has nothing to say leaves it so.
        """

    def draft(self, max_tokens: int) -> Sequence[int]:
        """Return up to ``max_tokens`` tokens that the grammar leaves little or no choice about; they are verified like any draft."""

    def is_finished(self) -> bool:
        """Whether nothing may follow: an end token was accepted, or the text is complete and no other token fits."""

    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    def fork(self) -> GrammarState:
        """Return an independent state that has accepted the same tokens."""

    def forced_bytes(self, limit: int) -> bytes:
        """Return at most ``limit`` bytes that must come next, cut where a code point ends."""

    def close(self, max_tokens: int) -> Sequence[int] | None:
        """Return at most ``max_tokens`` tokens, no end token among them, after which the text may end; None when none were found.

        The shortest that a bounded search finds, the same one every time.
        """


class Grammar(Protocol):
    """A compiled constraint, shared by requests."""

    @property
    def min_tokens(self) -> int | None:
        """Tokens of the shortest text found, without an end token; None when no finite one is known."""

    @property
    def memory_bytes(self) -> int:
        """About how much memory it holds."""

    def new_state(self) -> GrammarState: ...
