"""Which settings to try: every combination of schedule policy, eviction policy and size of the pool."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from radixrt.bench import offline, optimal
from radixrt.bench.figures import Figures, Run, figures
from radixrt.bench.program import Workload
from radixrt.config import EngineConfig, ScheduleConfig
from radixrt.errors import ConfigError
from radixrt.sim.cost import StepCost

_UNITS = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
# Sizes of the pool that a what-if tries, as shares of all tokens there were.
WHAT_IF_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Settings:
    """What to combine.  An empty list stands for the one value that ``base`` has; pools are sizes or, with an x, shares."""

    base: EngineConfig
    policies: Sequence[str] = ()
    evictions: Sequence[str] = ()
    pools: Sequence[str] = ()

    def configs(self, workload: Workload) -> Iterator[EngineConfig]:
        """Every combination for one workload."""
        base, schedule, cache = self.base, self.base.schedule, self.base.cache
        pools = [pool_size(text, workload.pool) for text in self.pools] or [cache.max_total_tokens or workload.pool]
        for pool, eviction, policy in itertools.product(
            pools, self.evictions or [cache.radix_eviction_policy], self.policies or [schedule.schedule_policy]
        ):
            yield replace(
                base, cache=replace(cache, max_total_tokens=pool, radix_eviction_policy=eviction), schedule=with_policy(schedule, policy)
            )


def with_policy(schedule: ScheduleConfig, text: str) -> ScheduleConfig:
    """Take a policy by name; ``lpm:0`` is lpm with that for --lpm-max-passes.  Raises ConfigError."""
    name, colon, passes = text.partition(":")
    if not colon:
        return replace(schedule, schedule_policy=name)
    if name != "lpm" or not passes.isdecimal():
        raise ConfigError(f"{text!r} is no schedule policy: only lpm takes a number of passes, as in lpm:0")
    return replace(schedule, schedule_policy=name, lpm_max_passes=int(passes))


def policy_label(schedule: ScheduleConfig) -> str:
    """The text that ``with_policy`` reads."""
    aged = schedule.schedule_policy != "lpm" or schedule.lpm_max_passes == ScheduleConfig().lpm_max_passes
    return schedule.schedule_policy if aged else f"lpm:{schedule.lpm_max_passes}"


def pool_size(text: str, own: int) -> int:
    """Read a size: 16K, 16000, or 0.5x of a workload's own.  Raises ConfigError."""
    number, scale = (text[:-1], own if text[-1] == "x" else _UNITS[text[-1]]) if text[-1:] in {*_UNITS, "x"} else (text, 1)
    try:
        size = int(float(number) * scale)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise ConfigError(f"{text!r} is no size of a pool: write 16384, 16K, or 0.5x for half of a workload's own")
    return size


def run(
    workloads: Sequence[Workload], settings: Settings, *, seed: int, cost: StepCost, ended: Callable[[Run, Figures], None]
) -> list[Figures]:
    """Run every workload with every combination offline, telling ``ended`` of each.

    Raises ConfigError for a combination that cannot work, before anything is run.
    """
    plan = [(workload, offline.prepare(workload, config)) for workload in workloads for config in settings.configs(workload)]
    results = []
    for workload, config in plan:
        done = replace(offline.run(workload, config, seed=seed, cost=cost), policy=policy_label(config.schedule))
        results.append(figures(done))
        ended(done, results[-1])
    return results


def what_if_pools(workload: Workload, seed: int) -> list[str]:
    """Sizes from what one call needs to all tokens of a workload, each kept once."""
    total = optimal.distinct_tokens(offline.sequences(workload, seed))
    return [str(size) for size in sorted({max(workload.longest, int(share * total)) for share in WHAT_IF_SHARES})]
