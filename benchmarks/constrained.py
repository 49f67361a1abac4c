"""What constraints cost the steps they are in and those of others, on the engine core alone, as it serves by default.

    python benchmarks/constrained.py [--parts rows,bomb,first,work,masks] [--repeats 5] [--rows 32] [--beside 2] [--window 10]
        [--schemas FILE] [--model-path NAME]

``rows``: steps that decode so many rows, each under a schema of its own, against steps that decode as many without; and how long
their sampling waits for masks and the like when the forward pass is done (median, 99th percentile).
``bomb``: steps of a few rows while a grammar that takes about 25 s is being compiled, against the same steps in peace, in turns of
some seconds; ``first``: where that is an engine's first grammar (``bomb.py``).
``work``: extractions to one schema, then as many requests with the same prompts and exactly as many tokens each, without it.
``masks``: what each row pays for its mask, in microseconds of the processor: the requests of ``extraction.py``, orders of ``W6``, and one
request for each JSON schema of a file with a ``kind`` and ``spec`` a line; then those of the same texts one after the other, without a
model, whose weights empty the caches.
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
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bomb import BOMB_SECONDS, first_bombs, first_grammar, pending_bombs
from extraction import AMOUNT, CASES, TEXT, obj
from mask_costs import MaskCosts, costs_alone
from peers.workloads import CITIES, CUSTOMERS, ITEMS, ORDER_RULES, ORDER_SCHEMA

from radixrt.config import CacheConfig, EngineConfig, GrammarConfig, ModelConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.step_loop import Launched, StepRunner
from radixrt.processes import be_own, brief_turns
from radixrt.schedule.step import RowResult, ScheduledStep
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.types import GenerateRequest, GrammarOptions, GrammarSpec, SamplingParams
from radixrt.weights.resolve import resolve_model

NUM_NEW = 56
PREPARE_SECONDS = 4.0


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
        if isinstance(launched._logits, Future):
            launched._logits.add_done_callback(lambda _: self._computed.append(time.perf_counter()))
        else:  # without overlap they are there at once
            self._computed.append(time.perf_counter())

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

    def steps(self, written: dict[int, list[int]] | None = None) -> Iterator[Step]:
        """Step until nothing is left; ``written`` takes the tokens that each request wrote."""
        while True:
            while not self.core.has_work():
                if self.core.patience is None:
                    return
                time.sleep(self.core.patience)
            clock, processor = time.perf_counter(), time.process_time()
            self.watched.shape = (0, 0)
            for output in self.core.step():
                if written is not None:
                    written.setdefault(output.uid, []).extend(output.tokens)
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
        written: dict[int, list[int]] = {}
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
                for _step in bench.steps(written):
                    pass
                if with_grammar:
                    lengths += [len(written[uid]) for uid in uids]
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


def mask_costs(bench: Bench, tokenizer: Tokenizer, schemas: Path | None, num: int = 24, at_once: int = 8) -> dict[str, Any]:
    """What masks cost over the texts that the model writes, greedily and sampled in turn."""
    choose, asked = bench.rng.choice, list[tuple[list[int], dict[str, Any]]]()
    for i in range(num):
        text, schema = CASES[i % len(CASES)](i)
        asked.append((tokenizer.encode(f"{text}\nJSON:"), schema))
        order = f"{ORDER_RULES}\n{choose(CUSTOMERS)} from {choose(CITIES)} orders 7 pieces of {choose(ITEMS)} and {choose(ITEMS)}.\nJSON:"
        asked.append((tokenizer.encode(order), ORDER_SCHEMA))
    for line in schemas.read_text().splitlines() if schemas else ():
        case = json.loads(line)
        if case["kind"] == "json_schema":
            asked.append((bench.prompt(8), case["spec"]))
    costs, specs, written = MaskCosts(), dict[int, GrammarSpec](), dict[int, list[int]]()
    bench.add(bench.prompt(8), json_spec(TEXT), max_new_tokens=2)  # the first grammar of an engine pays for its vocabulary
    for _ in bench.steps():
        pass
    with costs.watching():
        for start in range(0, len(asked), at_once):
            for i, (prompt, schema) in enumerate(asked[start : start + at_once]):
                spec = json_spec(schema)
                specs[bench.add(prompt, spec, temperature=float(i % 2), max_new_tokens=100)] = spec
            for _ in bench.steps(written):
                pass
    texts = [(specs[uid], tokens) for uid, tokens in written.items() if tokens and uid in specs]
    assert bench.core._grammars is not None
    alone = costs_alone(texts, bench.core._grammars.vocabulary)
    return {"schemas": len({spec.text for spec, _ in texts}), "in_the_loop": costs.report(), "alone": alone.report()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="rows,bomb,work,masks")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--beside", type=int, default=2, help="rows beside a bomb")
    parser.add_argument("--window", type=float, default=10.0, help="seconds in peace, and beside each bomb")
    parser.add_argument("--schemas", type=Path, help="more schemas for masks: a JSON object with kind and spec a line")
    parser.add_argument("--model-path", default=ModelConfig().model_path)
    given = parser.parse_args()
    # As in the worker of a server: radixrt's own process, in which threads take brief turns.
    be_own()
    brief_turns()
    for part in given.parts.split(","):
        if part == "first":
            print(json.dumps({part: first_bombs(given.model_path, given.repeats, given.beside, given.window)}), flush=True)
            continue
        bench = Bench(given.model_path, grammar_compile_timeout=BOMB_SECONDS)
        match part:
            case "rows":
                found = constrained_rows(bench, given.repeats, given.rows)
            case "bomb":
                first_grammar(bench)
                found = pending_bombs(bench, given.repeats, given.beside, given.window)
            case "ready":
                bench.core.prepare()
                time.sleep(PREPARE_SECONDS)
                found = pending_bombs(bench, 1, given.beside, given.window)
            case "busy":
                found = pending_bombs(bench, 1, given.beside, given.window)
            case "work":
                found = equal_work(bench, load_tokenizer(resolve_model(given.model_path).tokenizer), given.repeats)
            case "masks":
                found = mask_costs(bench, load_tokenizer(resolve_model(given.model_path).tokenizer), given.schemas)
            case _:
                parser.error(f"there is no part {part!r}")
        bench.core.close()
        print(json.dumps({part: found}), flush=True)


if __name__ == "__main__":
    main()
