"""Figures for people and for programs: a table, and JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from radixrt.bench.figures import Figures, Waits


def table(results: Sequence[Figures], title: str) -> Table:
    """One row a run: hit rates first, then times, then fairness."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("workload")
    for name in ("policy", "eviction"):
        shown.add_column(name)
    for name in (
        "pool", "calls", "hits\n%", "% of\ninfinite", "% of\nBelady", "saved", "TTFT s\nmean", "\np50", "\np99", "cold\np99", "hot\np99",
        "worst\ns", "wait\npasses", "retracted", "time s",
    ):
        shown.add_column(name, justify="right")
    last = ""
    for result in results:
        if last and result.workload != last:
            shown.add_section()
        waits = result.waits
        shown.add_row(
            result.workload if result.workload != last else "", result.policy, result.eviction, _pool(result.pool),
            str(result.calls) + (f" ({result.errors} failed)" if result.errors else ""), _share(result.hit_rate),
            _share(result.of_infinite), _share(result.of_belady), _count(result.saved),
            *((_time(waits.mean), _time(waits.p50), _time(waits.p99)) if waits else ("-",) * 3), _p99(result.cold), _p99(result.hot),
            _time(waits.worst) if waits else "-", str(waits.worst_passes) if waits else "-", str(result.retractions), _time(result.seconds),
        )
        last = result.workload
    return shown


def write_json(path: Path, results: Sequence[Figures], **facts: Any) -> None:
    """Write the figures of all runs, with facts about how they were made."""
    report = {**facts, "python": platform.python_version(), "runs": [result.to_dict() for result in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _time(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"


def _p99(waits: Waits | None) -> str:
    return "-" if waits is None else _time(waits.p99)


def _pool(size: int) -> str:
    return _count(size) if size % 1024 or not size else f"{size // 1024}K"


def _count(number: int) -> str:
    if number >= 10_000_000:
        return f"{number / 1_000_000:.0f}M"
    return f"{number / 1000:.0f}k" if number >= 10_000 else str(number)
