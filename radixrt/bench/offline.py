"""A workload against the real scheduler, tree and pool, with a model that only takes time.

Time is virtual: a step lasts as long as the cost model says, and the host takes no time, so that a run is the same on every
machine.  Nothing is computed; each call answers the tokens that its seed and its place in the workload say.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

import numpy as np

from radixrt.bench.figures import Record, Run
from radixrt.bench.optimal import Served
from radixrt.bench.program import Player, Started, Tokens, Workload
from radixrt.bench.workloads import FIRST_TOKEN
from radixrt.config import EngineConfig, Hardware, resolve
from radixrt.engine.assembly import build_scheduler
from radixrt.engine.step_loop import StepLoop
from radixrt.errors import ConfigError, InternalError, Overloaded
from radixrt.schedule.request import Request
from radixrt.schedule.step import RowResult, ScheduledStep
from radixrt.sim.cost import StepCost, Work
from radixrt.types import FinishReason, GenerateRequest, SamplingParams, TokenOutput

STOP_TOKEN = 2
# Passes in a row that launch nothing while requests wait: the scheduler has come to rest with work to do.
MAX_IDLE_PASSES = 1000
IDLE_SECONDS = 0.001


# Near Llama-7B in float16 on a card of 125 TFLOP/s and 600 GB/s.
CARD = StepCost(step=0.022, prefill_token=0.00022, decode_row=0.0001, context_token=0.9e-6)


class VirtualDevice:
    """Runs steps one after the other in virtual time."""

    def __init__(self, cost: StepCost) -> None:
        self.now = 0.0
        self.seen: dict[int, int] = {}  # uid -> number of the first step that ran it
        self.num_steps = 0
        self._cost = cost
        self._free_at = 0.0
        self._answers: dict[int, tuple[int, Tokens[int]]] = {}

    def answer(self, uid: int, num_prompt: int, output: Tokens[int]) -> None:
        """Say what a request will generate."""
        self._answers[uid] = (num_prompt, output)

    def forward(self, step: ScheduledStep) -> VirtualStep:
        """Queue a step; its results will be there when everything before it, and it, has taken its time."""
        for row in step.rows:
            self.seen.setdefault(row.request.uid, self.num_steps)
        self._free_at = max(self._free_at, self.now) + self._cost.seconds(Work.of(step))
        return VirtualStep(self, step, self._free_at)

    def results(self, step: ScheduledStep) -> list[RowResult]:
        """The tokens that the rows of a step sample."""
        results = []
        for row in step.rows:
            num_prompt, output = self._answers[row.request.uid]
            places = range(row.sample_from - num_prompt, row.end + 1 - num_prompt)
            results.append(RowResult([output[at] if at < len(output) else FIRST_TOKEN for at in places]))
        return results


class VirtualStep:
    """A step on its way."""

    def __init__(self, device: VirtualDevice, step: ScheduledStep, ready_at: float) -> None:
        self._device = device
        self._step = step
        self._ready_at = ready_at

    def sample(self) -> None:
        """The tokens do not depend on when they are sampled."""

    def results(self) -> list[RowResult]:
        """Let the time pass that the step still needs."""
        self._device.now = max(self._device.now, self._ready_at)
        return self._device.results(self._step)


def run(workload: Workload, config: EngineConfig, *, seed: int = 0, cost: StepCost = CARD) -> Run:
    """Play a workload to its end and return what happened to each call.  Raises ConfigError as ``prepare`` does."""
    config = prepare(workload, config)
    assert config.cache.max_total_tokens is not None
    return _Play(workload, config, config.cache.max_total_tokens, seed, cost).run()


def prepare(workload: Workload, config: EngineConfig) -> EngineConfig:
    """Return the config that a workload runs with: resolved, and with its own pool where ``config`` names none.

    Raises ConfigError when the config cannot work, or a call does not fit the pool.
    """
    pool = config.cache.max_total_tokens or workload.pool
    if workload.longest > pool:
        raise ConfigError(f"workload {workload.name} has a call of {workload.longest} tokens, which a pool of {pool} cannot hold")
    beside_the_host = Hardware(num_cpus=2, compute_threads=1)
    return resolve(replace(config, cache=replace(config.cache, max_total_tokens=pool)), beside_the_host)


class _Play:
    """One run: a player, a scheduler, and a device whose clock is the only one."""

    def __init__(self, workload: Workload, config: EngineConfig, pool: int, seed: int, cost: StepCost) -> None:
        self._workload = workload
        self._config = config
        self._pool = pool
        self._seed = seed
        self._device = VirtualDevice(cost)
        self._player = Player(workload)
        self._scheduler = build_scheduler(config.cache, config.schedule, num_slots=pool, context_length=workload.longest)
        self._loop = StepLoop(self._scheduler, self._device, overlap=not config.schedule.disable_overlap_schedule)
        self._open: dict[int, _Open] = {}
        self._records: list[Record] = []
        self._errors = 0

    def run(self) -> Run:
        device, player, loop = self._device, self._player, self._loop
        idle = 0
        while not player.done:
            for started in player.take_due(device.now):
                self._send(started)
            due = player.next_due()
            if not loop.has_work():
                assert due is not None or player.done, "some call waits for one that never ends"
                device.now = device.now if due is None else due
                continue
            before = device.now
            device.num_steps = loop.steps
            for output in loop.step(device.now):
                self._take(output)
            idle = idle + 1 if device.now == before else 0
            if idle > 1:  # the scheduler waits for time to pass
                device.now = min(device.now + IDLE_SECONDS, device.now + IDLE_SECONDS if due is None else due)
            assert idle < MAX_IDLE_PASSES, "requests wait, and the scheduler starts none"
        scheduler, config = self._scheduler, self._config
        return Run(
            workload=self._workload.name, policy=config.schedule.schedule_policy, eviction=config.cache.radix_eviction_policy,
            pool=self._pool, records=self._records, seconds=device.now, steps=loop.steps,
            computed_tokens=scheduler.counters.computed_tokens, evicted_tokens=scheduler.cache.tree.stats().evicted, errors=self._errors,
        )

    def _send(self, started: Started) -> None:
        output = _output(started, self._seed)
        try:
            self._scheduler.add(_request(started), self._device.now)
        except Overloaded:
            self._errors += 1
            self._player.end(started, (), self._device.now)
            return
        self._open[started.uid] = _Open(started, output, self._loop.steps)
        self._device.answer(started.uid, len(started.prompt), output)

    def _take(self, output: TokenOutput) -> None:
        call, now = self._open[output.uid], self._device.now
        if output.tokens and call.first_token is None:
            call.first_token = now
        if output.finish is None:
            return
        del self._open[output.uid]
        if output.finish.status == InternalError.status:
            raise InternalError(f"workload {self._workload.name}: {output.finish.message}")
        if output.finish.reason is FinishReason.ABORT:
            self._errors += 1
            self._player.end(call.started, (), now)
            return
        self._records.append(call.record(self._device, output.cached_tokens, output.num_retractions))
        self._player.end(call.started, call.output, now)


def sequences(workload: Workload, seed: int = 0) -> list[Served]:
    """Return the prompt and output of every call, in the order in which they would run if each took no time."""
    player = Player(workload)
    served = []
    while not player.done:
        due = player.next_due()
        assert due is not None, "some call waits for one that never ends"
        for started in player.take_due(due):
            output = _output(started, seed)
            served.append(Served(started.prompt + output, len(started.prompt), started.call.namespace))
            player.end(started, output, due)
    return served


@dataclass(slots=True)
class _Open:
    """A call that has been sent and has not ended."""

    started: Started
    output: Tokens[int]
    added_at: int
    first_token: float | None = None

    def record(self, device: VirtualDevice, cached: int, retractions: int) -> Record:
        started = self.started
        first_step = device.seen.pop(started.uid)
        return Record(
            kind=started.call.kind, due=started.due, first_token=device.now if self.first_token is None else self.first_token,
            ended=device.now, num_prompt=len(started.prompt), cached=cached, passes=first_step - self.added_at,
            retractions=retractions, order=first_step, tokens=started.prompt + self.output, namespace=started.call.namespace,
        )


def _output(started: Started, seed: int) -> Tokens[int]:
    """What a call generates; the last token stops it when it could have gone on."""
    call = started.call
    if call.output is not None:
        return call.output
    rng = np.random.Generator(np.random.PCG64([seed, started.program, started.index]))
    output = array("i", rng.integers(FIRST_TOKEN, 32_000, call.num_output, dtype=np.int32).tobytes())
    if 0 < call.num_output < call.max_new_tokens:
        output[-1] = STOP_TOKEN
    return output


def _request(started: Started) -> Request:
    call = started.call
    sampling = SamplingParams(max_new_tokens=call.max_new_tokens, temperature=0.0)
    request = GenerateRequest(uid=started.uid, prompt=started.prompt.tolist(), sampling=sampling, namespace=call.namespace)
    return Request(request, max_length=len(started.prompt) + call.max_new_tokens, stop_ids=frozenset({STOP_TOKEN}))

