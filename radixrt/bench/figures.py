"""From what happened to each call to the figures of a run: hit rates beside the best possible, times, fairness."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from radixrt.bench import optimal

# A call is cold when less than this share of its prompt could have been cached.
COLD_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Record:
    """One call that has ended; times in seconds since the run began.

    ``passes`` is how many scheduling passes went by before it was first admitted, ``order`` the pass that admitted it
    (online both are unknown: 0, and the time of the first token).  ``tokens`` is prompt + output, the first ``num_prompt``
    of them the prompt, which ``prompt_tokens`` counts as the server did where that is not the same.
    """

    kind: str
    due: float
    first_token: float
    ended: float
    num_prompt: int
    cached: int
    passes: int
    retractions: int
    order: float
    tokens: array[int]
    namespace: Hashable = ()
    prompt_tokens: int | None = None

    @property
    def length(self) -> int:
        """Prompt tokens as the server counts them."""
        return self.num_prompt if self.prompt_tokens is None else self.prompt_tokens

    @property
    def wait(self) -> float:
        """Seconds to the first token."""
        return self.first_token - self.due


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that happened when one workload met one configuration."""

    workload: str
    policy: str
    eviction: str
    pool: int
    records: Sequence[Record]
    seconds: float
    steps: int = 0
    computed_tokens: int = 0
    evicted_tokens: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """Times to the first token in seconds."""

    count: int
    mean: float
    p50: float
    p99: float
    worst: float
    worst_passes: int

    @classmethod
    def of(cls, records: Sequence[Record]) -> Waits | None:
        """Sum up; None for no records."""
        if not records:
            return None
        waits = np.array([record.wait for record in records])
        p50, p99 = np.percentile(waits, [50, 99])
        return cls(
            len(records), float(waits.mean()), float(p50), float(p99), float(waits.max()), max(record.passes for record in records)
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run.

    Hit rates are shares of all prompt tokens.  ``infinite`` is the rate of a cache that forgets nothing, ``belady`` that of
    the best eviction from this pool for the order in which this run admitted its calls; None when the pool is unknown.
    ``saved`` is cached prompt tokens, ``recomputed`` what was computed beyond prompts and outputs.
    """

    workload: str
    policy: str
    eviction: str
    pool: int
    calls: int
    errors: int
    prompt_tokens: int
    saved: int
    recomputed: int
    hit_rate: float
    infinite: float
    belady: float | None
    retractions: int
    evicted: int
    seconds: float
    calls_per_second: float
    waits: Waits | None
    cold: Waits | None
    hot: Waits | None
    kinds: dict[str, Waits] = field(default_factory=dict)

    @property
    def of_infinite(self) -> float:
        """The hit rate as a share of that of an infinite cache."""
        return self.hit_rate / self.infinite if self.infinite else 1.0

    @property
    def of_belady(self) -> float | None:
        """The hit rate as a share of that of the best eviction."""
        return None if self.belady is None else self.hit_rate / self.belady if self.belady else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "of_infinite": self.of_infinite, "of_belady": self.of_belady}


def figures(run: Run) -> Figures:
    """Compute the figures of a run."""
    records = sorted(run.records, key=lambda record: (record.order, record.due))
    served = [optimal.Served(record.tokens, record.num_prompt, record.namespace) for record in records]
    best = optimal.cached_tokens(served)
    prompt_tokens = sum(record.length for record in records)
    saved = sum(record.cached for record in records)
    needed = sum(max(record.num_prompt, len(record.tokens) - 1) for record in records)
    is_cold = [
        record.kind == "cold" if record.kind else hits < COLD_SHARE * record.num_prompt for record, hits in zip(records, best, strict=True)
    ]
    kinds = {kind: [r for r in records if r.kind == kind] for kind in sorted({r.kind for r in records} - {""})}
    return Figures(
        workload=run.workload, policy=run.policy, eviction=run.eviction, pool=run.pool, calls=len(records), errors=run.errors,
        prompt_tokens=prompt_tokens, saved=saved, recomputed=max(0, run.computed_tokens + saved - needed) if run.computed_tokens else 0,
        hit_rate=saved / max(1, prompt_tokens), infinite=sum(best) / max(1, sum(record.num_prompt for record in records)),
        belady=optimal.hit_rate(served, run.pool) if run.pool else None,
        retractions=sum(record.retractions for record in records), evicted=run.evicted_tokens, seconds=run.seconds,
        calls_per_second=len(records) / run.seconds if run.seconds else 0.0, waits=Waits.of(records),
        cold=Waits.of([record for record, cold in zip(records, is_cold, strict=True) if cold]),
        hot=Waits.of([record for record, cold in zip(records, is_cold, strict=True) if not cold]),
        kinds={kind: waits for kind, group in kinds.items() if (waits := Waits.of(group)) is not None},
    )
