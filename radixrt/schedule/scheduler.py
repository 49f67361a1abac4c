"""What each step computes, and what its results mean.  No sockets, clocks, threads, tensors or text.

One number drives a request: K/V computed catches up with tokens known.  Prefill, chunked prefill, a prefix hit, decode,
jump-forward and drafts are the same subtraction, so there are no phases.  Two methods carry the life of a step:
``schedule`` decides which request extends by how much, allocates slots and publishes what the step will write; ``commit``
takes the samples in, in the order of the steps.  Between the two, one later step may already be scheduled (overlap).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.errors import Overloaded
from radixrt.schedule import waits
from radixrt.schedule.admission import Admission
from radixrt.schedule.budget import Budget
from radixrt.schedule.deadlines import Deadlines
from radixrt.schedule.delayer import PrefillDelayer
from radixrt.schedule.drafter import Drafter
from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.extension import Extension
from radixrt.schedule.order import SchedulePolicy, Ticket
from radixrt.schedule.priority import Priorities
from radixrt.schedule.queue import WaitingQueue
from radixrt.schedule.request import Request, Status
from radixrt.schedule.retraction import make_way
from radixrt.schedule.room import Room
from radixrt.schedule.step import Counters, RowResult, ScheduledRow, ScheduledStep
from radixrt.schedule.verify import Verifier
from radixrt.types import CacheReport, Finish, FinishReason, TokenLogprob, TokenOutput


class Scheduler:
    """Owns every request and, through ``cache``, every slot.

    Args:
        token_budget: most tokens computed in one step.
        max_prefill_tokens: most of them that prefill; None: no limit of its own.
        whole_prompts: never cut a prompt; the first one of a step may then exceed what is left of ``max_prefill_tokens``.
        max_running: most requests running at once.
        max_queued: most requests waiting; one more is Overloaded.  None: no limit.
        decode_share: share of ``token_budget`` that decoding requests may fill, drafts included, while prompts want it too.
        priorities: what priorities mean, or None to ignore them.
        drafter: guesses for requests without a grammar, or None.
        jump_forward: let grammars draft the text they leave no choice about.
        token_cost: what a draft costs, see ``radixrt.schedule.backoff.draft_cost``.
    """

    def __init__(
        self,
        *,
        cache: PrefixCache,
        policy: SchedulePolicy,
        token_budget: int,
        max_running: int,
        max_prefill_tokens: int | None = None,
        whole_prompts: bool = False,
        max_queued: int | None = None,
        decode_share: float = 0.5,
        priorities: Priorities | None = None,
        estimate: OutputEstimate | None = None,
        deadlines: Deadlines | None = None,
        delayer: PrefillDelayer | None = None,
        drafter: Drafter | None = None,
        jump_forward: bool = True,
        token_cost: float = 0.0,
    ) -> None:
        self.cache = cache
        self.token_budget = token_budget
        self.max_prefill_tokens = token_budget if max_prefill_tokens is None else max_prefill_tokens
        self.whole_prompts = whole_prompts
        self.max_running = max_running
        self.max_queued = max_queued
        self.priorities = priorities
        self.estimate = estimate or OutputEstimate()
        self.waiting = WaitingQueue(cache, policy, aging=None if priorities is None else priorities.aging)
        self.running: list[Request] = []
        self.counters = Counters()
        self.verifier = Verifier(cache, self.counters, drafter=drafter, jump_forward=jump_forward, token_cost=token_cost)
        self._admission = Admission(cache=cache, waiting=self.waiting, estimate=self.estimate, max_running=max_running, delayer=delayer)
        self._extension = Extension(
            self.running, cache=cache, estimate=self.estimate, counters=self.counters, decode_share=int(decode_share * token_budget),
            send_back=self._send_back,
        )
        self._deadlines = deadlines or Deadlines()
        self._requests: dict[int, Request] = {}
        self._ended: list[TokenOutput] = []
        self._next_arrival = 0
        self._now = 0.0
        self.paused = False

    def add(self, request: Request, now: float = 0.0) -> None:
        """Queue a request.  Its prompt fits the pool and the context: the caller has checked.

        What its ``waits`` have already counts as time waited.
        Raises Overloaded when the queue is full, unless a request of lower priority can be ended in its place.
        """
        assert request.num_prompt >= 1 and request.max_length <= self.cache.num_slots
        assert request.uid not in self._requests, "uids are unique"
        request.level = 0 if self.priorities is None else self.priorities.level(request.priority)
        if self.max_queued is not None and len(self.waiting) >= self.max_queued:
            self._make_place(request)
        request.arrival, request.arrived = self._next_arrival, now - sum(request.waits.values())
        self._next_arrival += 1
        self._requests[request.uid] = request
        self.counters.prompt_tokens += request.num_prompt
        self._deadlines.arrive(request.uid, request.arrived)
        self._wait(request, now)
        if request.num_scored == 0:  # nothing predicts the first token
            request.num_scored = 1
            self._ended.append(self._output(request, None, [], [], [TokenLogprob(None, request.tokens[0])]))

    def abort(self, uid: int) -> None:
        """End a request wherever it is; what it computed stays cached.  Unknown or finished: nothing happens."""
        request = self._requests.get(uid)
        if request is not None:
            self._finish(request, Finish(FinishReason.ABORT, message="aborted"))

    def pause(self, *, retract: bool = False) -> None:
        """Decide no rows until ``resume``; running requests keep their slots, or with ``retract`` go back to the queue.

        Aborts are still carried out; time limits are not looked at.  Idempotent.
        """
        self.paused = True
        if retract:
            for request in list(self.running):
                self._retract(request)
        self._admission.hold(self._now, waits.PAUSED)

    def resume(self) -> None:
        """End a pause.  Idempotent."""
        self.paused = False

    def has_work(self) -> bool:
        return bool(self._ended or (not self.paused and (self.waiting or self.running)))

    def schedule(self, now: float = 0.0) -> ScheduledStep:
        """Decide the next step: running requests first, decodes before prefills, then admissions while the budget lasts.

        ``now``: seconds, never less than before.
        """
        self._now = max(self._now, now)
        self._admission.advance(self._now)
        if self.paused:
            return ScheduledStep([])
        self.estimate.stepped()
        for uid, started in self._deadlines.take_expired(self._now):
            self._expire(uid, started=started)
        budget = Budget(self.token_budget, max_prefill=self.max_prefill_tokens, whole_prompts=self.whole_prompts)
        self.waiting.begin(self._now, self.running, self.counters.computed_tokens)
        sent_back = self._preempt()
        retractions = self.counters.retractions
        self.verifier.num_rows = len(self.running)
        rows = self._extension.fill(budget, self.waiting)
        if self.counters.retractions == retractions:
            self._admission.fill(self.running, budget, partial(self._start, rows), self._now, sent_back)
        else:  # whoever was just sent away would only come back to be sent away again
            self._admission.hold(self._now)
        return ScheduledStep(rows)

    def commit(self, step: ScheduledStep, results: Sequence[RowResult]) -> list[TokenOutput]:
        """Take in the samples of a step, one result a row, and return what is new for each request."""
        for row, result in zip(step.rows, results, strict=True):
            if not row.is_void:
                self._emit(row.request, *self.verifier.take(row, result))
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
        self.cache.clear()
        again = self.running[:]
        self.running.clear()
        for request in again:
            self._restart(request)
            request.epoch += 1
            self._wait(request, self._now)
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

    def waits_for(self, request: Request) -> str:
        """The reason, of ``radixrt.schedule.waits``, why a waiting request waits."""
        return self._admission.waits_for(request)

    def check_invariants(self) -> None:
        """Raise AssertionError unless every slot, row and request is accounted for."""
        self.cache.check_invariants([request.lease for request in self.running if request.lease is not None])
        assert all(request.lease is None and request.status is Status.WAITING for request in self.waiting)
        assert all(request.lease is not None and request.status is Status.RUNNING for request in self.running)
        assert {request.uid for request in (*self.waiting, *self.running)} == set(self._requests)
        for request in self.running:
            assert request.lease is not None and request.lease.length == request.num_computed, "slots go with computed positions"

    def _make_place(self, request: Request) -> None:
        """End the worst request of a full queue if its priority is lower than that of ``request``."""
        worst = self.waiting.worst() if self.priorities is not None else None
        if worst is None or worst.level <= request.level:
            raise Overloaded(f"{len(self.waiting)} requests are waiting, which is all that may")
        self._finish(worst.request, Finish(FinishReason.ABORT, message="made way for a request of higher priority", status=429))

    def _expire(self, uid: int, *, started: bool) -> None:
        request = self._requests.get(uid)
        if request is not None and (started or request.admitted is None):
            self.counters.timeouts += 1
            message = self._deadlines.message(started=started)
            self._finish(request, Finish(FinishReason.ABORT, message=message, status=503))

    def _preempt(self) -> list[int]:
        """Send running requests back, and return their uids, for the one that is first in the queue if it is so much better."""
        threshold = None if self.priorities is None else self.priorities.preemption
        ticket = self.waiting.first(()) if threshold is not None and self.running else None
        if threshold is None or ticket is None:
            return []
        request = ticket.request
        if all(other.admitted_level - request.level <= threshold for other in self.running):
            return []
        num_rows, cached = len(self.running) + 1 - self.max_running, self.waiting.matched(ticket)

        def shortage(running: Sequence[Request]) -> int:
            return Room(self.cache, self.estimate, running).shortage(request, cached)

        chosen = make_way(request, self.running, self.cache, threshold=threshold, num_rows=num_rows, shortage=shortage)
        for other in chosen:
            self.counters.preemptions += 1
            self._retract(other)
        return [other.uid for other in chosen]

    def _send_back(self, request: Request) -> None:
        """Retract a request because more was admitted than fits."""
        self.estimate.retracted()
        self._retract(request)

    def _start(self, rows: list[ScheduledRow], ticket: Ticket, lease: Lease, count: int) -> None:
        """Turn a waiting request into a running one that computes ``count`` tokens, which its lease already has slots for."""
        request = ticket.request
        self.running.append(request)
        self._extension.open(request, lease)
        request.admitted_level = ticket.level
        if request.admitted is None:
            request.admitted = self._now
            if request.want_report:
                request.divergence = self.cache.divergence(request.tokens[: request.num_prompt], request.namespace)
            self._deadlines.start(request.uid, self._now)
        if count:
            rows.append(self._extension.launch(request, count))
        else:  # a prompt that is cached but for its last token, and nothing to generate
            self._finish(request, Finish(FinishReason.LENGTH))

    def _retract(self, request: Request) -> None:
        """Send a running request back to the queue; its verified K/V stays in the tree while room allows."""
        self.running.remove(request)
        self._release(request)
        self._restart(request)
        request.num_retractions += 1
        self.counters.retractions += 1
        self._wait(request, self._now)

    def _wait(self, request: Request, now: float) -> None:
        """Queue a request, with what its grammar forces next: that much text rides on the step that computes the prompt."""
        if request.grammar is not None:
            self.verifier.draft(request)
        self._admission.add(request, now)

    def _restart(self, request: Request) -> None:
        request.status, request.lease, request.is_rerun = Status.WAITING, None, True
        request.num_computed, request.sample_pos = 0, -1
        if len(request.tokens) > request.num_verified:
            del request.tokens[request.num_verified :]
            request.epoch += 1

    def _release(self, request: Request) -> None:
        assert request.lease is not None
        self.cache.release(request.lease, request.tokens, request.num_sure)
        request.lease = None

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
            self.cache.release(request.lease, request.tokens, request.num_sure, num_prompt=request.num_prompt)
            request.lease = None
        if finish.reason is not FinishReason.ABORT and not request.is_exact:
            self.estimate.learn(request.num_verified - request.num_prompt)
        self._close(request, finish, tokens, logprobs, scored)

    def _close(
        self,
        request: Request,
        finish: Finish,
        tokens: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        scored: list[TokenLogprob] | None = None,
    ) -> None:
        # What it is said to be does not count: a decision that broke half-way may have left it in neither place.
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self._admission.remove(request)
        request.status = Status.FINISHED
        del self._requests[request.uid]
        self.counters.finished += 1
        self.counters.aborted += finish.reason is FinishReason.ABORT
        for reason, seconds in request.waits.items():
            self.counters.wait_seconds[reason] = self.counters.wait_seconds.get(reason, 0.0) + seconds
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
            report=None if finish is None or not request.want_report else CacheReport(
                max(request.num_cached, 0), request.num_prefilled, request.waits, request.divergence
            ),
            queued=0.0 if request.admitted is None else request.admitted - request.arrived,
            embedding=None if finish is None else request.embedding,
        )
