"""One sequence on its way through the scheduler.  Written by the scheduler only."""

from __future__ import annotations

import enum
from array import array

import numpy as np

from radixrt.cache.prefix_cache import Lease
from radixrt.errors import RadixrtError
from radixrt.grammar.base import GrammarState
from radixrt.grammar.budget import Closing
from radixrt.schedule.backoff import DraftBackoff
from radixrt.types import Divergence, GenerateRequest, LogprobOptions, SamplingParams
from radixrt_kernels.ops import common_prefix_length


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

    ``level`` orders requests when priorities count, smaller first, and ``admitted_level`` is what waiting had made of it
    at the last admission.  ``arrived`` and ``admitted`` (the first time, or None) are seconds, and ``waits`` are seconds
    by reason (``radixrt.schedule.waits``).  ``mu`` is mirostat's state at each position of the verified output and the next.
    ``pooled`` is the sum of the hidden states so far of one that asks for an embedding (``embed``).
    """

    __slots__ = (
        "admitted",
        "admitted_level",
        "arrival",
        "arrived",
        "backoff",
        "breakers",
        "closing",
        "divergence",
        "embed",
        "epoch",
        "fault",
        "grammar",
        "is_rerun",
        "lease",
        "level",
        "logprobs",
        "max_length",
        "mu",
        "namespace",
        "num_cached",
        "num_computed",
        "num_emitted",
        "num_prefilled",
        "num_prompt",
        "num_retractions",
        "num_scored",
        "num_shared",
        "num_verified",
        "pooled",
        "priority",
        "routing_key",
        "sample_pos",
        "sampling",
        "seed",
        "status",
        "stop_ids",
        "tokens",
        "uid",
        "waits",
        "want_report",
    )

    def __init__(
        self,
        request: GenerateRequest,
        *,
        max_length: int,
        stop_ids: frozenset[int] = frozenset(),
        seed: int = 0,
        grammar: GrammarState | None = None,
        closing: Closing | None = None,
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
        self.backoff = None if grammar is None else DraftBackoff()
        self.closing = closing  # ends the text of the grammar in time
        self.breakers = request.breakers
        chain = request.sampling.chain
        self.mu = array("d", [2.0 * chain.mirostat_tau]) if chain is not None and chain.mirostat else None
        self.fault: RadixrtError | None = None  # what the grammar broke on, whose masks are empty since
        self.priority = request.priority
        self.routing_key = request.routing_key
        self.level = self.admitted_level = 0
        self.arrival = 0
        self.arrived = 0.0
        self.admitted: float | None = None
        self.waits: dict[str, float] = {}
        self.want_report = request.want_report
        self.divergence: Divergence | None = None  # at the first admission, when a report is wanted
        self.status = Status.WAITING
        self.num_verified = self.num_emitted = self.num_prompt
        self.num_computed = 0
        self.sample_pos = -1
        self.epoch = 0
        self.lease: Lease | None = None
        self.is_rerun = False  # it has run before, and was sent back or started over: what is cached of it may be its own
        self.num_cached = -1  # prompt tokens that this request did not compute itself; -1 until first admitted
        self.num_prefilled = 0  # prompt tokens that went through the model, again after a retraction
        self.num_retractions = 0
        self.num_shared = 0  # leading positions that came from the cache, or that others took over, since the last admission
        self.embed = request.embed
        self.pooled: np.ndarray | None = None
        # The first prompt position whose logprob is still to be reported, or the hidden state before it to be added.
        self.num_scored = self.num_prompt if self.logprobs is None or self.logprobs.start_len < 0 else self.logprobs.start_len
        if request.embed:
            self.num_scored = 1

    @property
    def num_tokens(self) -> int:
        """Tokens known on the host, or one more that is still on the device."""
        known, sampled = len(self.tokens), self.sample_pos + 1
        return known if known > sampled else sampled

    @property
    def num_new(self) -> int:
        """How far K/V is behind.  The last token's is never needed."""
        known, needed = self.num_tokens, self.max_length - 1
        return (known if known < needed else needed) - self.num_computed

    @property
    def num_sure(self) -> int:
        """Computed positions whose K/V depends on no draft: only these may be shared."""
        return min(self.num_computed, self.num_verified)

    def missing(self, num_cached: int) -> int:
        """How many of the tokens it waits with are to be computed when so many are cached."""
        return min(len(self.tokens), self.max_length - 1) - num_cached

    def follows(self, other: Request) -> bool:
        """Whether ``other``, which runs, is about to compute what this one, which waits, could take over."""
        at = other.num_computed
        if self.namespace != other.namespace or self.tokens[at : at + 1] != other.tokens[at : at + 1]:
            return False
        shared = common_prefix_length(self.tokens, 0, other.tokens, 0)
        return min(shared, self.match_limit) > other.num_computed

    @property
    def takes_best(self) -> bool:
        """Whether each of its tokens is the one with the largest logit of the model, and nothing else is wanted to be known."""
        params = self.sampling
        edited = params.penalised or params.logit_bias or params.min_new_tokens or params.chain is not None
        return params.greedy and not edited and self.grammar is None and self.logprobs is None

    @property
    def is_exact(self) -> bool:
        """Whether nothing but its limit can end the output."""
        return not self.stop_ids and self.grammar is None

    @property
    def embedding(self) -> list[float] | None:
        """The mean of the hidden states of the prompt but for its last token, once all of them are there."""
        done = self.pooled is not None and self.num_scored >= self.num_prompt
        return (self.pooled / (self.num_prompt - 1)).tolist() if self.pooled is not None and done else None

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the cache.

        The last one is computed to get logits, and so is everything that predicts a prompt position still to be scored.
        """
        limit = min(self.num_verified, self.max_length) - 1
        return limit if self.num_scored >= self.num_prompt else max(0, min(limit, self.num_scored - 1))

    @property
    def matchable(self) -> memoryview[int]:
        """The leading tokens that may come from the cache: a view, which must be gone before the tokens grow."""
        return memoryview(self.tokens)[: max(0, self.match_limit)]

    @property
    def prefilling(self) -> bool:
        """Whether more than the newest verified token lacks K/V."""
        return self.num_computed < self.num_verified - 1
