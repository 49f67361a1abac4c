"""The system under test, and every promise checked on the way.

After each step: every slot is accounted for, every token is the one that the plain model gives, a request that ends does
so once and for the right reason, a cancelled one ends with the next step, nobody is passed over too often, and something
moves while there is work.  The whole ledger is walked every ``check_every`` steps and around whatever is rare; the counts
are compared always.
"""

from __future__ import annotations

import math
import random
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from radixrt.cache.kv_events import BlockLog
from radixrt.cache.pins import PinBoard
from radixrt.engine.assembly import build_scheduler
from radixrt.engine.grammars import GrammarDesk
from radixrt.engine.step_loop import MAX_FAILED_STEPS
from radixrt.engine.stream import ended_by
from radixrt.errors import EngineStopped, GrammarError, Overloaded, RequestError
from radixrt.grammar.base import Grammar
from radixrt.schedule.request import Request, Status
from radixrt.schedule.step import ScheduledStep
from radixrt.schedule.waits import GRAMMAR
from radixrt.sim.answer import Answer
from radixrt.sim.compiler import SimulatedCompiler
from radixrt.sim.cost import StepCost, Work
from radixrt.sim.fairness import Fairness
from radixrt.sim.faults import CandidLoop, Faults, FaultyAllocator, FaultyGrammar, FaultyTree
from radixrt.sim.history import Settings
from radixrt.sim.mirror import Mirror
from radixrt.sim.model import VOCAB_SIZE, HashModel, Text
from radixrt.sim.runner import SimulatedRunner, SimulatedStep
from radixrt.types import FinishReason, GenerateRequest, Namespace, SamplingParams

# Steps without a token computed or an answer ended, while there is work, after which the scheduler counts as stuck.
STUCK_AFTER = 1000
BETWEEN_PASSES = 1e-3
# Longest that virtual time moves between two passes.
MOST_SECONDS = 12.0
BLOCK_SIZE = 4
NAMESPACES = (Namespace("0"), Namespace("1"))


class OracleDrafter:
    """Guesses what a request of seed 0 without a namespace is given next; is wrong about others, and at random."""

    def __init__(self, model: HashModel, rng: random.Random) -> None:
        self._model = model
        self._rng = rng

    def draft(self, tokens: array[int], max_tokens: int) -> list[int]:
        count = min(max_tokens, self._rng.randrange(5))
        if not count:
            return []
        text = Text(self._model, tokens, 0, 0)
        for _ in range(count):
            text.push(text.next_token(None) if self._rng.random() < 0.8 else self._rng.randrange(VOCAB_SIZE))
        return text.tokens[len(tokens) :]


