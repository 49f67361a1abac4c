"""What a step costs in virtual time: a straight line through what it computes and reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from radixrt.schedule.step import ScheduledStep


@dataclass(frozen=True, slots=True)
class Work:
    """What one step does.  A row of one token is a decode; of more, a prefill.  ``context``: tokens that attention reads."""

    prefill_tokens: int
    decode_rows: int
    context: int

    @classmethod
    def of(cls, step: ScheduledStep) -> Work:
        prefill = decode = context = 0
        for row in step.rows:
            context += row.end
            if row.count == 1:
                decode += 1
            else:
                prefill += row.count
        return cls(prefill, decode, context)


@dataclass(frozen=True, slots=True)
class StepCost:
    """seconds = step + prefill_token * prefill tokens + decode_row * decode rows + context_token * context tokens read.

    The defaults are of the order of a 135M-parameter model on two CPU cores; ``load`` reads what ``benchmarks/step_cost.py``
    has measured.
    """

    step: float = 8e-3
    prefill_token: float = 1.5e-3
    decode_row: float = 5e-3
    context_token: float = 2e-6

    def seconds(self, work: Work) -> float:
        return (
            self.step + self.prefill_token * work.prefill_tokens + self.decode_row * work.decode_rows + self.context_token * work.context
        )

    @classmethod
    def load(cls, path: Path) -> StepCost:
        """Read a machine profile; raises ValueError or TypeError when it is not one."""
        return cls(**json.loads(path.read_text())["cost"])

    def save(self, path: Path, **facts: object) -> None:
        """Write a machine profile, with facts about where it was measured."""
        path.write_text(json.dumps({"cost": asdict(self), **facts}, indent=1) + "\n")


def fit(steps: Iterable[tuple[Work, float]]) -> StepCost:
    """Fit the line to measured seconds of steps.

    Least squares of the relative errors, so that short steps count as much as long ones; coefficients stay >= 0, because a
    cost that falls with work would let a scheduler win by doing more.
    """
    works, seconds = zip(*steps, strict=True)
    rows = np.array([[1.0, w.prefill_tokens, w.decode_rows, w.context] for w in works])
    target = np.array(seconds)
    rows /= target[:, None]
    free = list(range(4))
    found = np.zeros(4)
    while free:
        solution = np.linalg.lstsq(rows[:, free], np.ones(len(target)), rcond=None)[0]
        if (solution >= 0).all():
            found[free] = solution
            break
        del free[int(np.argmin(solution))]
    return StepCost(*found.tolist())


def relative_errors(cost: StepCost, steps: Sequence[tuple[Work, float]]) -> list[float]:
    """How far the line is from each measured step, as a share of what was measured; smallest first."""
    return sorted(abs(cost.seconds(work) - seconds) / seconds for work, seconds in steps)
