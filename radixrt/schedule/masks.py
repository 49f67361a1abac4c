"""The grammar masks of a step's sampled positions, made once the step before is committed."""

from __future__ import annotations

import numpy as np

from radixrt.grammar.bitmask import allow_all
from radixrt.schedule.step import ScheduledRow, ScheduledStep


def token_masks(step: ScheduledStep, vocab_size: int) -> np.ndarray | None:
    """Return packed masks [S, ceil(V / 32)] of the positions the step samples; None when no grammar has a say."""
    masks: np.ndarray | None = None
    at = 0
    for row in step.rows:
        if row.request.grammar is not None and row.num_samples and not row.is_void:
            if masks is None:
                masks = allow_all(sum(other.num_samples for other in step.rows), vocab_size)
            _fill(masks[at : at + row.num_samples], row)
        at += row.num_samples
    return masks


def _fill(masks: np.ndarray, row: ScheduledRow) -> None:
    """Masks of a row's positions: the grammar walks through the drafts and back.  A draft it forbids ends the walk: its
    own position is masked, and what follows it will be void."""
    request = row.request
    assert request.grammar is not None
    accepted = 0
    for i, position in enumerate(range(row.sample_from, row.end + 1)):
        if position < request.num_verified:
            continue
        request.grammar.fill_mask(masks[i])
        if position >= len(request.tokens) or not request.grammar.accept(request.tokens[position]):
            break
        accepted += 1
    if accepted:
        request.grammar.rollback(accepted)
