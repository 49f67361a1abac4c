"""How running requests go on: the rows of a step, decodes before prefills, and the slots for them.

Whoever runs and why one ends or goes back is the scheduler's; here is what each gets of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.schedule.budget import Budget
from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.queue import WaitingQueue
from radixrt.schedule.request import Request, Status
from radixrt.schedule.retraction import victim
from radixrt.schedule.room import Room
from radixrt.schedule.step import Counters, ScheduledRow


class Extension:
    """Extends the requests of ``running``, a list that its owner keeps.

    Args:
        decode_share: most tokens of a step that decoding requests may fill, drafts included, while prompts want it too.
        send_back: takes a request out of ``running`` and queues it again, because more was admitted than fits.
    """

    def __init__(
        self, running: Sequence[Request], *, cache: PrefixCache, estimate: OutputEstimate, counters: Counters, decode_share: int,
        send_back: Callable[[Request], None],
    ) -> None:
        self._running = running
        self._cache = cache
        self._estimate = estimate
        self._counters = counters
        self._decode_share = decode_share
        self._send_back = send_back

    def fill(self, budget: Budget, waiting: WaitingQueue) -> list[ScheduledRow]:
        """Extend running requests, decodes first.

        Each decoding request gets a token before any gets drafts.  There is one for each: a request is admitted, or goes on
        with its prompt, only in a step that has a token left for it.
        """
        decodes: list[Request] = []
        prefills: list[Request] = []
        for request in self._running:
            if request.prefilling:
                prefills.append(request)
            elif request.num_new > 0:
                decodes.append(request)
        decodes.sort(key=attrgetter("arrival"))
        prefills.sort(key=attrgetter("arrival"))
        self._secure(decodes[: budget.left])
        rows: list[ScheduledRow] = []
        extended: set[int] = set()
        share = self._decode_share if prefills or waiting else budget.left
        drafts = max(0, self._cache.available(share) - len(decodes))
        for request in decodes:
            count = min(request.num_new, budget.left, 1 + drafts)
            if count > 0 and request.status is Status.RUNNING and self._find_slots(request, count, extended):
                rows.append(self.launch(request, count))
                budget.take(count)
                drafts -= count - 1
        for at, request in enumerate(prefills):
            if request.status is not Status.RUNNING:
                continue
            self._adopt(request)
            leave = self._shorter(request, prefills[at + 1 :], waiting) if waiting.shortest_first else 0
            count = budget.chunk(request.num_new, leave=leave)
            if not budget.whole_prompts:  # what is there is better than what somebody else must give back
                count = min(count, self._cache.num_available or 1)
            if count > 0 and self._find_slots(request, count, extended):
                rows.append(self.launch(request, count))
                budget.take_prefill(count)
        return rows

    def open(self, request: Request, lease: Lease) -> None:
        """Begin with what a lease just opened has of a request."""
        request.lease, request.status = lease, Status.RUNNING
        request.num_computed = lease.num_shared
        self._mark_shared(request)
        self._count_cached(request, lease.num_shared)
        self._cache.note_admitted(lease, request.tokens)

    def launch(self, request: Request, count: int) -> ScheduledRow:
        """Compute ``count`` more tokens of a request, whose lease has slots for them, and publish them."""
        assert request.lease is not None
        start, known = request.num_computed, request.num_tokens
        end = request.num_computed = start + count
        if end == known:
            request.sample_pos = end
        # Samples below the first unverified position would be dropped, so they are not taken.
        sample_from = max(start + 1, request.num_verified)
        score_from = score_to = request.num_prompt
        if start < request.num_prompt:
            score_from = min(max(start + 1, request.num_scored), request.num_prompt)
            score_to = max(score_from, min(end + 1, request.num_prompt))
            request.num_prefilled += min(end, request.num_prompt) - start
        row = ScheduledRow(request, start, count, request.epoch, request.lease.row, sample_from, score_from, score_to)
        self._counters.computed_tokens += count
        self._cache.publish(request.lease, request.tokens, request.num_sure)
        return row

    def _shorter(self, request: Request, later: Sequence[Request], waiting: WaitingQueue) -> int:
        """Return how many tokens those need that have less to compute than this prompt, and come after it."""
        running = sum(other.num_new for other in later if other.status is Status.RUNNING and other.num_new < request.num_new)
        room = Room(self._cache, self._estimate, self._running)
        return running + waiting.shorter(request, self._cache.page_table.num_free, room)

    def _secure(self, decodes: Sequence[Request]) -> None:
        """Send requests back until each of the others, all of which are behind, has a slot for its next token."""
        while True:
            need = sum(1 for request in decodes if request.status is Status.RUNNING)
            sent_back = None if self._cache.available(need) == need else self._victim(self._running)
            if sent_back is None:
                break
            self._send_back(sent_back)
        self._cache.make_room(need)

    def _victim(self, candidates: Sequence[Request]) -> Request | None:
        return victim(candidates, self._running, self._cache, self._estimate)

    def _find_slots(self, request: Request, count: int, extended: set[int]) -> bool:
        """Extend the request's lease, sending others back to the queue while slots are missing.

        Never one that this step extends already.  The best request by priority and arrival is never sent back, only passed
        over for a step, and alone it can have the whole pool: so something always moves.
        """
        assert request.lease is not None
        while not self._cache.extend(request.lease, count):
            sent_back = self._victim([other for other in self._running if other.uid not in extended])
            if sent_back is None:
                return False
            self._send_back(sent_back)
            if sent_back is request:
                return False
        extended.add(request.uid)
        return True

    def _adopt(self, request: Request) -> None:
        """Before each chunk: take over what somebody else has computed of this request meanwhile."""
        if request.prefilling and request.lease is not None:
            before = request.num_computed
            request.num_computed = self._cache.adopt(request.lease, request.matchable, before)
            if request.num_computed > before:
                self._mark_shared(request)
            self._count_cached(request, request.num_computed - before)

    def _mark_shared(self, request: Request) -> None:
        """All that a request has so far came from the cache: note it of whoever else holds it too."""
        request.num_shared = request.num_computed
        for other in self._running:
            shared = min(request.num_computed, other.num_computed)
            if other.num_shared < shared and self._cache.holds_same(request.lease, other.lease, shared):
                other.num_shared = shared

    def _count_cached(self, request: Request, num_tokens: int) -> None:
        if not request.is_rerun:
            self._counters.cached_prompt_tokens += num_tokens
            request.num_cached = max(request.num_cached, 0) + num_tokens
