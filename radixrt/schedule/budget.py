"""The tokens of one step, and who may have how many of them."""

from __future__ import annotations

import math

# Part of what prompts may have of a step that one gets whatever it is to leave to others, so that it goes on.
LEAST_SHARE = 0.25


class Budget:
    """``num_tokens`` in all, of which prompts get at most ``max_prefill``.

    With ``whole_prompts`` no prompt is cut, and the first one may exceed what prompts get.
    """

    def __init__(self, num_tokens: int, *, max_prefill: int, whole_prompts: bool) -> None:
        self.left = num_tokens
        self.whole_prompts = whole_prompts
        self._left_prefill = self._max_prefill = max_prefill

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left for prompts."""
        return self.left <= 0 or self._left_prefill <= 0

    def chunk(self, num_new: int, *, leave: int = 0) -> int:
        """Return how many of the ``num_new`` tokens of a prompt may be computed.

        A prompt that is cut leaves ``leave`` tokens to others, but gets its ``LEAST_SHARE`` of what there is.
        """
        if not self.whole_prompts:
            left = min(self.left, self._left_prefill)
            return min(num_new, max(left - leave, math.ceil(left * LEAST_SHARE)))
        return num_new if num_new <= self._left_prefill or self._left_prefill == self._max_prefill else 0

    def take(self, count: int) -> None:
        self.left -= count

    def take_prefill(self, count: int) -> None:
        self.left -= count
        self._left_prefill -= count
