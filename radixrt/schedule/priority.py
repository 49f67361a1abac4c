"""What the priority of a request means: its level in the queue, and who makes way for whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Priorities:
    """Priorities count.

    ``low_first``: smaller values go first.  ``aging``: seconds of waiting that make up for one step of priority, None for
    never.  ``preemption``: a waiting request takes the place of running ones whose priority is worse by more than this;
    None: it waits.  What a request has gained by waiting protects it while it runs.
    """

    low_first: bool = False
    aging: float | None = None
    preemption: int | None = None

    def level(self, priority: int) -> int:
        """Return the level of a priority; smaller levels go first."""
        return priority if self.low_first else -priority
