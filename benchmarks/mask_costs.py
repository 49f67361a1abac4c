"""What the masks of a step's rows cost, one by one, in processor time: all of them, and those of places nobody has been at before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from radixrt.errors import GrammarError
from radixrt.grammar import llguidance_engine
from radixrt.grammar.llguidance_engine import LLGuidanceGrammar, LLGuidanceState
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.schedule import masks
from radixrt.schedule.step import ScheduledRow
from radixrt.types import GrammarSpec


class MaskCosts:
    """Microseconds for each sampled position under a grammar: of the positions of a row with drafts, their mean."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.later: list[float] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the masks that steps fill meanwhile."""
        fill = masks._fill
        with _noting() as made:

            def timed_fill(rows: np.ndarray, row: ScheduledRow) -> int:
                made.clear()
                started = time.thread_time_ns()
                filled = fill(rows, row)
                spent = (time.thread_time_ns() - started) / 1e3
                if filled:
                    (self.first if made else self.later).append(spent / filled)
                return filled

            parts: Any = masks
            parts._fill = timed_fill
            try:
                yield
            finally:
                parts._fill = fill

    def report(self) -> dict[str, Any]:
        """How many there were, and their median, 90th and 99th percentile and greatest."""
        return {name: _summary(times) for name, times in (("all", self.first + self.later), ("first", self.first), ("later", self.later))}


def costs_alone(texts: Sequence[tuple[GrammarSpec, Sequence[int]]], vocabulary: Vocabulary, rounds: int = 4) -> MaskCosts:
    """Microseconds for each mask along texts of JSON schemas, the least of some rounds, without a model between them.

    In every round each schema is compiled anew for its first text.  Those that another engine takes are left out.
    """
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    least: list[float] = []
    was_made: list[bool] = []
    for turn in range(rounds):
        grammars: dict[GrammarSpec, LLGuidanceGrammar | None] = {}
        at = 0
        for spec, tokens in texts:
            if spec not in grammars:
                grammars[spec] = _compiled(spec, vocabulary)
            if (grammar := grammars[spec]) is None:
                continue
            state = grammar.new_state()
            for token in tokens:
                with _noting() as made:
                    started = time.thread_time_ns()
                    state.fill_mask(row)
                    spent = (time.thread_time_ns() - started) / 1e3
                if turn == 0:
                    least.append(spent)
                    was_made.append(bool(made))
                least[at] = min(least[at], spent)
                at += 1
                state.accept(token)
    costs = MaskCosts()
    for spent, made in zip(least, was_made, strict=True):
        (costs.first if made else costs.later).append(spent)
    return costs


def _compiled(spec: GrammarSpec, vocabulary: Vocabulary) -> LLGuidanceGrammar | None:
    try:
        return llguidance_engine.compile(spec, vocabulary)
    except GrammarError:
        return None


@contextmanager
def _noting() -> Iterator[list[None]]:
    """Yield a list that gets an item for each mask made meanwhile, instead of found."""
    make, compose = LLGuidanceState._make_mask, LLGuidanceState._compose_mask
    made: list[None] = []

    def noted_make(state: LLGuidanceState, row: np.ndarray) -> None:
        made.append(None)
        make(state, row)

    def noted_compose(state: LLGuidanceState, place: Any, row: np.ndarray) -> bool:
        composed = compose(state, place, row)
        if composed:
            made.append(None)
        return composed

    parts: Any = LLGuidanceState
    parts._make_mask, parts._compose_mask = noted_make, noted_compose
    try:
        yield made
    finally:
        parts._make_mask, parts._compose_mask = make, compose


def _summary(times: Sequence[float]) -> dict[str, float]:
    if len(times) < 2:
        return {"rows": len(times)}
    cuts = statistics.quantiles(times, n=100)
    return {"rows": len(times), **{f"p{q}": round(cuts[q - 1], 1) for q in (50, 90, 99)}, "max": round(max(times), 1)}
