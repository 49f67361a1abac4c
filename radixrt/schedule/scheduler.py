"""What each step computes, and what its results mean.  No sockets, clocks, threads, tensors or text.

One number drives a request: K/V computed catches up with tokens known.  Prefill, chunked prefill, a prefix hit, decode,
jump-forward and drafts are the same subtraction, so there are no phases.  Two methods carry the life of a step:
``schedule`` decides which request extends by how much, allocates slots and publishes what the step will write; ``commit``
takes the samples in, in the order of the steps.  Between the two, one later step may already be scheduled (overlap).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.schedule.drafter import Drafter
from radixrt.schedule.policy import SchedulePolicy
from radixrt.schedule.request import Request, Status
from radixrt.types import Finish, FinishReason, TokenLogprob, TokenOutput

# Slots an admission leaves free for each running request to grow into, so that it is not retracted at once.
GROWTH_RESERVE = 32


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """Request extends by positions [start, start + count).

    Positions [sample_from, start + count] are sampled (none when ``sample_from`` is beyond that); prompt positions
    [score_from, score_to) are scored.
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
        return max(0, self.end + 1 - self.sample_from)

    @property
    def is_void(self) -> bool:
        """Whether what the row was launched on no longer stands."""
        return self.epoch != self.request.epoch or self.request.status is Status.FINISHED


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    rows: Sequence[ScheduledRow]


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a step found for one row: a token for each sampled position (-1 where logits were not finite) and logprobs."""

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    prompt_logprobs: Sequence[TokenLogprob] | None = None


@dataclass(slots=True)
class Counters:
    """What has happened since the start; only grows."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0


