"""How many drafts one request may carry: fewer while the model refuses them, more again once it agrees."""

from __future__ import annotations

WINDOW = 16
"""After how many drafts the share of accepted ones is looked at."""


class DraftBackoff:
    """Halves ``limit`` when more than half of ``WINDOW`` drafts or more were refused, else doubles it, up to where it began."""

    def __init__(self, max_draft: int) -> None:
        self.limit = max_draft
        self._max_draft = max_draft
        self._offered = 0
        self._accepted = 0

    def note(self, offered: int, accepted: int) -> None:
        """Count drafts that were verified; those behind the first refused one count as refused."""
        self._offered += offered
        self._accepted += accepted
        if self._offered >= WINDOW:
            agreed = 2 * self._accepted >= self._offered
            self.limit = min(2 * self.limit, self._max_draft) if agreed else max(self.limit // 2, min(1, self._max_draft))
            self._offered = self._accepted = 0
