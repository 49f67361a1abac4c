"""One sequence on its way through the scheduler.  Written by the scheduler only."""

from __future__ import annotations

import enum
from array import array

from radixrt.cache.prefix_cache import Lease
from radixrt.grammar.base import GrammarState
from radixrt.types import GenerateRequest, LogprobOptions, SamplingParams


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """Tokens known, tokens verified, tokens computed: their differences are all the work there is.

    ``tokens`` is prompt + output + drafts.  Those from ``num_verified`` on are drafts: guessed, not yet confirmed by a
    sample.  A launched step has written K/V of the first ``num_computed`` positions, and samples positions up to
    ``sample_pos`` (-1: none), which may be one more than the host knows.  ``epoch`` counts how often tokens were taken
    back: a row launched in an older epoch relied on something that no longer stands.
    """

    __slots__ = (
        "arrival",
        "epoch",
        "grammar",
        "lease",
        "logprobs",
        "max_length",
        "namespace",
        "num_cached",
        "num_computed",
        "num_emitted",
        "num_prompt",
        "num_retractions",
        "num_scored",
        "num_verified",
        "sample_pos",
        "sampling",
        "seed",
        "status",
        "stop_ids",
        "tokens",
        "uid",
    )

    def __init__(
        self,
        request: GenerateRequest,
        *,
        max_length: int,
        stop_ids: frozenset[int] = frozenset(),
        seed: int = 0,
        grammar: GrammarState | None = None,
    ) -> None:
        self.uid = request.uid
        self.tokens = array("i", request.prompt)
        self.num_prompt = len(self.tokens)
        self.sampling: SamplingParams = request.sampling
        self.logprobs: LogprobOptions | None = request.logprobs
        self.namespace = request.namespace
        self.max_length = max_length
        self.stop_ids = stop_ids
        self.seed = seed
        self.grammar = grammar
        self.arrival = 0
        self.status = Status.WAITING
        self.num_verified = self.num_emitted = self.num_prompt
        self.num_computed = 0
        self.sample_pos = -1
        self.epoch = 0
        self.lease: Lease | None = None
        self.num_cached = -1  # prompt tokens that this request did not compute itself; -1 until first admitted
        self.num_retractions = 0
        # The first prompt position whose logprob is still to be reported.
        self.num_scored = self.num_prompt if self.logprobs is None or self.logprobs.start_len < 0 else self.logprobs.start_len

    @property
    def num_tokens(self) -> int:
        """Tokens known on the host, or one more that is still on the device."""
        return max(len(self.tokens), self.sample_pos + 1)

    @property
    def num_new(self) -> int:
        """How far K/V is behind.  The last token's is never needed."""
        return min(self.num_tokens, self.max_length - 1) - self.num_computed

    @property
    def num_sure(self) -> int:
        """Computed positions whose K/V depends on no draft: only these may be shared."""
        return min(self.num_computed, self.num_verified)

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the cache.

        The last one is computed to get logits, and so is everything that predicts a prompt position still to be scored.
        """
        limit = min(self.num_verified, self.max_length) - 1
        return limit if self.num_scored >= self.num_prompt else max(0, min(limit, self.num_scored - 1))

    @property
    def prefilling(self) -> bool:
        """Whether more than the newest verified token lacks K/V."""
        return self.num_computed < self.num_verified - 1