@dataclass(slots=True)
class Scheduler:
    """Owns every request and, through ``cache``, every slot.

    Args:
        token_budget: most tokens computed in one step.
        drafter: guesses for requests without a grammar, or None.
        jump_forward: let grammars draft what they leave no choice about.
    """

    cache: PrefixCache
    policy: SchedulePolicy
    token_budget: int
    max_running: int
    drafter: Drafter | None = None
    jump_forward: bool = True
    max_draft: int = 16
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    _requests: dict[int, Request] = field(default_factory=dict)
    _ended: list[TokenOutput] = field(default_factory=list)
    _next_arrival: int = 0

    def add(self, request: Request) -> None:
        """Queue a request.  Its prompt fits the pool and the context: the caller has checked."""
        assert request.num_prompt >= 1 and request.max_length <= self.cache.num_slots
        assert request.uid not in self._requests, "uids are unique"
        request.arrival = self._next_arrival
        self._next_arrival += 1
        self._requests[request.uid] = request
        self.waiting.append(request)
        self.counters.prompt_tokens += request.num_prompt
        if request.num_scored == 0:  # nothing predicts the first token
            request.num_scored = 1
            self._ended.append(self._output(request, None, [], [], [TokenLogprob(None, request.tokens[0])]))

    def abort(self, uid: int) -> None:
        """End a request wherever it is; what it computed stays cached.  Unknown or finished: nothing happens."""
        request = self._requests.get(uid)
        if request is not None:
            self._finish(request, Finish(FinishReason.ABORT, message="aborted"))

    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._ended)

    def schedule(self) -> ScheduledStep:
        """Decide the next step: running requests first, decodes before prefills, then admissions while the budget lasts."""
        rows: list[ScheduledRow] = []
        retractions = self.counters.retractions
        left = self._extend_running(rows, self.token_budget)
        if self.counters.retractions == retractions:  # whoever was just sent away would only come back to be sent away again
            self._admit_waiting(rows, left)
        return ScheduledStep(rows)

    def commit(self, step: ScheduledStep, results: Sequence[RowResult]) -> list[TokenOutput]:
        """Take in the samples of a step, one result a row, and return what is new for each request.

        The commit rule: a sample fills its position if that is still empty, confirms the draft there if it is equal, and
        otherwise takes the draft's place and voids what followed.
        """
        for row, result in zip(step.rows, results, strict=True):
            if not row.is_void:
                self._commit_row(row, result)
        return self.take_ended()

    def take_ended(self) -> list[TokenOutput]:
        """Return, once, the outputs that wait to be handed out: aborts and requests that needed no step among them."""
        outputs, self._ended = self._ended, []
        return outputs

    def fail(self, step: ScheduledStep, message: str) -> list[TokenOutput]:
        """End the requests of a step that broke, and forget the cache: others may have adopted K/V it never wrote.

        Every other running request starts over; its text so far stands.
        """
        for row in step.rows:
            if row.request.status is not Status.FINISHED:
                row.request.lease = None
                self._close(row.request, Finish(FinishReason.ABORT, message=message, status=500))
        for request in self.running:
            self._restart(request)
            request.epoch += 1
        self.waiting = sorted([*self.running, *self.waiting], key=lambda request: request.arrival)
        self.running = []
        self.cache.clear()
        return self.take_ended()

    def fail_all(self, message: str) -> list[TokenOutput]:
        """End every request and forget the cache: for a fault that leaves no other state to trust."""
        for request in list(self._requests.values()):
            request.lease = None
            self._close(request, Finish(FinishReason.ABORT, message=message, status=500))
        self.cache.clear()
        return self.take_ended()

    def flush(self) -> bool:
        """Empty the cache; False, with nothing done, while any request is here."""
        if self._requests:
            return False
        self.cache.clear()
        return True

    def check_invariants(self) -> None:
        """Raise AssertionError unless every slot, row and request is accounted for."""
        self.cache.check_invariants([request.lease for request in self.running if request.lease is not None])
        assert all(request.lease is None and request.status is Status.WAITING for request in self.waiting)
        assert all(request.lease is not None and request.status is Status.RUNNING for request in self.running)
        assert {request.uid for request in (*self.waiting, *self.running)} == set(self._requests)
        for request in self.running:
            assert request.lease is not None and request.lease.length == request.num_computed, "slots go with computed positions"

    def _extend_running(self, rows: list[ScheduledRow], left: int) -> int:
        """Extend running requests; returns what is left of the budget.

        """
        extended: set[int] = set()
        for request in sorted(self.running, key=lambda request: (request.prefilling, request.arrival)):
            if request.status is not Status.RUNNING:
                continue
            self._adopt(request)
            count = min(request.num_new, left)
            if count > 0 and self._find_slots(request, count, extended):
                extended.add(request.uid)
                rows.append(self._launch(request, count))
                left -= count
        return left

    def _find_slots(self, request: Request, count: int, extended: set[int]) -> bool:
        """Extend the request's lease, sending the latest arrivals back to the queue while slots are missing.

        Never one that this step extends already.  The oldest request is never sent back, only passed over for a step, and
        alone it can have the whole pool: so something always moves.
        """
        assert request.lease is not None
        while not self.cache.extend(request.lease, count):
            victim = max((other for other in self.running if other.uid not in extended), key=lambda other: other.arrival)
            if victim is request and all(other.arrival >= request.arrival for other in self.running):
                return False
            self._retract(victim)
            if victim is request:
                return False
        return True

    def _admit_waiting(self, rows: list[ScheduledRow], left: int) -> None:
        if not self.waiting or left <= 0 or len(self.running) >= self.max_running:
            return
        for request in list(self.policy.order(self.waiting, self.cache)):
            if left <= 0 or len(self.running) >= self.max_running:
                break
            lease = self.cache.admit(request.tokens[: max(0, request.match_limit)], request.namespace)
            if lease is None:
                break
            total = min(len(request.tokens), request.max_length - 1) - lease.length
            count = min(total, left)
            reserve = sum(min(len(other.tokens) + GROWTH_RESERVE, other.max_length) - other.num_computed for other in self.running)
            room = not self.running or self.cache.num_available >= total + reserve
            if not (room and self.cache.extend(lease, count)):
                self.cache.release(lease, request.tokens, lease.num_shared)
                break
            self.waiting.remove(request)
            self.running.append(request)
            request.lease, request.status = lease, Status.RUNNING
            request.num_computed = lease.num_shared
            self._count_cached(request, lease.num_shared, first=request.num_cached < 0)
            if count:
                rows.append(self._launch(request, count))
                left -= count
            else:  # a prompt that is cached but for its last token, and nothing to generate
                self._finish(request, Finish(FinishReason.LENGTH))

    def _launch(self, request: Request, count: int) -> ScheduledRow:
        assert request.lease is not None
        start, known = request.num_computed, request.num_tokens
        end = request.num_computed = start + count
        if end == known:
            request.sample_pos = end
        # Samples below the first unverified position would be dropped, so they are not taken.
        sample_from = max(start + 1, request.num_verified)
        score_from = min(max(start + 1, request.num_scored), request.num_prompt)
        score_to = max(score_from, min(end + 1, request.num_prompt))
        row = ScheduledRow(request, start, count, request.epoch, request.lease.row, sample_from, score_from, score_to)
        self.counters.computed_tokens += count
        self.cache.publish(request.lease, request.tokens, request.num_sure)
        return row

    def _adopt(self, request: Request) -> None:
        """Before each chunk: take over what somebody else has computed of this request meanwhile."""
        if request.prefilling and request.lease is not None:
            before = request.num_computed
            request.num_computed = self.cache.adopt(request.lease, request.tokens[: request.match_limit], before)
            self._count_cached(request, request.num_computed - before, first=request.num_retractions == 0)

    def _count_cached(self, request: Request, num_tokens: int, *, first: bool) -> None:
        if first:
            self.counters.cached_prompt_tokens += num_tokens
            request.num_cached = max(request.num_cached, 0) + num_tokens

    def _retract(self, request: Request) -> None:
        """Send a running request back to the queue; its verified K/V stays in the tree while room allows."""
        self.running.remove(request)
        self._release(request)
        self._restart(request)
        request.num_retractions += 1
        self.counters.retractions += 1
        at = next((i for i, other in enumerate(self.waiting) if other.arrival > request.arrival), len(self.waiting))
        self.waiting.insert(at, request)

    def _restart(self, request: Request) -> None:
        request.status, request.lease = Status.WAITING, None
        request.num_computed, request.sample_pos = 0, -1
        if len(request.tokens) > request.num_verified:
            del request.tokens[request.num_verified :]
            request.epoch += 1

    def _release(self, request: Request) -> None:
        assert request.lease is not None
        self.cache.release(request.lease, request.tokens, request.num_sure)
        request.lease = None

    def _commit_row(self, row: ScheduledRow, result: RowResult) -> None:
        request = row.request
        scored: list[TokenLogprob] = []
        for position, entry in zip(range(row.score_from, row.score_to), result.prompt_logprobs or (), strict=False):
            if position == request.num_scored:
                scored.append(entry)
                request.num_scored += 1
        logprobs: list[TokenLogprob] = []
        finish: Finish | None = None
        if request.max_length == request.num_prompt and row.end >= request.max_length - 1:
            finish = Finish(FinishReason.LENGTH)
        for i, token in enumerate(result.tokens):
            position = row.sample_from + i
            if finish or position > len(request.tokens):
                break
            if position < request.num_verified:
                continue
            if token < 0:
                finish = Finish(FinishReason.ABORT, message="the model's output was not finite", status=500)
                break
            refuted = position < len(request.tokens) and request.tokens[position] != token
            if refuted:
                self._roll_back(request, position)
            elif position < len(request.tokens):
                self.counters.accepted_drafts += 1
            finish = self._confirm(request, position, token)
            if result.logprobs is not None:
                logprobs.append(result.logprobs[i])
            if refuted:
                break
        if finish is None:
            self._draft(request)
        self._emit(request, finish, logprobs, scored)

    def _confirm(self, request: Request, position: int, token: int) -> Finish | None:
        """The verified text grows by one token; returns why it is complete, or None."""
        if position == len(request.tokens):
            request.tokens.append(token)
        request.num_verified = position + 1
        self.counters.generated_tokens += 1
        if request.grammar is not None and not request.grammar.accept(token):
            return Finish(FinishReason.ABORT, message="the grammar rejected a sampled token", status=500)
        if token in request.stop_ids:
            return Finish(FinishReason.STOP, matched=token)
        if request.grammar is not None and request.grammar.is_finished():
            return Finish(FinishReason.STOP)
        if request.num_verified >= request.max_length:
            return Finish(FinishReason.LENGTH)
        return None

    def _roll_back(self, request: Request, position: int) -> None:
        """The sample at ``position`` refutes the draft there: forget it, what follows, and the K/V computed from it."""
        del request.tokens[position:]
        request.num_computed, request.sample_pos = min(request.num_computed, position), -1
        if request.lease is not None:
            self.cache.truncate(request.lease, request.num_computed)
        request.epoch += 1

    def _draft(self, request: Request) -> None:
        room = min(self.max_draft, request.max_length - 1 - len(request.tokens))
        if room <= 0 or len(request.tokens) > request.num_verified:
            return
        drafts: Sequence[int] = ()
        if request.grammar is not None:
            drafts = request.grammar.draft(room) if self.jump_forward else ()
        elif self.drafter is not None:
            drafts = self.drafter.draft(request.tokens, room)
        request.tokens.extend(drafts[:room])
        self.counters.drafted_tokens += len(drafts[:room])

    def _emit(self, request: Request, finish: Finish | None, logprobs: list[TokenLogprob], scored: list[TokenLogprob]) -> None:
        new = request.tokens[request.num_emitted : request.num_verified].tolist()
        request.num_emitted = request.num_verified
        if finish is not None:
            self._finish(request, finish, new, logprobs, scored)
        elif new or scored:
            self._ended.append(self._output(request, None, new, logprobs, scored))

    def _finish(
        self,
        request: Request,
        finish: Finish,
        tokens: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        scored: list[TokenLogprob] | None = None,
    ) -> None:
        """End a request, once: the only place where one leaves the scheduler in good order."""
        if request.lease is not None:
            self._release(request)
        self._close(request, finish, tokens, logprobs, scored)

    def _close(
        self,
        request: Request,
        finish: Finish,
        tokens: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        scored: list[TokenLogprob] | None = None,
    ) -> None:
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)
        request.status = Status.FINISHED
        del self._requests[request.uid]
        self.counters.finished += 1
        self.counters.aborted += finish.reason is FinishReason.ABORT
        self._ended.append(self._output(request, finish, tokens or [], logprobs or [], scored or []))

    def _output(
        self, request: Request, finish: Finish | None, tokens: list[int], logprobs: list[TokenLogprob], scored: list[TokenLogprob]
    ) -> TokenOutput:
        return TokenOutput(
            uid=request.uid,
            tokens=tokens,
            finish=finish,
            logprobs=logprobs if request.logprobs is not None else None,
            prompt_logprobs=scored or None,
            cached_tokens=max(request.num_cached, 0),
            num_retractions=request.num_retractions,
        )
