"""What a simulated history is made of: settings, and operations drawn from a seed.

An operation is a name and a number.  Whatever it means is decided by the number and by what the world holds when it comes,
so that a history stays a history when operations are taken out of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from radixrt.config import (
    CACHE_AWARE_POLICIES,
    EVICTION_POLICIES,
    PRIORITY_POLICIES,
    SCHEDULE_POLICIES,
    CacheConfig,
    EngineConfig,
    Hardware,
    ScheduleConfig,
    resolve,
)

Operation = tuple[str, int]

OPERATIONS: dict[str, float] = {
    "step": 0.58,
    "arrive": 0.16,  # a new prompt, maybe with a preamble that others have
    "follow": 0.05,  # the next turn of an earlier request: its prompt, its output and more
    "twin": 0.03,  # a prompt once more
    "abort": 0.04,
    "disconnect": 0.03,  # an abort, and again when it is long gone
    "exodus": 0.01,  # everybody hangs up at once, maybe while a step breaks
    "clock": 0.03,
    "flush": 0.02,
    "fault": 0.02,
    "pin": 0.015,
    "unpin": 0.005,
    "close": 0.01,  # a session ends, and the end of its text is forgotten
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One configuration to live a history under."""

    seed: int
    num_slots: int
    context_length: int
    cache: CacheConfig
    schedule: ScheduleConfig
    overlap: bool
    jump_forward: bool
    drafts: bool
    lateness: float
    faults: bool
    most_open: int
    longest_output: int


@dataclass(frozen=True, slots=True)
class History:
    settings: Settings
    operations: Sequence[Operation]


def draw(seed: int, length: int) -> History:
    """Draw settings and ``length`` operations."""
    rng = random.Random(seed)
    settings = _settings(seed, rng)
    weights = dict(OPERATIONS)
    weights["arrive"] *= rng.choice((0.3, 1.0, 2.0))  # idle, busy, overloaded
    if not settings.faults:
        del weights["fault"]
    names = rng.choices(list(weights), list(weights.values()), k=length)
    return History(settings, [(name, rng.getrandbits(31) if name != "step" else 0) for name in names])


def _settings(seed: int, rng: random.Random) -> Settings:
    num_slots = rng.choice((64, 64, 96, 128, 256, 512))
    cache, schedule = _cache(rng, num_slots), _schedule(rng)
    if schedule.schedule_policy in CACHE_AWARE_POLICIES:
        cache = replace(cache, disable_radix_cache=False)
    config = resolve(EngineConfig(cache=cache, schedule=schedule), Hardware())
    return Settings(
        seed=seed,
        num_slots=num_slots,
        context_length=rng.choice((32, 64, 128)),
        cache=config.cache,
        schedule=config.schedule,
        overlap=rng.random() < 0.7,
        jump_forward=rng.random() < 0.7,
        drafts=rng.random() < 0.4,
        lateness=rng.choice((0.0, 0.5, 1.0)),
        faults=rng.random() < 0.4,
        most_open=rng.choice((4, 12, 32)),
        longest_output=rng.choice((8, 16, 64)),
    )


def _cache(rng: random.Random, num_slots: int) -> CacheConfig:
    return CacheConfig(
        max_total_tokens=num_slots,
        radix_eviction_policy=rng.choice(EVICTION_POLICIES),
        radix_tree=rng.choice(("auto", "python")),
        disable_radix_cache=rng.random() < 0.1,
        pin_budget=rng.choice((0.0, 0.25, 0.9)),
    )


def _schedule(rng: random.Random) -> ScheduleConfig:
    policy = rng.choice(("auto", "lpm", "lpm", *SCHEDULE_POLICIES))
    obeys_priorities = policy in PRIORITY_POLICIES and rng.random() < 0.4
    return ScheduleConfig(
        schedule_policy=policy,
        chunked_prefill_size=rng.choice((8, 16, 32, 64, -1)),
        max_prefill_tokens=rng.choice((6, 20, 16_384)),
        max_running_requests=rng.choice((1, 2, 3, 4, 6, 8)),
        max_queued_requests=rng.choice((0, 0, 3, 10)),
        lpm_max_passes=rng.choice((0, 1, 3, 64)),
        decode_share=rng.choice((0.2, 0.5, 1.0)),
        schedule_conservativeness=rng.choice((0.0, 0.3, 1.0)),
        enable_priority_scheduling=obeys_priorities,
        schedule_low_priority_values_first=obeys_priorities and rng.random() < 0.3,
        disable_priority_preemption=obeys_priorities and rng.random() < 0.3,
        priority_scheduling_preemption_threshold=rng.choice((0, 1, 10)),
        priority_aging_seconds=rng.choice((0.0, 0.5, 10.0)),
        waiting_timeout=rng.choice((None, None, None, 1.0)),
        running_timeout=rng.choice((None, None, None, 1.0)),
        enable_prefill_delayer=rng.random() < 0.15,
        prefill_delayer_max_delay_ms=rng.choice((None, 50.0)),
    )
