"""What the masks of a step's rows cost, one by one, in processor time: all of them, and those of places nobody has been at before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from radixrt.grammar.llguidance_engine import LLGuidanceState
from radixrt.schedule import masks
from radixrt.schedule.step import ScheduledRow


class MaskCosts:
    """Microseconds for each sampled position under a grammar: of the positions of a row with drafts, their mean."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.later: list[float] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the masks that steps fill meanwhile."""
        fill, make, compose = masks._fill, LLGuidanceState._make_mask, LLGuidanceState._compose_mask
        made: list[None] = []

        def timed_fill(rows: np.ndarray, row: ScheduledRow) -> int:
            made.clear()
            started = time.thread_time_ns()
            filled = fill(rows, row)
            spent = (time.thread_time_ns() - started) / 1e3
            if filled:
                (self.first if made else self.later).append(spent / filled)
            return filled

        def noted_make(state: LLGuidanceState, row: np.ndarray) -> None:
            made.append(None)
            make(state, row)

        def noted_compose(state: LLGuidanceState, place: Any, row: np.ndarray) -> bool:
            composed = compose(state, place, row)
            if composed:
                made.append(None)
            return composed

        parts: Any = LLGuidanceState
        masks._fill, parts._make_mask, parts._compose_mask = timed_fill, noted_make, noted_compose
        try:
            yield
        finally:
            masks._fill, parts._make_mask, parts._compose_mask = fill, make, compose

    def report(self) -> dict[str, Any]:
        """How many there were, and their median, 90th and 99th percentile and greatest."""
        return {name: _summary(times) for name, times in (("all", self.first + self.later), ("first", self.first), ("later", self.later))}


def _summary(times: Sequence[float]) -> dict[str, float]:
    if len(times) < 2:
        return {"rows": len(times)}
    cuts = statistics.quantiles(times, n=100)
    return {"rows": len(times), **{f"p{q}": round(cuts[q - 1], 1) for q in (50, 90, 99)}, "max": round(max(times), 1)}
