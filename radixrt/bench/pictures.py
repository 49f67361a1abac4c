"""Pictures of the figures, as PNG files.  Needs matplotlib (``pip install radixrt[bench]``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from radixrt.bench.figures import Figures, Run

INK = "#333333"
GOAL = 0.97  # of the hit rate of an infinite cache
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")  # Okabe and Ito's


def hit_rates(results: Sequence[Figures], path: Path) -> None:
    """Draw the share of the optimal hit rate of each workload, a bar for each setting."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    settings = list(dict.fromkeys(_setting(result, results) for result in results))
    width = 0.8 / len(settings)
    axes = _axes(width=max(6.0, 0.9 * len(workloads) * max(1.0, len(settings) / 3)))
    for i, setting in enumerate(settings):
        found = {result.workload: result for result in results if _setting(result, results) == setting}
        places = [at + (i - (len(settings) - 1) / 2) * width for at, name in enumerate(workloads) if name in found]
        shares = [100 * found[name].of_infinite for name in workloads if name in found]
        axes.bar(places, shares, width, label=setting, color=COLOURS[i % len(COLOURS)])
    axes.axhline(100 * GOAL, color=INK, linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(workloads)), workloads, rotation=30, ha="right")
    axes.set_ylabel("hit rate, % of an infinite cache's")
    axes.set_ylim(0, 105)
    _finish(axes, path, legend=len(settings) > 1)


def waits(runs: Sequence[Run], path: Path, *, title: str) -> None:
    """Draw the distribution of the time to the first token, cold calls dashed."""
    axes = _axes(width=6.4)
    labels = _labels(runs)
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        for kind, line in (("cold", "--"), ("hot", "-"), ("", "-")):
            times = np.sort([record.wait for record in run.records if record.kind == kind])
            if len(times):
                name = f"{label}, {kind}" if kind else label
                axes.plot(times, 100 * np.arange(1, len(times) + 1) / len(times), line, label=name, color=COLOURS[i % len(COLOURS)])
    axes.set_xlabel("time to the first token, s")
    axes.set_ylabel("% of calls")
    axes.set_title(title, loc="left")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    _finish(axes, path)


def what_if(results: Sequence[Figures], path: Path, *, title: str) -> None:
    """Draw hit rate against size of the pool, a line for each pair of policies, under the best there is."""
    axes = _axes(width=6.4)
    pairs = list(dict.fromkeys((result.policy, result.eviction) for result in results))
    for i, pair in enumerate(pairs):
        line = sorted((result.pool, 100 * result.hit_rate) for result in results if (result.policy, result.eviction) == pair)
        axes.plot(*zip(*line, strict=True), "o-", markersize=3, label=" / ".join(pair), color=COLOURS[i % len(COLOURS)])
    best: dict[int, float] = {}
    for result in results:
        best[result.pool] = max(best.get(result.pool, 0.0), 100 * (result.belady or 0.0))
    axes.plot(sorted(best), [best[pool] for pool in sorted(best)], ":", label="best eviction", color=INK)
    axes.axhline(100 * max(result.infinite for result in results), color=INK, linewidth=0.8, linestyle="--", label="infinite cache")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}K")
    axes.set_xlabel("pool, tokens")
    axes.set_ylabel("hit rate, %")
    axes.set_title(title, loc="left")
    _finish(axes, path)


def _setting(result: Figures, results: Iterable[Figures]) -> str:
    return " / ".join(_distinct(result, list(results)))


def _distinct(result: Figures | Run, results: Sequence[Figures | Run]) -> list[str]:
    """What tells the settings of a run from those of the others."""
    parts = [result.policy]
    if len({other.eviction for other in results}) > 1:
        parts.append(result.eviction)
    pools = {(other.workload, other.pool) for other in results}
    if len(pools) > len({workload for workload, _ in pools}):
        parts.append(f"{result.pool // 1024}K")
    return parts


def _labels(runs: Sequence[Run]) -> list[str]:
    return [" / ".join(_distinct(run, runs)) for run in runs]


def _axes(width: float) -> Axes:
    axes = Figure(figsize=(width, 4.2), layout="constrained").subplots()
    assert isinstance(axes, Axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _finish(axes: Axes, path: Path, *, legend: bool = True) -> None:
    if legend:  # above the axes, where it hides nothing
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=150)
