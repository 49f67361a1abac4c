"""What constraints cost the steps they are in and those of others, on the engine core alone, as it serves by default.

    python benchmarks/constrained.py [--parts rows,bomb,work] [--repeats 5] [--rows 32] [--model-path NAME]

``rows``: steps that decode so many rows, each under a schema of its own, against steps that decode as many without; and how long
their sampling waits for masks and the like when the forward pass is done (median, 99th percentile).
``bomb``: steps of eight rows while a grammar that takes about 25 s is being compiled, against the same steps in peace.
``work``: extractions to one schema, then as many requests with the same prompts and exactly as many tokens each, without it.
The two sides take turns, so that a change of the machine's speed touches both.  Seconds are those of the clock and those of
the processor; on a machine that others use only the latter mean much.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from extraction import AMOUNT, TEXT, obj
from peers.workloads import CITIES, CUSTOMERS, ITEMS, ORDER_RULES, ORDER_SCHEMA

from radixrt.config import CacheConfig, EngineConfig, GrammarConfig, ModelConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.step_loop import Launched, StepRunner
from radixrt.schedule.step import RowResult, ScheduledStep
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.types import GenerateRequest, GrammarOptions, GrammarSpec, SamplingParams
from radixrt.weights.resolve import resolve_model

NUM_NEW = 56
BESIDE_BOMB = 8
BOMB = "root ::= [^{}]{{1,600}}"


@dataclass(frozen=True, slots=True)
class Step:
    """rows and tokens: of the step that was launched; the seconds since the one before, of the clock and of the processor."""

    rows: int
    tokens: int
    clock: float
    processor: float


class Watched:
    """A step runner that notes the shape of each step, and how long its sampling waited for the host when all else was there."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.shape = (0, 0)
        self.waits: list[float] = []

    def forward(self, step: ScheduledStep) -> Launched:
        self.shape = (len(step.rows), sum(row.count for row in step.rows))
        return WatchedLaunch(self._runner.forward(step), self)


class WatchedLaunch:
    """A step on its way, whose masks are filled in ``sample``."""

    def __init__(self, launched: Any, owner: Watched) -> None:
        self._launched, self._owner = launched, owner
        self._computed: list[float] = []
        launched._logits.add_done_callback(lambda _: self._computed.append(time.perf_counter()))

    def sample(self) -> None:
        begin = time.perf_counter()
        self._launched.sample()
        if self._computed:
            self._owner.waits.append(time.perf_counter() - max(begin, self._computed[0]))
        else:
            self._owner.waits.append(0.0)

    def results(self) -> Sequence[RowResult]:
        results: Sequence[RowResult] = self._launched.results()
        return results


class Bench:
    """Runs requests on a core."""

    def __init__(self, model_path: str, *, seed: int = 0, **grammar: Any) -> None:
        self.core = EngineCore.load(EngineConfig(
            model=ModelConfig(model_path=model_path), cache=CacheConfig(max_total_tokens=32_768),
            schedule=ScheduleConfig(max_running_requests=64), grammar=GrammarConfig(**grammar),
        ))  # fmt: skip
        self.watched = self.core._loop._runner = Watched(self.core._loop._runner)
        self.rng = random.Random(seed)
        self._uid = 0

    def add(self, prompt: list[int], spec: GrammarSpec | None, **sampling: Any) -> int:
        self._uid += 1
        params = SamplingParams(grammar=spec, seed=self._uid, **sampling)
        self.core.add(GenerateRequest(uid=self._uid, prompt=prompt, sampling=params))
        return self._uid

    def prompt(self, num_tokens: int) -> list[int]:
        """Tokens that no other prompt starts with."""
        return [self.rng.randrange(self.core.info.vocab_size) for _ in range(num_tokens)]

    def steps(self, counts: dict[int, int] | None = None) -> Iterator[Step]:
        """Step until nothing is left; ``counts`` takes how many tokens each request wrote."""
        while True:
            while not self.core.has_work():
                if self.core.patience is None:
                    return
                time.sleep(self.core.patience)
            clock, processor = time.perf_counter(), time.process_time()
            self.watched.shape = (0, 0)
            for output in self.core.step():
                if counts is not None:
                    counts[output.uid] = counts.get(output.uid, 0) + len(output.tokens)
            yield Step(*self.watched.shape, time.perf_counter() - clock, time.process_time() - processor)


