"""The grammar masks of a step's sampled positions, filled while the step computes, once the step before is committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from radixrt.errors import GrammarError, InternalError
from radixrt.grammar.bitmask import allow_all
from radixrt.schedule.request import Request
from radixrt.schedule.step import Counters, ScheduledRow, ScheduledStep
from radixrt.schedule.verify import BROKE

logger = logging.getLogger(__name__)


class MaskArena:
    """One piece of memory for the masks of every step.

    A step's masks are valid until the next call: by then the step before has been sampled.
    """

    def __init__(self, vocab_size: int, counters: Counters | None = None) -> None:
        self._vocab_size = vocab_size
        self._counters = counters or Counters()
        self._rows = allow_all(0, vocab_size)

    def fill(self, step: ScheduledStep) -> np.ndarray | None:
        """Return packed masks [S, ceil(V / 32)] of the positions the step samples; None when no grammar has a say."""
        if not any(row.request.grammar is not None and row.num_samples and not row.is_void for row in step.rows):
            return None
        started = time.perf_counter()
        num_samples = sum(row.num_samples for row in step.rows)
        if num_samples > len(self._rows):
            self._rows = allow_all(max(num_samples, 2 * len(self._rows)), self._vocab_size)
        masks = self._rows[:num_samples]
        masks.fill(-1)
        at = 0
        for row in step.rows:
            if row.request.grammar is not None and row.num_samples and not row.is_void:
                self._counters.masked_rows += _fill(masks[at : at + row.num_samples], row)
            at += row.num_samples
        self._counters.mask_seconds += time.perf_counter() - started
        return masks


def _fill(masks: np.ndarray, row: ScheduledRow) -> int:
    """Masks of a row's positions: the grammar walks through the drafts and back.  A draft it forbids ends the walk: its
    own position is masked, and what follows it will be void.  Returns how many were filled."""
    request = row.request
    assert request.grammar is not None
    if request.fault is not None:  # it broke before
        masks[:] = 0
        return 0
    accepted = filled = at = 0
    try:
        for at, position in enumerate(range(row.sample_from, row.end + 1)):
            if position < request.num_verified:
                continue
            filled += 1
            request.grammar.fill_mask(masks[at])
            if position < request.num_prompt + request.sampling.min_new_tokens:
                _forbid_stops(masks[at], request)
            if position >= len(request.tokens) or not request.grammar.accept(request.tokens[position]):
                break
            accepted += 1
    except GrammarError as error:  # over the limits of its engine: the request ends where nothing may be sampled
        request.fault = error
        masks[at] = 0
    except Exception:
        logger.exception("the mask of request %d could not be filled", request.uid)
        request.fault = InternalError(BROKE)
        masks[at] = 0
    try:
        if accepted:
            request.grammar.rollback(accepted)
    except Exception:
        logger.exception("the grammar of request %d could not go back", request.uid)
        request.fault = InternalError(BROKE)
        masks[:] = 0
    return filled


def _forbid_stops(mask: np.ndarray, request: Request) -> None:
    """The text is to be longer: forbid what ends it, unless the grammar allows nothing else."""
    without = mask.copy()
    _clear(without, list(request.stop_ids))
    if without.any():
        mask[:] = without


def _clear(mask: np.ndarray, tokens: Sequence[int]) -> None:
    words = mask.view(np.uint32)
    for token in tokens:
        words[token >> 5] &= ~np.uint32(1 << (token & 31))
