"""The comparison as a picture: a panel a workload, a bar a server.  Needs matplotlib (``pip install radixrt[bench]``)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from peers.report import HEADLINES
from peers.suite import Result
from radixrt.bench.pictures import COLOURS, INK

PANELS_A_ROW = 4


def comparison(results: Sequence[Result], path: Path) -> None:
    """Draw the median of each workload's own figure; whiskers go from the worst repetition to the best, dots are repetitions."""
    names = list(dict.fromkeys(result.workload.name for result in results))
    labels = list(dict.fromkeys(result.label for result in results))
    columns = min(PANELS_A_ROW, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns + 0.4, 2.8 * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, names, strict=False):
        for result in (result for result in results if result.workload.name == name):
            values = result.values
            if not values:
                continue
            at = labels.index(result.label)
            middle = statistics.median(values)
            axes.bar(at, middle, 0.7, color=COLOURS[at % len(COLOURS)])
            axes.vlines(at, min(values), max(values), color=INK, linewidth=1)
            axes.text(at, middle, f" {middle:.3g} ", ha="right" if len(values) > 1 else "center", va="bottom", fontsize=8, color=INK)
            if "floor_tokens_s" in result.median:
                floor = result.median["floor_tokens_s"]
                axes.hlines(floor, at - 0.4, at + 0.4, color=INK, linewidth=0.9, linestyle="--")
        workload = next(result.workload for result in results if result.workload.name == name)
        better = "less is better" if workload.headline == "seconds" else "more is better"
        axes.set_title(f"{name}: {HEADLINES[workload.headline]}, {better}", loc="left", fontsize=8)
        axes.set_xticks([])
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.set_ylim(bottom=0)
        axes.margins(y=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    handles = [figure.axes[0].bar(0, 0, color=COLOURS[at % len(COLOURS)], label=label) for at, label in enumerate(labels)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
