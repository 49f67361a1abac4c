"""The engine core: scheduler, runner and cache behind six methods that speak tokens.

Synchronous and complete: whoever owns it calls ``step`` while ``has_work``.  It knows no text, socket, process or clock,
and is owned by exactly one thread.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from radixrt import attention
from radixrt.attention.base import AttentionBackend
from radixrt.cache import eviction
from radixrt.cache.kv_pool import KVPool
from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.config import CacheConfig, EngineConfig, Hardware, ScheduleConfig, resolve
from radixrt.errors import ConfigError, EngineStopped, InvalidSampling, PromptTooLong, RequestError
from radixrt.models import Model
from radixrt.models.config import ModelShape
from radixrt.runner.loader import load_model
from radixrt.runner.runner import ModelRunner, Pending
from radixrt.runner.stream import InlineStream, ThreadStream
from radixrt.schedule import policy
from radixrt.schedule.batching import build_batch, build_sampling, read_results
from radixrt.schedule.drafter import Drafter
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import ScheduledStep, Scheduler
from radixrt.types import EngineStats, GenerateRequest, ModelInfo, TokenOutput

logger = logging.getLogger(__name__)

# Failed steps in a row after which the fault is the engine's and not one step's.
MAX_FAILED_STEPS = 3
# Pool size chosen on a CPU when neither flag nor memory says less.
DEFAULT_CPU_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that has been launched and not yet committed."""

    step: ScheduledStep
    samples: Pending


