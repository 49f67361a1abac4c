"""Text that is complete when its tokens run out.

While few tokens are left, a shortest way to a legal end is known at every token.  A new token after which none fits any more
is discarded, and that way is taken in its place.  What is decided depends on the accepted tokens and the budget alone, so
neither drafts nor batches change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.grammar.base import GrammarState

# From so many tokens before the end on, every token is looked at; before that, one in STRIDE, to learn how far the end is.
ZONE = 128
STRIDE = 16
# The longest way that is looked for.
LONGEST = 1024


class Closing:
    """Watches one request's grammar state, which somebody else advances, and says when the text is to be closed.

    ``shortest``: tokens of the shortest whole text, or None.
    """

    def __init__(self, state: GrammarState, shortest: int | None = None) -> None:
        self._state = state
        self._zone = max(ZONE, 2 * (shortest or 0))
        self._way: Sequence[int] | None = None
        self._seen = 0

    def begin(self, num_left: int) -> None:
        """Called before the first token, of which there are ``num_left``."""
        if num_left <= self._zone:
            self._way = self._state.close(min(num_left, LONGEST))

    def after(self, token: int, num_left: int) -> Sequence[int] | None:
        """Called when the state has accepted ``token`` and ``num_left`` more may follow.

        None: go on.  Otherwise that token is not to stand: the state has taken it back and accepted these instead, at most
        ``num_left + 1`` of them, and the text is complete.
        """
        before, self._way = self._way, None
        self._seen += 1
        if before and token == before[0]:  # one step on the known way
            self._way = before[1:]
            return None
        if num_left > self._zone and self._seen % STRIDE:
            return None
        way = self._state.close(min(num_left, LONGEST))
        if way is not None:
            self._way = way
            self._zone = max(self._zone, 2 * len(way) + STRIDE)
            return None
        self._zone = max(self._zone, min(num_left, LONGEST))
        if before is None or len(before) > num_left + 1:
            return None
        self._state.rollback(1)
        for token in before:
            accepted = self._state.accept(token)
            assert accepted, "a closing way is legal"
        return before
