"""Speed of the engine core alone: no HTTP, no text.

    python benchmarks/core.py [--repeats 3] [--json benchmarks/results/NAME.json] [--model-path NAME]

Measures decode tokens/s of one stream and of sixteen, the time to the first token of a cold 2,048-token prompt, and the
share of a step at batch 16 that is host work (schedule, build, commit).  Prompts are random tokens, new in every
repetition, so nothing is ever cached; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import radixrt.engine.core as core_module
from radixrt.config import CacheConfig, EngineConfig, ModelConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.schedule.scheduler import Scheduler
from radixrt.types import GenerateRequest, SamplingParams

PROMPT_TOKENS = 32
LONG_PROMPT_TOKENS = 2048
STREAMS = 16


class HostClock:
    """Seconds spent in the host work of a step, by part, without the time it waits for the device."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._wrap(Scheduler, "schedule", "schedule")
        self._wrap(core_module, "build_batch", "build")
        self._wrap(core_module, "build_sampling", "build")
        self._wrap(core_module, "read_results", "commit")
        self._wrap(Scheduler, "commit", "commit")

    def _wrap(self, owner: Any, name: str, part: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.seconds[part] += time.perf_counter() - begin

        setattr(owner, name, timed)


class Bench:
    def __init__(self, core: EngineCore, seed: int = 0) -> None:
        self._core = core
        self._rng = random.Random(seed)
        self._uid = 0

    def run(self, *, streams: int, prompt_tokens: int, new_tokens: int) -> dict[str, float]:
        """Run that many cold requests at once; seconds to the first token, decode tokens/s and steps after it."""
        vocab_size = self._core.info.vocab_size
        for _ in range(streams):
            prompt = [self._rng.randrange(vocab_size) for _ in range(prompt_tokens)]
            sampling = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, ignore_eos=True)
            self._core.add(GenerateRequest(uid=self._uid, prompt=prompt, sampling=sampling))
            self._uid += 1
        begin = time.perf_counter()
        started: set[int] = set()
        first = steps = generated = 0.0
        while self._core.has_work():
            outputs = self._core.step()
            decoding = len(started) == streams
            for output in outputs:
                if output.tokens:
                    started.add(output.uid)
            if decoding:
                steps += 1
                generated += sum(len(output.tokens) for output in outputs)
            elif len(started) == streams:
                first = time.perf_counter() - begin
        end = time.perf_counter() - begin
        return {
            "first_token_s": first,
            "tokens_per_s": generated / (end - first) if generated else 0.0,
            "step_ms": 1e3 * (end - first) / max(steps, 1),
        }


def measure(core: EngineCore, repeats: int) -> dict[str, float]:
    bench = Bench(core)
    bench.run(streams=2, prompt_tokens=8, new_tokens=4)  # pages in weights and starts threads
    one, many, long = [], [], []
    for i in range(repeats):  # interleaved, so that a change of the machine's speed touches all alike
        print(f"repetition {i + 1} of {repeats}", file=sys.stderr)
        one.append(bench.run(streams=1, prompt_tokens=PROMPT_TOKENS, new_tokens=64))
        many.append(bench.run(streams=STREAMS, prompt_tokens=PROMPT_TOKENS, new_tokens=32))
        long.append(bench.run(streams=1, prompt_tokens=LONG_PROMPT_TOKENS, new_tokens=1))
    return {
        "one_stream_tokens_per_s": median(one, "tokens_per_s"),
        "sixteen_streams_tokens_per_s": median(many, "tokens_per_s"),
        "first_token_2048_s": median(long, "first_token_s"),
        "step_ms_at_1": median(one, "step_ms"),
        "step_ms_at_16": median(many, "step_ms"),
    }


def measure_host(core: EngineCore, repeats: int) -> dict[str, float]:
    """Host work of a step at batch 16.  With overlap off, so that it is not mixed with waiting for a core."""
    bench = Bench(core, seed=1)
    bench.run(streams=STREAMS, prompt_tokens=8, new_tokens=4)
    clock = HostClock()
    shares, parts = [], defaultdict(list)
    for _ in range(repeats):
        clock.seconds.clear()
        steps = core.stats().steps
        begin = time.perf_counter()
        bench.run(streams=STREAMS, prompt_tokens=1, new_tokens=33)  # a one-token prompt: every step is a decode of 16 rows
        wall, steps = time.perf_counter() - begin, core.stats().steps - steps
        shares.append(sum(clock.seconds.values()) / wall)
        for part, seconds in clock.seconds.items():
            parts[part].append(1e3 * seconds / steps)
    return {"host_share_of_step_at_16": statistics.median(shares), **{f"{part}_ms": statistics.median(ms) for part, ms in parts.items()}}


def median(runs: list[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")), model)
    return {
        "cpu": model, "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(), "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--model-path", default=ModelConfig().model_path)
    arguments = parser.parse_args()

    def load(overlap: str) -> EngineCore:
        return EngineCore.load(
            EngineConfig(
                model=ModelConfig(model_path=arguments.model_path),
                cache=CacheConfig(max_total_tokens=16384),
                schedule=ScheduleConfig(overlap_schedule=overlap),
            )
        )

    core = load("auto")
    figures = measure(core, arguments.repeats)
    core.close()
    core = load("off")
    figures |= measure_host(core, arguments.repeats)
    core.close()
    report = {
        "model": arguments.model_path, "dtype": core.info.dtype, "machine": machine(), "repeats": arguments.repeats, "figures": figures,
    }
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
