"""Draw a few steps of a trace that ``--profile-steps FILE`` wrote, and say how much of the host's work lay under computing.

    python benchmarks/step_trace.py steps.json steps.png [--first 40] [--steps 4]

``wait`` is no work: the host has nothing to do until the samples of the step before are there.  Without ``--overlap-schedule on``
a CPU whose cores all compute hides nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HOST = {"schedule": "tab:blue", "launch": "tab:cyan", "commit": "tab:red", "sampling": "tab:orange", "wait": "0.9"}
COMPUTE = {"compute forward": "tab:green", "compute sample": "tab:olive"}

# The lower half of the picture: microseconds before and after a step is committed.
BEFORE_TURN, AFTER_TURN = 1000.0, 4000.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--first", type=int, default=40, help="the step to begin with (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="how many to draw (default: %(default)s)")
    options = parser.parse_args()
    spans = [event for event in json.loads(options.trace.read_text()) if event.get("ph") == "X"]
    work, hidden = overlap(spans)
    print(f"host work {work / 1000:.1f} ms, {100 * hidden / work:.0f} % of it while the next step computed")
    draw(spans, options.first, options.steps, options.picture)


def overlap(spans: list[dict[str, Any]]) -> tuple[float, float]:
    """Return microseconds of host work, and how many of them lie under computing."""
    computing = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] in COMPUTE]
    work = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] in HOST and span["name"] != "wait"]
    hidden = sum(max(0.0, min(end, busy_end) - max(begin, busy)) for begin, end in work for busy, busy_end in computing)
    return sum(end - begin for begin, end in work), hidden


def draw(spans: list[dict[str, Any]], first: int, count: int, picture: Path) -> None:
    """Draw both threads over the time of some steps, and below it the moment in which the first of them is committed."""
    for name in (*HOST, *COMPUTE):
        for step, span in enumerate(sorted((span for span in spans if span["name"] == name), key=lambda span: float(span["ts"]))):
            span["step"] = step
    shown = [span for span in spans if span["name"] == "compute forward" and first <= span["step"] < first + count]
    begin, end = min(span["ts"] for span in shown), max(span["ts"] + span["dur"] for span in shown)
    turn = next(span["ts"] for span in spans if span["name"] == "commit" and span["step"] == first)
    figure, (whole, close) = plt.subplots(2, figsize=(11, 4.2), layout="constrained")
    _draw_between(whole, spans, begin, end)
    _draw_between(close, spans, turn - BEFORE_TURN, turn + AFTER_TURN)
    close.set_xlabel("milliseconds")
    handles, labels = whole.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=7, fontsize=8, frameon=False)
    figure.savefig(picture, dpi=110)


def _draw_between(axes: Any, spans: list[dict[str, Any]], begin: float, end: float) -> None:
    for row, colors in enumerate((COMPUTE, HOST)):
        for name, color in colors.items():
            parts = [span for span in spans if span["name"] == name and span["ts"] < end and span["ts"] + span["dur"] > begin]
            bars = [((span["ts"] - begin) / 1000, span["dur"] / 1000) for span in parts]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=color, label=name)
            for (left, width), span in zip(bars, parts, strict=True):
                left, right = max(left, 0.0), min(left + width, (end - begin) / 1000)
                if (right - left) * 1000 > 0.06 * (end - begin):
                    text = f"{name.removeprefix('compute ')} {span['step']}"
                    axes.text((left + right) / 2, row, text, ha="center", va="center", fontsize=7, clip_on=True)
    axes.set_yticks([0, 1], ["stream", "host"])
    axes.set_xlim(0, (end - begin) / 1000)


if __name__ == "__main__":
    main()