def json_spec(schema: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema), GrammarOptions())


def constrained_rows(bench: Bench, repeats: int, num_rows: int) -> dict[str, Any]:
    """Median steps of both sides in each repetition, and the ratio of the constrained ones to the others."""
    specs = [json_spec(obj(**{f"name_{i}": TEXT, "city": TEXT, "age": AMOUNT})) for i in range(num_rows)]
    clock: dict[bool, list[float]] = {False: [], True: []}
    processor: dict[bool, list[float]] = {False: [], True: []}
    waits: dict[bool, list[float]] = {False: [], True: []}
    for repetition in range(-1, 2 * repeats):
        with_grammar = repetition % 2 == 1
        for spec in specs:
            bench.add(bench.prompt(8), spec if with_grammar else None, max_new_tokens=NUM_NEW, ignore_eos=True, temperature=1.0)
        bench.watched.waits.clear()
        full = [step for step in bench.steps() if step.rows == num_rows and step.tokens < 2 * num_rows][3:]
        bench.core.flush()
        if repetition >= 0:  # the one before loads and compiles
            clock[with_grammar].append(statistics.median(step.clock for step in full))
            processor[with_grammar].append(statistics.median(step.processor for step in full))
            waits[with_grammar] += bench.watched.waits
    return {
        "rows": num_rows,
        "step_ms": [round(1e3 * statistics.median(clock[side]), 2) for side in (False, True)],
        "step_cpu_ms": [round(1e3 * statistics.median(processor[side]), 2) for side in (False, True)],
        "ratio": _ratio(clock), "cpu_ratio": _ratio(processor),
        "waits_ms": [[round(1e3 * statistics.quantiles(waits[side], n=100)[q], 2) for q in (49, 98)] for side in (False, True)],
        **_masks(bench),
    }  # fmt: skip


def _ratio(sides: dict[bool, list[float]]) -> list[float]:
    """Median, least and greatest of the ratios in neighbouring repetitions."""
    ratios = [constrained / plain for plain, constrained in zip(sides[False], sides[True], strict=True)]
    return [round(ratio, 3) for ratio in (statistics.median(ratios), min(ratios), max(ratios))]


def _masks(bench: Bench) -> dict[str, float]:
    stats = bench.core.stats().grammar
    return {"mask_us": round(1e6 * stats.mask_seconds / max(1, stats.masked_rows), 1), "masks": stats.masked_rows}


def pending_bomb(bench: Bench, repeats: int) -> dict[str, Any]:
    """Steps of eight rows in peace and beside a bomb, in milliseconds: medians and 99th percentiles."""
    times: dict[bool, list[float]] = {False: [], True: []}
    # The first grammar of an engine pays for the vocabulary's bytes, which is no matter of bombs.
    bench.add(bench.prompt(8), GrammarSpec("ebnf", 'root ::= "a" [b-d]{1,3}'))
    for _ in bench.steps():
        pass
    for repetition in range(2 * repeats):
        beside = repetition % 2 == 1
        for _ in range(BESIDE_BOMB):
            bench.add(bench.prompt(8), None, max_new_tokens=160, ignore_eos=True, temperature=1.0)
        bomb = bench.add(bench.prompt(8), GrammarSpec("ebnf", BOMB.format(chr(ord("A") + repetition)))) if beside else None
        for step in bench.steps():
            if step.rows == step.tokens == BESIDE_BOMB:
                times[beside].append(step.clock)
            elif not step.rows:
                break
        if bomb is not None:
            bench.core.abort(bomb)
        for _ in bench.steps():
            pass
        bench.core.flush()
    found: dict[str, Any] = {"steps": [len(times[side]) for side in (False, True)]}
    for name, quantile in (("p50", 50), ("p99", 99)):
        values = [statistics.quantiles(times[side], n=100)[quantile - 1] for side in (False, True)]
        found[name] = [round(1e3 * value, 2) for value in values]
        found[f"{name}_ratio"] = round(values[1] / values[0], 3)
    return found


