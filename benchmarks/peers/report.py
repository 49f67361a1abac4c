"""Figures for people and for programs: a table, warnings, and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from peers.figures import Figures
from peers.suite import Result

NOISY_CORES = 0.3
CHANCE_TOKENS = 8  # random prompts may begin alike
HEADLINES = {"seconds": "s", "output_tokens_s": "tok/s", "decode_tokens_s": "tok/s"}
COLUMNS = (
    ("out\ntok/s", "output_tokens_s", 0), ("TTFT ms\np50", "ttft_p50_ms", 0), ("\np99", "ttft_p99_ms", 0),
    ("ITL ms\np50", "itl_p50_ms", 1), ("\np99", "itl_p99_ms", 1), ("cached\n%", "cached_percent", 0), ("valid\n%", "valid_percent", 0),
)  # fmt: skip
COSTS = (
    ("% of\nfloor", "floor_percent", 0), ("memory\nGB/s", "memory_gb_s", 1), ("server\nCPU s", "server_cpu_s", 1),
    ("client\nCPU s", "client_cpu_s", 1), ("others\ncores", "other_cores", 1), ("RSS\nMB", "server_rss_mb", 0),
    ("PSS\nMB", "server_pss_mb", 0),
)  # fmt: skip
Columns = Sequence[tuple[str, str, int]]


def table(results: Sequence[Result], title: str) -> Table:
    """What users feel, a row a workload and server: the figure it is judged by with its least and its most, then others."""
    shown = _table(title, ("median", "of runs"), COLUMNS, "errors")
    for result in results:
        unit, values, median = HEADLINES[result.workload.headline], result.values, result.median
        head = ("-", "-")
        if values:
            head = (f"{_number(statistics.median(values))} {unit}", f"{_number(min(values))} - {_number(max(values))}")
        failed = f"{median['errors']:.0f} of {sum(run['requests'] for run in result.runs):.0f}" if median["errors"] else "-"
        shown.add_row(result.workload.name, result.label, *head, *_cells(median, COLUMNS), failed)
    return shown


def costs(results: Sequence[Result], title: str) -> Table:
    """What it took: the share of what memory would allow one stream, and processor and memory of the server."""
    shown = _table(title, (), COSTS)
    for result in results:
        shown.add_row(result.workload.name, result.label, *_cells(result.median, COSTS))
    return shown


def _table(title: str, before: Sequence[str], columns: Columns, *after: str) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("")
    shown.add_column("server")
    for name in (*before, *(heading for heading, _, _ in columns), *after):
        shown.add_column(name, justify="right", no_wrap=True)
    return shown


def _cells(median: Figures, columns: Columns) -> list[str]:
    return [f"{median[name]:,.{digits}f}" if name in median else "-" for _, name, digits in columns]


def remarks(results: Sequence[Result]) -> list[str]:
    """What a reader of the figures must know: failed requests, warm caches, inexact prompts, a busy machine."""
    said = []
    for result in results:
        name, median = f"{result.workload.name} on {result.label}", result.median
        if median["errors"]:
            said.append(f"{name}: {median['errors']:.0f} requests failed, the first with {result.error}")
        chance = max(CHANCE_TOKENS * median["requests"], 0.02 * median.get("prompt_tokens", 0))
        if result.workload.cold and median.get("cached_tokens", 0) > chance:
            said.append(f"{name}: {median['cached_percent']:.0f}% came from a cache that should have been cold; change --seed")
        if median["inexact_prompts"]:
            said.append(f"{name}: the server counts other tokens than --tokenizer does; lengths are not exact")
        if not result.values and not median["errors"]:
            said.append(f"{name}: no {result.workload.headline}: the text came in one piece, so the server does not stream")
    busy = [run["other_cores"] for result in results for run in result.runs if "other_cores" in run]
    if busy and statistics.median(busy) > NOISY_CORES:
        said.append(f"other work kept {min(busy):.1f} to {max(busy):.1f} cores busy; a quiet machine would show more")
    return said


def write_json(path: Path, results: Sequence[Result], **facts: Any) -> None:
    """Write all figures of all repetitions, with facts about how they were made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "results": [result.to_dict() for result in results]}, indent=1) + "\n", "utf-8")


def line(result: Result) -> str:
    """One repetition in a line, for logs."""
    run: Figures = result.runs[-1]
    names = ("seconds", "output_tokens_s", "decode_tokens_s", "ttft_p50_ms", "cached_percent", *(("errors",) if run["errors"] else ()))
    said = ", ".join(f"{name} {run[name]:.4g}" for name in names if name in run)
    return f"{result.workload.name} {result.label} #{len(result.runs)}: {said}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