class EngineCore:
    """Requests in, tokens out, one step at a time."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        config: EngineConfig,
        scheduler: Scheduler,
        runner: ModelRunner,
        device: torch.device,
        overlap: bool,
        random_seed: int | None = None,
    ) -> None:
        self.info = info
        self.config = config
        self.overlap = overlap
        self._scheduler = scheduler
        self._runner = runner
        self._device = device
        self._random = random.Random(random_seed)
        self._in_flight: InFlight | None = None
        self._steps = self._failed_steps = self._failures_in_row = 0

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Callable[[int, int, str], None] | None = None) -> EngineCore:
        """Load the model of a config and build everything around it.

        ``progress`` gets (bytes loaded, bytes in all, tensor name).  Raises ConfigError.
        """
        config = resolve(config, Hardware.detect())
        loaded = load_model(config.model, progress=progress)
        num_slots = config.cache.max_total_tokens or _pool_size(loaded.shape, config, Hardware.detect().memory_bytes)
        backend = attention.select_backend(config.model.attention_backend)
        core = cls.build(
            model=loaded.model, backend=backend, cache=config.cache, schedule=config.schedule, num_slots=num_slots,
            device=torch.device(config.model.device), random_seed=config.model.random_seed,
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
        random_seed: int | None = None,
    ) -> EngineCore:
        """Build a core around a model.  The configs are resolved."""
        shape = model.shape
        num_rows = schedule.max_running_requests
        chunk = schedule.chunked_prefill_size
        assert num_rows is not None and chunk is not None, "the config is resolved"
        pool = KVPool(
            num_layers=shape.num_layers, num_slots=num_slots, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim,
            dtype=getattr(torch, cache.kv_cache_dtype), device=device,
        )
        prefix_cache = PrefixCache(
            tree=RadixTree(eviction.select(cache.radix_eviction_policy)), num_slots=num_slots, num_rows=num_rows,
            max_length=min(shape.context_length, num_slots), enabled=not cache.disable_radix_cache,
        )
        scheduler = Scheduler(
            cache=prefix_cache, policy=policy.select(schedule.schedule_policy), max_running=num_rows, drafter=drafter,
            token_budget=chunk if chunk > 0 else num_rows * shape.context_length,
        )
        overlap = not schedule.disable_overlap_schedule
        # Kernels of other devices are asynchronous by themselves; on a CPU a thread makes them so.
        stream = ThreadStream() if overlap and device.type == "cpu" else InlineStream()
        runner = ModelRunner(model=model, pool=pool, backend=backend, stream=stream, num_rows=num_rows, device=device)
        info = ModelInfo(
            model_path="", architecture=shape.architecture, vocab_size=shape.vocab_size, context_length=shape.context_length,
            capacity_tokens=num_slots, eos_token_ids=tuple(token for token in shape.eos_token_ids if 0 <= token < shape.vocab_size),
        )
        return cls(
            info=info, config=EngineConfig(cache=cache, schedule=schedule), scheduler=scheduler, runner=runner, device=device,
            overlap=overlap, random_seed=random_seed,
        )

    def add(self, request: GenerateRequest) -> None:
        """Queue a request; raises RequestError when it can never run."""
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
        max_new = longest if sampling.max_new_tokens is None else sampling.max_new_tokens
        stop_ids = frozenset() if sampling.ignore_eos else frozenset((*info.eos_token_ids, *sampling.stop_token_ids))
        if sampling.min_new_tokens and len(stop_ids) >= info.vocab_size:
            raise InvalidSampling("min_new_tokens with every token a stop token leaves nothing to generate", param="min_new_tokens")
        seed = self._random.getrandbits(63) if sampling.seed is None else sampling.seed
        self._scheduler.add(Request(request, max_length=min(len(request.prompt) + max_new, longest), stop_ids=stop_ids, seed=seed))

    def abort(self, uid: int) -> None:
        """End a request; its last output comes with a later step.  Idempotent."""
        self._scheduler.abort(uid)

    def flush(self) -> bool:
        """Empty the cache; False, with nothing done, unless idle."""
        return not self.has_work() and self._scheduler.flush()

    def has_work(self) -> bool:
        return self._in_flight is not None or self._scheduler.has_work()

    def step(self) -> list[TokenOutput]:
        """Launch the next step and take in the one before (or, without overlap, itself).

        A step that fails ends its own requests; the third in a row raises EngineStopped.
        """
        try:
            outputs = self._step()
        except Exception as error:
            return self._fail(self._take_in_flight(), error)
        self._steps += 1
        return outputs

    def _step(self) -> list[TokenOutput]:
        step = self._scheduler.schedule()  # decide: slots are allocated, prefixes published
        if not step.rows:
            return self._commit_in_flight() + self._scheduler.take_ended()
        batch = build_batch(step, self._scheduler.cache.page_table, self._device)
        logits = self._runner.forward(batch)  # queued on the stream
        outputs = self._commit_in_flight()  # host work of the step before hides under that forward
        sampling = build_sampling(step, self.info.vocab_size, self._device)  # needs the tokens just committed
        self._in_flight = InFlight(step, self._runner.sample(batch, logits, sampling))  # queued on the stream
        if not self.overlap:
            outputs += self._commit_in_flight()
        return outputs + self._scheduler.take_ended()

    def _take_in_flight(self) -> InFlight | None:
        taken, self._in_flight = self._in_flight, None
        return taken

    def _commit_in_flight(self) -> list[TokenOutput]:
        flight = self._take_in_flight()
        if flight is None:
            return []
        try:
            results = read_results(flight.step, flight.samples.result())
            outputs = self._scheduler.commit(flight.step, results)
        except Exception as error:
            return self._fail(flight, error)
        self._failures_in_row = 0
        return outputs

    def _fail(self, flight: InFlight | None, error: Exception) -> list[TokenOutput]:
        if flight is not None and all(row.is_void for row in flight.step.rows):
            return []  # it was launched on top of a step that failed, and went down with it
        self._failed_steps += 1
        self._failures_in_row += 1
        logger.error("a step failed: %s", json.dumps(self._summary(flight)), exc_info=error)
        if self._failures_in_row >= MAX_FAILED_STEPS:
            raise EngineStopped(f"{self._failures_in_row} steps in a row failed: {type(error).__name__}") from error
        if flight is None:  # the host side broke before anything was launched: nothing it held can be trusted
            return self._scheduler.fail_all("internal error")
        return self._scheduler.fail(flight.step, "internal error")

    def _summary(self, flight: InFlight | None) -> dict[str, object]:
        """What the log may say of a failed step: ids and counts, no tokens."""
        rows = [] if flight is None else [(r.request.uid, r.start, r.count, r.num_samples) for r in flight.step.rows]
        return {"rows": rows, "running": len(self._scheduler.running), "waiting": len(self._scheduler.waiting)}

    def stats(self) -> EngineStats:
        """Count slots, requests and what has happened so far."""
        cache, counters = self._scheduler.cache, self._scheduler.counters
        tree = cache.tree.stats()
        return EngineStats(
            capacity_tokens=cache.num_slots,
            free_tokens=cache.slots.num_free,
            cached_tokens=tree.evictable,
            locked_tokens=cache.num_slots - cache.slots.num_free - tree.evictable,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_retracted=counters.retractions,
            steps=self._steps,
            failed_steps=self._failed_steps,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            evicted_tokens=tree.evicted,
            finished=counters.finished,
            aborted=counters.aborted,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless every slot, row and request is accounted for."""
        self._scheduler.check_invariants()

    def close(self) -> None:
        """Let queued work end."""
        self._runner.close()


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
