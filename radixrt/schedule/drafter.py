"""The drafter seam: whoever can guess the next tokens of a sequence.

A guess changes the number of steps, never the text: it is confirmed or refuted by the sample of its own position.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    def draft(self, tokens: array[int], max_tokens: int) -> Sequence[int]:
        """Return up to ``max_tokens`` tokens that may follow these verified ones; none is a fine answer."""
