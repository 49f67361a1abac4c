"""What the samples of a step mean for one request: the commit rule, and the drafts that are made next."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.errors import GrammarError, InternalError
from radixrt.grammar.base import GrammarState
from radixrt.schedule.backoff import draft_cost
from radixrt.schedule.drafter import Drafter
from radixrt.schedule.request import Request
from radixrt.schedule.step import Counters, RowResult, ScheduledRow
from radixrt.types import Finish, FinishReason, TokenLogprob

logger = logging.getLogger(__name__)

BROKE = "the grammar broke"
"""The message of an answer whose grammar raised what it should not."""


class Verified(NamedTuple):
    """Why the request is complete, or None; logprobs of the new tokens; prompt positions scored for the first time."""

    finish: Finish | None
    logprobs: list[TokenLogprob]
    scored: list[TokenLogprob]


class Verifier:
    """Lets verified text grow by samples.

    ``drafter`` guesses up to ``max_draft`` tokens for requests without a grammar; with ``jump_forward`` grammars draft what they
    leave no choice about, as far as it pays: ``token_cost`` and ``num_rows``, the rows of a step, are those of ``draft_cost``.
    """

    def __init__(
        self, cache: PrefixCache, counters: Counters, *, drafter: Drafter | None = None, jump_forward: bool = True, max_draft: int = 16,
        token_cost: float = 0.0,
    ) -> None:
        self.drafter = drafter
        self.jump_forward = jump_forward
        self.max_draft = max_draft
        self.token_cost = token_cost
        self.num_rows = 1
        self._cache = cache
        self._counters = counters

    def take(self, row: ScheduledRow, result: RowResult) -> Verified:
        """Take in the result of a row that is not void.

        A sample fills its position if that is still empty, confirms the draft there if it is equal, and otherwise takes the
        draft's place and voids what followed.
        """
        request = row.request
        scored: list[TokenLogprob] = []
        if result.prompt_logprobs:
            for position, entry in zip(range(row.score_from, row.score_to), result.prompt_logprobs, strict=False):
                if position == request.num_scored:
                    scored.append(entry)
                    request.num_scored += 1
        if result.hidden is not None:
            for position, vector in zip(range(row.score_from, row.score_to), result.hidden, strict=True):
                # One by one and in order, so that the sum is the same however the prompt was cut.
                if position == request.num_scored:
                    request.pooled = vector.copy() if request.pooled is None else request.pooled + vector
                    request.num_scored += 1
        logprobs: list[TokenLogprob] = []
        finish: Finish | None = None
        offered, accepted = min(len(request.tokens), row.end + 1) - request.num_verified, 0
        if request.max_length == request.num_prompt and row.end >= request.max_length - 1:
            finish = Finish(FinishReason.LENGTH)
        for i, token in enumerate(result.tokens):
            position = row.sample_from + i
            if finish or position > len(request.tokens):
                break
            if position < request.num_verified:
                continue
            if token < 0:
                finish = _nothing_sampled(request)
                break
            refuted = position < len(request.tokens) and request.tokens[position] != token
            if refuted:
                self._roll_back(request, position)
            elif position < len(request.tokens):
                accepted += 1
            if request.mu is not None and result.mu is not None:
                request.mu.append(result.mu[i])
            finish = self._confirm(request, position, token)
            way = self._close(request, token) if finish is None and request.closing is not None else None
            if way is not None:
                whole = not way and not _sleeps(request)
                finish = Finish(FinishReason.LENGTH, closed=bool(way) or whole, whole=whole)
                logprobs += [TokenLogprob(None, closer) for closer in way]
                break
            if result.logprobs is not None:
                logprobs.append(result.logprobs[i])
            if finish is None and request.num_verified >= request.max_length:
                accepting = request.grammar is not None and not _sleeps(request) and _is_accepting(request.grammar)
                finish = Finish(FinishReason.LENGTH, closed=accepting, whole=accepting)
            if refuted:
                break
        self._counters.accepted_drafts += accepted
        if request.backoff is not None and row.num_samples and offered > 0:
            request.backoff.note(offered, accepted)
        if finish is None:
            self.draft(request)
        return Verified(finish, logprobs, scored)

    def _confirm(self, request: Request, position: int, token: int) -> Finish | None:
        """The verified text grows by one token; returns why it is complete, but for its length, or None."""
        if position == len(request.tokens):
            request.tokens.append(token)
        request.num_verified = position + 1
        self._counters.generated_tokens += 1
        is_finished = False
        if request.grammar is not None:
            try:
                if not request.grammar.accept(token):
                    return Finish(FinishReason.ABORT, message="the grammar rejected a sampled token", status=500)
                is_finished = request.grammar.is_finished()
            except Exception:  # one answer is lost, and not those of the whole step
                logger.exception("the grammar of request %d broke", request.uid)
                return Finish(FinishReason.ABORT, message=BROKE, status=500)
        if token in request.stop_ids:
            return Finish(FinishReason.STOP, matched=token)
        return Finish(FinishReason.STOP) if is_finished else None

    def _close(self, request: Request, token: int) -> Sequence[int] | None:
        """Put the way to an end in the place of the newest token if none fits behind it; returns that way, or None."""
        assert request.closing is not None
        try:
            way = request.closing.after(token, request.max_length - request.num_verified)
        except GrammarError:  # over the limits of its engine
            return None
        except Exception:  # the text may be cut off then, which is no reason to end a whole step
            logger.exception("the text of request %d could not be closed", request.uid)
            return None
        if way is None:
            return None
        self._roll_back(request, request.num_verified - 1)
        request.tokens.extend(way)
        self._counters.generated_tokens += len(request.tokens) - request.num_verified
        self._counters.closed += 1
        request.num_verified = len(request.tokens)
        return way

    def _roll_back(self, request: Request, position: int) -> None:
        """The sample at ``position`` refutes the draft there: forget it, what follows, and the K/V computed from it."""
        del request.tokens[position:]
        request.num_computed, request.sample_pos = min(request.num_computed, position), -1
        if request.lease is not None:
            self._cache.truncate(request.lease, request.num_computed)
        request.epoch += 1

    def draft(self, request: Request) -> None:
        """Add guesses to tokens that are all verified."""
        if request.grammar is None and self.drafter is None:
            return
        most = self.max_draft
        if request.backoff is not None:
            most = request.backoff.limit(draft_cost(self.token_cost, self.num_rows), most)
        room = min(most, request.max_length - 1 - len(request.tokens))
        if room <= 0 or len(request.tokens) > request.num_verified:
            return
        drafts: Sequence[int] = ()
        if request.grammar is not None:
            drafts = self._forced(request, request.grammar, room) if self.jump_forward else ()
        elif self.drafter is not None:
            drafts = self.drafter.draft(request.tokens, room)
        request.tokens.extend(drafts[:room])
        self._counters.drafted_tokens += len(drafts[:room])

    @staticmethod
    def _forced(request: Request, grammar: GrammarState, room: int) -> Sequence[int]:
        try:
            return grammar.draft(room)
        except GrammarError:  # over the limits of its engine; if it stays so, the mask says it
            return ()
        except Exception:  # it may not have come back to where it was
            logger.exception("the grammar of request %d could not draft", request.uid)
            request.fault = InternalError(BROKE)
            return ()


def _sleeps(request: Request) -> bool:
    """Whether the constraint holds in parts of the text only, around which it is free: such a text is never complete by itself."""
    spec = request.sampling.grammar
    return spec is not None and spec.options.dormancy is not None and bool(spec.options.dormancy.trigger)


def _is_accepting(grammar: GrammarState) -> bool:
    try:
        return grammar.is_accepting()
    except Exception:  # the text is cut off here either way
        logger.exception("a grammar does not know whether its text may end")
        return False


def _nothing_sampled(request: Request) -> Finish:
    """Why no token could be sampled at a position."""
    if request.fault is not None:
        return Finish(FinishReason.ABORT, message=request.fault.message, status=request.fault.status)
    if request.grammar is not None:
        return Finish(FinishReason.ABORT, message="no token that the grammar allows could be sampled", status=500)
    return Finish(FinishReason.ABORT, message="the model's output was not finite", status=500)
