"""The tokens of one step, and who may have how many of them."""

from __future__ import annotations


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

    def chunk(self, num_new: int) -> int:
        """Return how many of the ``num_new`` tokens of a prompt may be computed."""
        if not self.whole_prompts:
            return min(num_new, self.left, self._left_prefill)
        return num_new if num_new <= self._left_prefill or self._left_prefill == self._max_prefill else 0

    def take(self, count: int) -> None:
        self.left -= count

    def take_prefill(self, count: int) -> None:
        self.left -= count
        self._left_prefill -= count