@dataclass(frozen=True, slots=True)
class Tally:
    """What some histories did; adds up."""

    histories: int = 0
    steps: int = 0
    requests: int = 0
    computed_tokens: int = 0
    retractions: int = 0
    faults: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class World:
    """A scheduler with its cache, a step loop and a fake device; AssertionError says which promise broke."""

    def __init__(self, settings: Settings, *, check_every: int = 16) -> None:
        self.settings = settings
        self.check_every = check_every
        self.now = 0.0
        self.steps = 0
        self.stopped = False
        self.faults = Faults()
        self.model = hash_model(settings.context_length)
        self.answers: list[Answer] = []  # by uid
        self.open: dict[int, Answer] = {}
        self._requests: dict[int, tuple[Request, int]] = {}  # with the number of steps that had failed when it arrived
        self._rng = random.Random(settings.seed)
        self._scheduler = build_scheduler(
            settings.cache, settings.schedule, num_slots=settings.num_slots, context_length=settings.context_length,
            drafter=OracleDrafter(self.model, self._rng) if settings.drafts else None, random_seed=settings.seed,
        )
        self._scheduler.verifier.jump_forward = settings.jump_forward
        cache = self._scheduler.cache
        cache.blocks = BlockLog(settings.num_slots, block_size=BLOCK_SIZE)
        self._mirror = Mirror(cache.blocks)
        if settings.faults:
            cache.slots = FaultyAllocator(settings.num_slots, self.faults)
            cache.tree = FaultyTree(cache.tree, self.faults)
        self._pins = cache.pins = PinBoard(
            cache.tree, budget=int(settings.num_slots * settings.cache.pin_budget), max_ttl=settings.cache.max_pin_ttl
        )
        self._runner = SimulatedRunner(
            self.model, cache.page_table, settings.num_slots, is_late=lambda: self._rng.random() < settings.lateness, faults=self.faults
        )
        self._compiler = SimulatedCompiler()
        self._desk = GrammarDesk(self._compiler, self._queue, waiting_timeout=settings.schedule.waiting_timeout)
        self._loop = CandidLoop(self._scheduler, self, overlap=settings.overlap)
        self._cost = StepCost()
        self._fairness = Fairness(settings.schedule)
        self._cancelled: list[Answer] = []  # must end with the next step
        self._extended: set[int] = set()  # whom the pass at hand extends, and who runs then
        self._running: set[int] = set()
        self._num_available = 0  # slots left then
        self._quiet_steps = 0
        self._check_next = True

    def add(self, answer: Answer, *, priority: int, routing_key: str) -> None:
        """Queue the request of an answer, or refuse it."""
        assert answer.uid == len(self.answers)
        spec = None
        if answer.choices is not None:
            spec = self._compiler.plan(answer.choices, seconds=answer.compile_seconds, refused=answer.refused)
        request = GenerateRequest(
            uid=answer.uid, prompt=answer.text.tokens.copy(), sampling=SamplingParams(temperature=0.0, grammar=spec),
            namespace=NAMESPACES[answer.text.namespace], logprobs=answer.logprobs, priority=priority, routing_key=routing_key,
        )
        self.answers.append(answer)
        try:
            if spec is None:
                self._queue(request, None, 0.0)
            else:
                self._desk.add(request, spec, self.now)
        except (GrammarError, Overloaded) as error:
            answer.finish = ended_by(error)
            assert answer.finish.status == Overloaded.status or answer.refused, "a grammar that compiles is taken"
        else:
            self.open[answer.uid] = answer

    def _queue(self, request: GenerateRequest, grammar: Grammar | None, waited: float) -> None:
        """Hand a request whose grammar is there to the scheduler, as the engine core does."""
        answer = self.answers[request.uid]
        state = None if answer.choices is None else FaultyGrammar(answer.choices, self.faults)
        assert grammar is answer.choices, "who waits for a grammar gets that one"
        num_waiting = len(self._scheduler.waiting)
        queued = Request(request, max_length=answer.max_length, stop_ids=answer.stop_ids, seed=answer.text.seed, grammar=state)
        if waited:
            queued.waits[GRAMMAR] = waited
        try:
            self._scheduler.add(queued, self.now)
        except Overloaded:
            assert 0 < self.settings.schedule.max_queued_requests <= num_waiting, "a queue that has room takes more"
            raise
        self._requests[answer.uid] = queued, self._loop.failed_steps
        self._fairness.arrived(answer.uid, num_waiting)

    def abort(self, uid: int) -> None:
        """Cancel a request, whatever has become of it."""
        answer = self.answers[uid]
        if answer.finish is None:
            answer.is_cancelled = True
            self._cancelled.append(answer)
            self._check_next = True
        if not self._desk.abort(uid):
            self._scheduler.abort(uid)

    def flush(self) -> None:
        """Empty the cache if nobody is here, but for those whose grammar is being compiled."""
        if not self._has_work():
            assert len(self.open) == len(self._desk), "whoever is not answered is work"
            assert self._scheduler.flush(), "an idle cache can be emptied"
            self._check_next = True

    def pin(self, name: str, text: Text, ttl: float) -> None:
        """Pin what is cached of a text."""
        try:
            self._pins.pin(name, array("i", text.tokens), namespace=NAMESPACES[text.namespace], ttl=ttl, now=self.now)
        except RequestError:
            assert len(text.tokens) > self._pins.budget, "a pin within the budget is taken"
        self._check_next = True

    def unpin(self, name: str) -> None:
        self._pins.unpin(name)
        self._check_next = True

    def drop_tail(self, text: Text, keep: int) -> None:
        """Forget the end of a text as far as nobody else needs it."""
        self._scheduler.cache.drop_tail(array("i", text.tokens), NAMESPACES[text.namespace], keep)
        self._check_next = True

    def step(self) -> None:
        """One pass of the step loop, if there is work, and what is promised after it."""
        self.now += BETWEEN_PASSES
        if not self._has_work():
            return
        self.steps += 1
        refused = self._desk.tick(self.now)
        self._pins.tick(self.now)
        counters = self._scheduler.counters
        before = counters.computed_tokens, counters.retractions, self.faults.count
        decoding = [request for request in self._scheduler.running if request.num_new > 0 and not request.prefilling]
        self._extended, self._num_available = set(), 0
        self.faults.on = True
        try:
            outputs = refused + self._loop.step(self.now)
        except EngineStopped:
            assert self._loop.failed_steps >= MAX_FAILED_STEPS, "only failed steps in a row stop the engine"
            self.stopped = True
            return
        finally:
            self.faults.on = False
        for output in outputs:
            answer = self.answers[output.uid]
            answer.take(output)
            if answer.finish is not None:
                self._end(answer)
        assert all(answer.finish is not None for answer in self._cancelled), "a cancelled request ends with the next step"
        self._cancelled.clear()
        self._fairness.passed(self._extended, self._running)
        computed, retractions, faults = before
        self._quiet_steps = 0 if outputs or counters.computed_tokens > computed else self._quiet_steps + 1
        assert self._quiet_steps < STUCK_AFTER, "nothing moves though there is work"
        is_calm = counters.retractions == retractions and self.faults.count == faults
        if is_calm:
            self._check_decodes(decoding)
        if self._check_next or not is_calm or self.steps % self.check_every == 0:
            self._full_check()
        else:
            self._check_counts()

    def drain(self) -> None:
        """Let everything come to rest, and check that nothing is held and everybody was answered."""
        self.faults.disarm()
        while not self.stopped and (self.open or self._has_work()):
            if not self._has_work():
                assert math.isfinite(self._compiler.soonest), "whoever is not answered is work"
                self.now = max(self.now, self._compiler.soonest)
            self.step()
        if self.stopped:
            return
        assert not self._has_work() and not len(self._desk) and not self._compiler.num_wanted, "nothing waits any more"
        self._full_check()
        cache, settings = self._scheduler.cache, self.settings
        stats = cache.tree.stats()
        assert stats.pinned == self._pins.num_tokens, "pins are of cached tokens"
        assert stats.locked == 0 and cache.slots.num_free + stats.evictable == settings.num_slots, "nothing is held at rest"
        assert self._scheduler.flush() and cache.slots.num_free == settings.num_slots, "an idle cache can be emptied"

    def tally(self) -> Tally:
        counters = self._scheduler.counters
        return Tally(
            histories=1, steps=self.steps, requests=len(self.answers), computed_tokens=counters.computed_tokens,
            retractions=counters.retractions, faults=self.faults.count,
        )

    def digest(self) -> int:
        """A number that two runs of one history share."""
        seen = [(answer.uid, answer.text.context, answer.finish) for answer in self.answers]
        return zlib.crc32(repr((self.steps, seen)).encode())

    def forward(self, step: ScheduledStep) -> SimulatedStep:
        """Run a step on the fake device, and let it take its time."""
        scheduler = self._scheduler
        self.now += self._cost.seconds(Work.of(step))
        self._extended = {row.request.uid for row in step.rows}
        self._running = {request.uid for request in scheduler.running}
        self._num_available = scheduler.cache.num_available
        assert len(self._extended) == len(step.rows), "a request has one row in a step"
        assert len(self._running) <= scheduler.max_running
        assert sum(row.count for row in step.rows) <= scheduler.token_budget, "a step keeps to its budget"
        return self._runner.forward(step)

    def _has_work(self) -> bool:
        self._compiler.advance(self.now)
        return self._loop.has_work() or self._desk.has_news(self.now)

    def _end(self, answer: Answer) -> None:
        finish, schedule = answer.finish, self.settings.schedule
        assert finish is not None
        del self.open[answer.uid]
        self._fairness.left(answer.uid)
        if finish.reason is FinishReason.ABORT:
            age = self.now - answer.arrived
            is_right = {
                None: answer.is_cancelled,
                400: answer.refused,
                429: schedule.max_queued_requests > 0 and (schedule.enable_priority_scheduling or answer.choices is not None),
                500: self.faults.count > answer.faults_before,
                503: any(limit is not None and age >= limit for limit in (schedule.waiting_timeout, schedule.running_timeout)),
            }
            assert is_right[finish.status], f"nothing explains that request {answer.uid} ends with {finish}"
        else:
            answer.check_complete()
        request, failed_steps = self._requests.pop(answer.uid, (None, 0))
        if request is None:
            assert answer.choices is not None and finish.reason is FinishReason.ABORT, "only a grammar keeps a request from the queue"
        elif request.admitted is not None and not request.num_retractions and self._loop.failed_steps == failed_steps:
            waited = request.admitted - answer.arrived
            assert abs(sum(request.waits.values()) - waited) < 1e-6, "every second of waiting has a reason"

    def _check_decodes(self, decoding: Sequence[Request]) -> None:
        """Nothing holds a running stream back, as long as there are slots, drafts included, and a place in the step for each."""
        scheduler = self._scheduler
        if len(decoding) <= scheduler.token_budget and self._num_available > scheduler.verifier.max_draft:
            for request in decoding:
                assert request.uid in self._extended or request.status is not Status.RUNNING, f"request {request.uid} is held back"

    def _check_counts(self) -> None:
        scheduler, cache = self._scheduler, self._scheduler.cache
        stats = cache.tree.stats()
        own = sum(request.lease.length - request.lease.num_shared for request in scheduler.running if request.lease is not None)
        assert cache.slots.num_free + own + stats.evictable + stats.locked == cache.num_slots, "a slot is held twice or by nobody"

    def _full_check(self) -> None:
        scheduler = self._scheduler
        scheduler.check_invariants()
        self._mirror.follow()
        self._check_tree()
        assert self._pins.num_tokens <= self._pins.budget, "pins keep to their share"
        limit = self.settings.schedule.waiting_timeout
        if limit is not None:
            oldest = min((request.arrived for request in scheduler.waiting if request.admitted is None), default=self.now)
            assert self.now - oldest <= limit + MOST_SECONDS, "who waits too long is told so"
        self._check_next = False

    def _check_tree(self) -> None:
        """Every node is locked once for each lease that ends at it or below, and the mirror has the blocks that are stored."""
        tree = self._scheduler.cache.tree
        nodes = {node["handle"]: node for namespace in NAMESPACES for node in tree.describe(namespace)}
        locks = dict.fromkeys(nodes, 0)
        for request in self._scheduler.running:
            assert request.lease is not None
            at: int | None = request.lease.node
            while at in nodes:
                locks[at] += 1
                at = nodes[at]["parent"]
        ends: dict[int | None, int] = {None: 0}
        num_blocks = 0
        for handle, node in nodes.items():  # parents before children
            start = ends[node["parent"]]
            ends[handle] = end = start + node["tokens"]
            num_blocks += end // BLOCK_SIZE - start // BLOCK_SIZE
            assert node["locks"] == locks[handle], "a lock belongs to one lease"
        assert num_blocks == len(self._mirror.blocks), "whoever follows the events knows what is stored"


@lru_cache(maxsize=8)
def hash_model(context_length: int) -> HashModel:
    return HashModel(context_length)
