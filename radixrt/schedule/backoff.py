"""How many drafts one request may carry: as many as are likely to pay.

A draft that is confirmed saves its row one step; each one costs the computation of a token, which is a share of a step that is
small where reading the weights takes most of the time and large where computing does.  With ``p`` the chance that the model
agrees with a draft and ``c`` that share, the draft at place k pays while p^k > c.
"""

from __future__ import annotations

import math

# A request begins as if the model had agreed with nine drafts of ten.
AGREED, REFUSED = 9.0, 1.0
# How much of its refusals a request forgets with each step that it makes without drafts, so that it tries again; never so much that
# it would be surer than a new one.
FORGET = 0.05


class DraftBackoff:
    """Learns from the drafts of one request how often the model agrees."""

    def __init__(self) -> None:
        self._agreed, self._refused = AGREED, REFUSED

    def note(self, offered: int, accepted: int) -> None:
        """Count drafts that were verified; what lies behind the first refused one says nothing."""
        self._agreed += accepted
        self._refused += accepted < offered

    def limit(self, cost: float, most: int) -> int:
        """Return how many drafts are worth it, ``most`` at most, where one costs ``cost`` of a step that it may save."""
        if cost <= 0.0:
            return most
        agreement = self._agreed / (self._agreed + self._refused)
        if agreement >= 1.0:
            return most
        worth = int(math.log(cost) / math.log(agreement)) if cost < 1.0 else 0
        if worth == 0:
            self._refused = max(self._refused * (1.0 - FORGET), REFUSED)
        return min(worth, most)


def draft_cost(token_cost: float, num_rows: int) -> float:
    """Return what computing one draft costs, as a share of what a step costs each of ``num_rows`` rows that decode in it.

    ``token_cost``: the share of a step of one row that grows with its tokens; the rest is paid once a step, for all rows together.
    """
    return token_cost / ((1.0 - token_cost) / max(1, num_rows) + token_cost)
