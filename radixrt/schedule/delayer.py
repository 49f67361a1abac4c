"""Gathering small prompts into one step."""

from __future__ import annotations


class PrefillDelayer:
    """Holds small prompts back until several make one step worth its while, for so many passes and seconds at most.

    Ranks that step together pay for the largest of their steps; a rank that now and then prefills a few tokens makes all
    the others wait.
    """

    def __init__(self, *, min_tokens: int, max_passes: int = 30, max_seconds: float | None = None) -> None:
        self.min_tokens = min_tokens
        self._max_passes = max_passes
        self._max_seconds = max_seconds
        self._passes = 0
        self._since = 0.0

    def holds(self, num_tokens: int, now: float) -> bool:
        """Whether ``num_tokens`` tokens to prefill are to wait for more."""
        if self._passes == 0:
            self._since = now
        late = self._max_seconds is not None and now - self._since >= self._max_seconds
        if num_tokens >= self.min_tokens or self._passes >= self._max_passes or late:
            self._passes = 0
            return False
        self._passes += 1
        return True

    def reset(self) -> None:
        """Nothing waits, or nobody runs whom a prefill would hold up."""
        self._passes = 0
