"""Steps beside a grammar that takes long to compile, against the same steps in peace: ``constrained.py --parts bomb,first``.

Windows in peace and beside a bomb take turns, and each window beside a bomb is compared with the ones in peace around it.  How
far those are from each other says how much of a ratio is the machine's own.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixrt.types import GrammarSpec

if TYPE_CHECKING:
    from constrained import Bench

NUM_NEW = 160
# Bombs are to last as long as a window.
BOMB_SECONDS = 60.0
BOMB = "root ::= [^{}]{{1,600}}"
QUANTILES = (50, 99)


def pending_bombs(bench: Bench, pairs: int, num_rows: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step in each window, and ratios of neighbours: their median, least and greatest."""
    window(bench, num_rows, min(seconds, 2.0))  # threads and caches come up
    windows = [window(bench, num_rows, seconds)]
    for pair in range(pairs):
        bomb = bench.add(bench.prompt(8), GrammarSpec("ebnf", BOMB.format(chr(ord("A") + pair))))
        windows.append(window(bench, num_rows, seconds))
        bench.core.abort(bomb)
        end_bombs(bench)
        for _ in bench.steps():
            pass
        windows.append(window(bench, num_rows, seconds))
    found: dict[str, Any] = {"rows": num_rows, "steps": [len(steps) for steps in windows]}
    for quantile in QUANTILES:
        values = [statistics.quantiles(steps, n=100)[quantile - 1] for steps in windows]
        peace, beside = values[::2], values[1::2]
        around = [(before + after) / 2 for before, after in pairwise(peace)]
        found[f"p{quantile}_ms"] = [round(1e3 * value, 2) for value in values]
        found[f"p{quantile}_ratio"] = spread([value / calm for value, calm in zip(beside, around, strict=True)])
        found[f"p{quantile}_noise"] = spread([after / before for before, after in pairwise(peace)])
    return found


def first_bombs(model_path: str, times: int, num_rows: int, seconds: float) -> dict[str, Any]:
    """The same with a bomb that is the first grammar of its engine, each time in a process of its own: of an engine that had a
    moment to get ready for grammars, as a server has that waits for requests, and of one that had none."""
    runs: dict[str, list[dict[str, Any]]] = {"ready": [], "busy": []}
    for _ in range(times):
        for kind, found in runs.items():
            command = [
                sys.executable, str(Path(__file__).with_name("constrained.py")), "--parts", kind, "--model-path", model_path,
                "--beside", str(num_rows), "--window", str(seconds),
            ]  # fmt: skip
            found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[kind])
    names = [f"p{quantile}_{what}" for quantile in QUANTILES for what in ("ratio", "noise")]
    return {"rows": num_rows} | {kind: {name: spread([run[name][0] for run in found]) for name in names} for kind, found in runs.items()}


def first_grammar(bench: Bench) -> None:
    """Have a small grammar compiled as the bombs are, so that none of them is the first."""
    bench.add(bench.prompt(8), GrammarSpec("ebnf", 'root ::= "a" [b-d]{1,3}'))
    for _ in bench.steps():
        pass


def end_bombs(bench: Bench) -> None:
    """Kill what compiles them: it would go on for as long as a grammar may take, and there be no peace."""
    assert bench.core._grammars is not None
    service: Any = bench.core._grammars._service
    for pid in service.pids:
        os.kill(pid, signal.SIGKILL)
    while service.stats.pending:
        time.sleep(0.01)


def window(bench: Bench, num_rows: int, seconds: float) -> list[float]:
    """Seconds of each step that does nothing but decode so many rows, for so long."""
    steps: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(num_rows):
            bench.add(bench.prompt(8), None, max_new_tokens=NUM_NEW, ignore_eos=True, temperature=1.0)
        decoded = 0
        for step in bench.steps():
            if step.rows == step.tokens == num_rows:
                steps.append(step.clock)
                decoded += 1
            elif not step.rows and decoded:
                break
    return steps


def spread(ratios: Sequence[float]) -> list[float]:
    """Median, least and greatest."""
    return [round(value, 3) for value in (statistics.median(ratios), min(ratios), max(ratios))]
