"""A decision and its outcome as values: the rows of a step, what each found, and what has been counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from radixrt.schedule.request import Request, Status
from radixrt.types import TokenLogprob


class ScheduledRow(msgspec.Struct, frozen=True):
    """Request extends by positions [start, start + count).

    Positions [sample_from, start + count] are sampled (none when ``sample_from`` is beyond that); prompt positions
    [score_from, score_to) are scored, or the hidden states that predict them are wanted.
    """

    request: Request
    start: int
    count: int
    epoch: int
    row: int
    sample_from: int
    score_from: int
    score_to: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def num_samples(self) -> int:
        samples = self.start + self.count + 1 - self.sample_from
        return samples if samples > 0 else 0

    @property
    def is_void(self) -> bool:
        """Whether what the row was launched on no longer stands."""
        return self.epoch != self.request.epoch or self.request.status is Status.FINISHED


class ScheduledStep(msgspec.Struct, frozen=True):
    rows: Sequence[ScheduledRow]


class RowResult(msgspec.Struct, frozen=True):
    """What a step found for one row: a token for each sampled position (-1 where logits were not finite) and logprobs.

    mu: mirostat's state after each of the tokens, for requests that have one.  hidden [score_to - score_from, H]: of embeddings.
    """

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    prompt_logprobs: Sequence[TokenLogprob] | None = None
    mu: Sequence[float] | None = None
    hidden: np.ndarray | None = None


@dataclass(slots=True)
class Counters:
    """What has happened since the start; only grows.

    Retractions include preemptions; ``closed`` texts were ended in time for their budget; ``masked_rows``: sampled positions
    under a grammar, whose masks took ``mask_seconds`` to fill.
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    closed: int = 0
    masked_rows: int = 0
    mask_seconds: float = 0.0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    preemptions: int = 0
    timeouts: int = 0
    wait_seconds: dict[str, float] = field(default_factory=dict)
