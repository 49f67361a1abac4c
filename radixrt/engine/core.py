"""The engine core: scheduler, runner and cache behind six methods that speak tokens.

Synchronous and complete: whoever owns it calls ``step`` while ``has_work``.  It knows no text, socket, process or clock,
and is owned by exactly one thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from radixrt import attention
from radixrt.attention.base import AttentionBackend
from radixrt.attention.native import NativeAttention
from radixrt.cache.kv_pool import KVPool
from radixrt.cache.slots import PageTable
from radixrt.config import CacheConfig, EngineConfig, Hardware, ScheduleConfig, resolve
from radixrt.engine.assembly import build_scheduler
from radixrt.engine.cache_desk import CacheDesk
from radixrt.engine.grammars import LOOK_SECONDS, GrammarDesk, check_budget, compile_service
from radixrt.engine.kv_publisher import KVEventsConfig, KVPublisher
from radixrt.engine.questions import AnyAnswer, AnyQuestion, Done, Pause, Resume, ViewRequests
from radixrt.engine.request_view import view_requests
from radixrt.engine.step_loop import StepLoop
from radixrt.engine.step_profile import ProfiledStream, StepProfile
from radixrt.errors import ConfigError, GrammarError, InvalidSampling, Overloaded, PromptTooLong, RequestError
from radixrt.grammar import dormant
from radixrt.grammar.base import Grammar, GrammarState
from radixrt.grammar.budget import Closing
from radixrt.grammar.compile.service import CompileService, CompileStats
from radixrt.models import Model
from radixrt.models.config import ModelShape
from radixrt.models.native_llama import NativeLlama
from radixrt.runner.array_runner import ArrayRunner
from radixrt.runner.loader import load_model
from radixrt.runner.runner import ModelRunner, Runner
from radixrt.runner.stream import InlineStream, Stream, ThreadStream
from radixrt.schedule import waits
from radixrt.schedule.batching import build_batch, build_sampling, read_results
from radixrt.schedule.drafter import Drafter
from radixrt.schedule.masks import MaskArena
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import Scheduler
from radixrt.schedule.step import Counters, RowResult, ScheduledStep
from radixrt.types import EngineStats, GenerateRequest, GrammarStats, ModelInfo, TokenOutput

# Pool size chosen on a CPU when neither flag nor memory says less.
DEFAULT_CPU_TOKENS = 65_536
# Bytes of K/V that are committed before they are used, while there is nothing to do: the first prompts do not wait for the system
# to clear them.
COMMITTED_BYTES = 256 << 20


class BatchRunner:
    """Runs scheduled steps as batches of tensors."""

    def __init__(self, runner: Runner[Any], pages: PageTable, vocab_size: int, device: torch.device, counters: Counters) -> None:
        self.masks = MaskArena(vocab_size, counters)
        self.runner = runner
        self.pages = pages
        self.vocab_size = vocab_size
        self.device = device

    def forward(self, step: ScheduledStep) -> LaunchedBatch:
        """Queue the forward pass of a step."""
        return LaunchedBatch(self, step)


class LaunchedBatch:
    """A step whose forward pass is queued."""

    def __init__(self, owner: BatchRunner, step: ScheduledStep) -> None:
        self._owner = owner
        self._step = step
        self._batch = build_batch(step, owner.pages, owner.device)
        self._logits = owner.runner.forward(self._batch)

    def sample(self) -> None:
        """Queue the sampling; the step before has been committed."""
        sampling = build_sampling(self._step, self._owner.vocab_size, self._owner.device, self._owner.masks)
        self._samples = self._owner.runner.sample(self._batch, self._logits, sampling)

    def results(self) -> list[RowResult]:
        """Wait for the samples, and cut them into one result a row."""
        return read_results(self._step, self._samples.result())


class EngineCore:
    """Requests in, tokens out, one step at a time."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        config: EngineConfig,
        scheduler: Scheduler,
        runner: Runner[Any],
        pool: KVPool,
        device: torch.device,
        overlap: bool,
        profile: StepProfile | None = None,
        grammars: CompileService | None = None,
        random_seed: int | None = None,
    ) -> None:
        self.info = info
        self.config = config
        self._scheduler = scheduler
        self._runner = runner
        self._pool = pool
        self._random = random.Random(random_seed)
        events = KVEventsConfig.parse(config.cache.kv_events_config)
        publisher = None if events is None else KVPublisher(events, medium="GPU" if device.type == "cuda" else "CPU")
        self.kv_events = None if publisher is None else publisher.address
        self._desk = CacheDesk(
            scheduler.cache, pin_budget=config.cache.pin_budget, max_pin_ttl=config.cache.max_pin_ttl, publisher=publisher
        )
        self._grammars = None if grammars is None else GrammarDesk(
            grammars, self._queue, waiting_timeout=config.schedule.waiting_timeout
        )
        batches = BatchRunner(runner, scheduler.cache.page_table, info.vocab_size, device, scheduler.counters)
        self._profile = profile
        self._loop = StepLoop(scheduler, batches, overlap=overlap, span=None if profile is None else profile.span)

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Callable[[int, int, str], None] | None = None) -> EngineCore:
        """Load the model of a config and build everything around it.

        ``progress`` gets (bytes loaded, bytes in all, tensor name).  Raises ConfigError.
        """
        config = resolve(config, Hardware.detect())
        KVEventsConfig.parse(config.cache.kv_events_config)
        loaded = load_model(config.model, progress=progress)
        num_slots = config.cache.max_total_tokens or _pool_size(loaded.shape, config, Hardware.detect().memory_bytes)
        backend = attention.select_backend(config.model.attention_backend)
        core = cls.build(
            model=loaded.model, backend=backend, cache=config.cache, schedule=config.schedule, num_slots=num_slots,
            device=torch.device(config.model.device), grammars=partial(compile_service, config.model, config.grammar),
            jump_forward=not config.grammar.disable_jump_forward, random_seed=config.model.random_seed,
        )
        core.config = replace(
            config,
            model=replace(config.model, context_length=loaded.shape.context_length),
            cache=replace(config.cache, max_total_tokens=num_slots),
        )
        core.info = ModelInfo(
            model_path=config.model.model_path,
            architecture=loaded.shape.architecture,
            vocab_size=loaded.shape.vocab_size,
            context_length=loaded.shape.context_length,
            capacity_tokens=num_slots,
            eos_token_ids=core.info.eos_token_ids,
            dtype=config.model.dtype,
            attention_backend=config.model.attention_backend,
            load_seconds=loaded.seconds,
            kv_events=core.kv_events,
        )
        return core

    @classmethod
    def build(
        cls,
        *,
        model: Model,
        backend: AttentionBackend,
        cache: CacheConfig,
        schedule: ScheduleConfig,
        num_slots: int,
        device: torch.device,
        drafter: Drafter | None = None,
        grammars: Callable[[ModelInfo], CompileService] | None = None,
        jump_forward: bool = True,
        random_seed: int | None = None,
    ) -> EngineCore:
        """Build a core around a model.  The configs are resolved; without ``grammars`` no request may have one."""
        shape = model.shape
        num_rows = schedule.max_running_requests
        assert num_rows is not None, "the config is resolved"
        pool = KVPool(
            num_layers=shape.num_layers, num_slots=num_slots, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim,
            dtype=getattr(torch, cache.kv_cache_dtype), device=device,
        )
        scheduler = build_scheduler(
            cache, schedule, num_slots=num_slots, context_length=shape.context_length, drafter=drafter,
            jump_forward=jump_forward, random_seed=random_seed,
        )
        overlap = not schedule.disable_overlap_schedule
        # Kernels of other devices are asynchronous by themselves; on a CPU a thread makes them so.
        stream: Stream = ThreadStream() if overlap and device.type == "cpu" else InlineStream()
        profile = None if schedule.profile_steps is None else StepProfile(Path(schedule.profile_steps))
        if profile is not None:
            stream = ProfiledStream(stream, profile)
        runner: Runner[Any]
        if isinstance(model, NativeLlama) and isinstance(backend, NativeAttention):
            runner = ArrayRunner(model=model, pool=pool, stream=stream, num_rows=num_rows)
        else:
            runner = ModelRunner(model=model, pool=pool, backend=backend, stream=stream, num_rows=num_rows, device=device)
        info = ModelInfo(
            model_path="", architecture=shape.architecture, vocab_size=shape.vocab_size, context_length=shape.context_length,
            capacity_tokens=num_slots, eos_token_ids=tuple(token for token in shape.eos_token_ids if 0 <= token < shape.vocab_size),
        )
        return cls(
            info=info, config=EngineConfig(cache=cache, schedule=schedule), scheduler=scheduler, runner=runner, pool=pool, device=device,
            overlap=overlap, profile=profile, grammars=None if grammars is None else grammars(info), random_seed=random_seed,
        )

    def add(self, request: GenerateRequest) -> None:
        """Queue a request; raises RequestError when it can never run, and Overloaded when the queue is full."""
        info, sampling = self.info, request.sampling
        longest = min(info.context_length, info.capacity_tokens)
        if not request.prompt:
            raise RequestError("the prompt is empty", param="prompt", code="empty_prompt")
        if min(request.prompt) < 0 or max(request.prompt) >= info.vocab_size:
            raise RequestError(f"token ids must be in [0, {info.vocab_size - 1}]", param="prompt", code="invalid_token")
        if len(request.prompt) >= longest:
            raise PromptTooLong(
                f"the prompt has {len(request.prompt)} tokens; the maximum context length is {longest} tokens", param="prompt"
            )
        sampling.validate(info.vocab_size)
        if request.logprobs is not None:
            request.logprobs.validate(info.vocab_size, len(request.prompt))
        if sampling.grammar is None:
            self._queue(request, None, 0.0)
        elif self._grammars is None:
            raise GrammarError("This engine has no tokenizer, which constraints need.")
        elif self._scheduler.max_queued is not None and len(self._grammars) >= self._scheduler.max_queued:
            raise Overloaded(f"{len(self._grammars)} requests are waiting for a grammar, which is all that may")
        else:
            self._grammars.add(request, sampling.grammar, time.monotonic())

    def _queue(self, request: GenerateRequest, grammar: Grammar | None, waited: float) -> None:
        """Hand a request that was checked, with its grammar, to the scheduler; raises GrammarError and Overloaded."""
        info, sampling = self.info, request.sampling
        longest = min(info.context_length, info.capacity_tokens)
        max_new = longest if sampling.max_new_tokens is None else sampling.max_new_tokens
        stop_ids = frozenset() if sampling.ignore_eos else frozenset((*info.eos_token_ids, *sampling.stop_token_ids))
        if sampling.min_new_tokens and len(stop_ids) >= info.vocab_size:
            raise InvalidSampling("min_new_tokens with every token a stop token leaves nothing to generate", param="min_new_tokens")
        seed = self._random.getrandbits(63) if sampling.seed is None else sampling.seed
        max_length = min(len(request.prompt) + max_new, longest)
        state: GrammarState | None = None
        closing = None
        if grammar is not None and sampling.grammar is not None:
            room = max_length - len(request.prompt)
            check_budget(grammar, sampling.grammar, room)
            dormancy = sampling.grammar.options.dormancy
            if dormancy is None or self._grammars is None:
                state = grammar.new_state()
            else:
                state = dormant.wrap(grammar, dormancy, self._grammars.vocabulary, ignores_end=sampling.ignore_eos)
            if sampling.grammar.options.truncate != "hard" and room:
                closing = Closing(state, grammar.min_tokens)
                closing.begin(room)
        queued = Request(request, max_length=max_length, stop_ids=stop_ids, seed=seed, grammar=state, closing=closing)
        if waited:
            queued.waits[waits.GRAMMAR] = waited
        self._scheduler.add(queued, time.monotonic())

    def abort(self, uid: int) -> None:
        """End a request; its last output comes with a later step.  Idempotent."""
        if self._grammars is None or not self._grammars.abort(uid):
            self._scheduler.abort(uid)

    def flush(self) -> bool:
        """Empty the cache; False, with nothing done, unless idle."""
        flushed = not self.has_work() and self._scheduler.flush()
        self._desk.publish()
        return flushed

    def answer(self, question: AnyQuestion) -> AnyAnswer:
        """Answer a question, between steps.  Raises RequestError."""
        match question:
            case ViewRequests(limit):
                return view_requests(self._scheduler, limit, time.monotonic())
            case Pause(retract):
                self._scheduler.pause(retract=retract)
                return Done(True)
            case Resume():
                self._scheduler.resume()
                return Done(True)
        return self._desk.answer(question, time.monotonic())

    def has_work(self) -> bool:
        return self._loop.has_work() or (self._grammars is not None and self._grammars.has_news(time.monotonic()))

    @property
    def patience(self) -> float | None:
        """Seconds after which somebody who saw no work is to look again; None: when there is a command."""
        return LOOK_SECONDS if self._grammars is not None and len(self._grammars) else None

    def prepare(self) -> None:
        """Begin, in another thread, with what first requests would wait for: to be called when there is nothing to do."""
        threading.Thread(target=self._pool.commit, args=(COMMITTED_BYTES,), name="commit", daemon=True).start()
        if self._grammars is not None:
            self._grammars.prepare()

    def step(self) -> list[TokenOutput]:
        """Launch the next step and take in the one before (or, without overlap, itself).

        A step that fails ends its own requests; the third in a row raises EngineStopped.
        """
        now = time.monotonic()
        self._desk.tick(now)
        refused = [] if self._grammars is None else self._grammars.tick(now)
        outputs = self._loop.step(now)
        self._desk.publish()
        return refused + outputs

    def stats(self) -> EngineStats:
        """Count slots, requests and what has happened so far."""
        cache, counters = self._scheduler.cache, self._scheduler.counters
        tree = cache.tree.stats()
        grammars = CompileStats() if self._grammars is None else self._grammars.stats
        return EngineStats(
            capacity_tokens=cache.num_slots,
            free_tokens=cache.slots.num_free,
            cached_tokens=tree.evictable,
            locked_tokens=cache.num_slots - cache.slots.num_free - tree.evictable,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting) + (0 if self._grammars is None else len(self._grammars)),
            num_retracted=counters.retractions,
            num_preempted=counters.preemptions,
            num_timed_out=counters.timeouts,
            steps=self._loop.steps,
            failed_steps=self._loop.failed_steps,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            evicted_tokens=tree.evicted,
            tree_nodes=tree.num_nodes,
            num_pins=len(self._desk.pins),
            pinned_tokens=self._desk.pins.num_tokens,
            reuse_counts=list(self._desk.reuse.counts),
            reuse_seconds=self._desk.reuse.seconds,
            wait_seconds=dict(counters.wait_seconds),
            finished=counters.finished,
            aborted=counters.aborted,
            grammar=GrammarStats(
                compiled=grammars.compiled,
                compile_seconds=grammars.compile_seconds,
                wait_seconds=0.0 if self._grammars is None else self._grammars.wait_seconds,
                refused=grammars.refused,
                timed_out=grammars.timed_out,
                cache_hits=grammars.cache_hits,
                cached_bytes=grammars.cached_bytes,
                pending=grammars.pending,
                masked_rows=counters.masked_rows,
                mask_seconds=counters.mask_seconds,
                drafted_tokens=counters.drafted_tokens,
                accepted_drafts=counters.accepted_drafts,
                closed=counters.closed,
            ),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless every slot, row and request is accounted for."""
        self._scheduler.check_invariants()

    def close(self) -> None:
        """Let queued work end."""
        self._runner.close()
        self._desk.close()
        if self._profile is not None:
            self._profile.close()
        if self._grammars is not None:
            self._grammars.close()


def _pool_size(shape: ModelShape, config: EngineConfig, memory_bytes: int) -> int:
    per_slot = KVPool.bytes_per_slot(
        num_layers=shape.num_layers, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim,
        dtype=getattr(torch, config.cache.kv_cache_dtype),
    )
    fraction = config.cache.mem_fraction_static
    assert fraction is not None, "the config is resolved"
    fitting = int(memory_bytes * fraction) // per_slot
    if config.model.device == "cpu":
        fitting = min(fitting, max(DEFAULT_CPU_TOKENS, 2 * shape.context_length))
    if fitting < 1:
        raise ConfigError("no memory for a KV pool: give --max-total-tokens or a larger --mem-fraction-static")
    return fitting
