"""Measures what a step costs on this machine, and fits the line that the simulator's clock runs by.

    python benchmarks/step_cost.py --json benchmarks/results/step_cost.json [--model-path NAME]

Runs steps of many shapes (prefill chunks after short and long contexts, decodes of 1 to 16 rows) one at a time, without
overlap, and fits ``radixrt.sim.cost.StepCost`` to their medians.  ``StepCost.load`` reads the file.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from radixrt.config import CacheConfig, EngineConfig, ModelConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.step_loop import Launched, StepRunner
from radixrt.schedule.step import ScheduledStep
from radixrt.sim.cost import Work, fit, relative_errors
from radixrt.types import GenerateRequest, SamplingParams

CHUNK = 256
SHAPES = [(1, 8), (4, 8), (16, 8), (1, 256), (4, 256), (16, 64), (1, 1024), (2, 1024)]  # requests, tokens of each prompt
NEW_TOKENS = 12


class Watched:
    """A step runner that notes what each step does."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._last: Work | None = None

    def forward(self, step: ScheduledStep) -> Launched:
        self._last = Work.of(step)
        return self._runner.forward(step)

    def take(self) -> Work | None:
        """Return, once, what the last step did."""
        last, self._last = self._last, None
        return last


def measure(core: EngineCore, shapes: Sequence[tuple[int, int]]) -> list[tuple[Work, float]]:
    """Run requests of each shape (rows, prompt tokens) to their end; seconds of every step."""
    watched = core._loop._runner = Watched(core._loop._runner)
    rng, uid, steps = random.Random(0), 0, []
    for rows, prompt_tokens in shapes:
        for _ in range(rows):
            prompt = [rng.randrange(core.info.vocab_size) for _ in range(prompt_tokens)]
            core.add(GenerateRequest(uid=uid, prompt=prompt, sampling=SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)))
            uid += 1
        while core.has_work():
            begin = time.perf_counter()
            core.step()
            seconds = time.perf_counter() - begin
            if (work := watched.take()) is not None:
                steps.append((work, seconds))
        core.flush()
    return steps


def medians(steps: Sequence[tuple[Work, float]]) -> list[tuple[Work, float]]:
    """Steps of nearly the same shape as one: a machine that others use has outliers."""
    alike: dict[tuple[int, int, int], list[tuple[Work, float]]] = defaultdict(list)
    for work, seconds in steps:
        alike[work.prefill_tokens, work.decode_rows, work.context // 256].append((work, seconds))
    return [(group[len(group) // 2][0], statistics.median(seconds for _, seconds in group)) for group in alike.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to write the profile to")
    parser.add_argument("--model-path", default=ModelConfig().model_path)
    arguments = parser.parse_args()
    core = EngineCore.load(
        EngineConfig(
            model=ModelConfig(model_path=arguments.model_path),
            cache=CacheConfig(max_total_tokens=32_768),
            schedule=ScheduleConfig(disable_overlap_schedule=True, chunked_prefill_size=CHUNK),
        )
    )
    measure(core, [(1, 8)])  # pages in weights and starts threads
    steps = medians([step for _ in range(arguments.repeats) for step in measure(core, SHAPES)])
    core.close()
    cost = fit(steps)
    errors = relative_errors(cost, steps)
    facts = {"model": arguments.model_path, "median_error": round(statistics.median(errors), 3), "worst_error": round(errors[-1], 3)}
    print(json.dumps({"cost": asdict(cost), **facts}, indent=1))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        cost.save(arguments.json, **facts)


if __name__ == "__main__":
    main()
