"""Scheduler, tree and pool of slots put together from resolved configs: the same for a model and for the simulator."""

from __future__ import annotations

from radixrt.cache import select_tree
from radixrt.cache.prefix_cache import PrefixCache
from radixrt.config import CacheConfig, ScheduleConfig
from radixrt.schedule import policy
from radixrt.schedule.deadlines import Deadlines
from radixrt.schedule.delayer import PrefillDelayer
from radixrt.schedule.drafter import Drafter
from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.priority import Priorities
from radixrt.schedule.scheduler import Scheduler

NATIVE_TREE = {"auto": None, "python": False, "native": True}


def build_scheduler(
    cache: CacheConfig, schedule: ScheduleConfig, *, num_slots: int, context_length: int, drafter: Drafter | None = None,
    jump_forward: bool = True, random_seed: int | None = None,
) -> Scheduler:
    """Build a scheduler over an empty cache of ``num_slots`` tokens.  The configs are resolved."""
    num_rows = schedule.max_running_requests
    chunk = schedule.chunked_prefill_size
    assert num_rows is not None and chunk is not None, "the config is resolved"
    prefix_cache = PrefixCache(
        tree=select_tree(cache.radix_eviction_policy, cache.eviction_options(), native=NATIVE_TREE[cache.radix_tree]),
        num_slots=num_slots, num_rows=num_rows, max_length=min(context_length, num_slots), enabled=not cache.disable_radix_cache,
    )
    token_budget = chunk if chunk > 0 else num_rows * context_length
    return Scheduler(
        cache=prefix_cache,
        policy=policy.select(schedule.schedule_policy, max_passes=schedule.lpm_max_passes, seed=random_seed),
        token_budget=token_budget,
        max_prefill_tokens=schedule.max_prefill_tokens,
        whole_prompts=chunk < 0,
        max_running=num_rows,
        max_queued=schedule.max_queued_requests or None,
        decode_share=schedule.decode_share,
        priorities=_priorities(schedule),
        estimate=OutputEstimate(schedule.schedule_conservativeness),
        deadlines=Deadlines(waiting=schedule.waiting_timeout, running=schedule.running_timeout),
        delayer=_delayer(schedule, token_budget),
        drafter=drafter,
        jump_forward=jump_forward,
        token_cost=schedule.draft_token_cost or 0.0,
    )


def _priorities(schedule: ScheduleConfig) -> Priorities | None:
    if not schedule.enable_priority_scheduling:
        return None
    return Priorities(
        low_first=schedule.schedule_low_priority_values_first,
        aging=schedule.priority_aging_seconds or None,
        preemption=None if schedule.disable_priority_preemption else schedule.priority_scheduling_preemption_threshold,
    )


def _delayer(schedule: ScheduleConfig, token_budget: int) -> PrefillDelayer | None:
    """A prompt is small when it fills less than a quarter of a step."""
    if not schedule.enable_prefill_delayer:
        return None
    milliseconds = schedule.prefill_delayer_max_delay_ms
    return PrefillDelayer(
        min_tokens=max(1, min(token_budget, schedule.max_prefill_tokens) // 4),
        max_passes=schedule.prefill_delayer_max_delay_passes,
        max_seconds=None if milliseconds is None else milliseconds / 1000,
    )