def equal_work(bench: Bench, tokenizer: Tokenizer, repeats: int, num: int = 24, at_once: int = 8) -> dict[str, Any]:
    """Seconds and steps for the same prompts and the same number of tokens each, with a schema and without."""
    sides: dict[bool, list[tuple[float, float, int, int]]] = {False: [], True: []}
    words = ["stone", "river", "paper", "cloud", "green", "table", "seven", "north"]
    for _ in range(repeats + 1):
        choose = bench.rng.choice
        rules = f"{ORDER_RULES} {' '.join(choose(words) for _ in range(700))}"
        notes = [
            f"\n{choose(CUSTOMERS)} from {choose(CITIES)} orders {bench.rng.randrange(2, 99)} pieces of {choose(ITEMS)}; priority "
            f"{choose(['low', 'normal', 'high'])}. Also heard: {' '.join(choose(words) for _ in range(40))}.\nJSON:"
            for _ in range(num)
        ]
        counts: dict[int, int] = {}
        lengths: list[int] = []
        for with_grammar in (True, False):
            before, clock, processor = bench.core.stats(), time.perf_counter(), time.process_time()
            for start in range(0, num, at_once):
                uids = [
                    bench.add(
                        tokenizer.encode(rules + note), json_spec(ORDER_SCHEMA) if with_grammar else None, temperature=0.0,
                        max_new_tokens=160 if with_grammar else lengths[start + i], ignore_eos=not with_grammar,
                    )
                    for i, note in enumerate(notes[start : start + at_once])
                ]
                for _step in bench.steps(counts):
                    pass
                if with_grammar:
                    lengths += [counts[uid] for uid in uids]
            after = bench.core.stats()
            steps, tokens = after.steps - before.steps, after.generated_tokens - before.generated_tokens
            sides[with_grammar].append((time.perf_counter() - clock, time.process_time() - processor, steps, tokens))
            bench.core.flush()
    clock_sides = {side: [run[0] / run[3] for run in runs[1:]] for side, runs in sides.items()}
    processor_sides = {side: [run[1] / run[3] for run in runs[1:]] for side, runs in sides.items()}
    return {
        "tokens": [sum(run[3] for run in sides[side][1:]) for side in (False, True)],
        "steps": [sum(run[2] for run in sides[side][1:]) for side in (False, True)],
        "tokens_a_second": [round(1 / statistics.median(clock_sides[side]), 1) for side in (False, True)],
        "tokens_a_cpu_second": [round(1 / statistics.median(processor_sides[side]), 1) for side in (False, True)],
        "ratio": _ratio(clock_sides), "cpu_ratio": _ratio(processor_sides), **_masks(bench),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="rows,bomb,work")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--model-path", default=ModelConfig().model_path)
    given = parser.parse_args()
    for part in given.parts.split(","):
        bench = Bench(given.model_path)
        match part:
            case "rows":
                found = constrained_rows(bench, given.repeats, given.rows)
            case "bomb":
                found = pending_bomb(bench, given.repeats)
            case "work":
                found = equal_work(bench, load_tokenizer(resolve_model(given.model_path).tokenizer), given.repeats)
            case _:
                parser.error(f"there is no part {part!r}")
        bench.core.close()
        print(json.dumps({part: found}), flush=True)


if __name__ == "__main__":
    main()
