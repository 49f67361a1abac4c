"""The flags of ``radixrt bench``.  Loads nothing: help should not wait for what a run needs."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_lpm(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``bench lpm``."""
    group = parser.add_argument_group("benchmark")
    group.add_argument("--workloads", type=_names, default=[], metavar="NAMES", help="which, with commas between (default: all)")
    group.add_argument("--scale", type=float, default=1.0, help="multiplies the number of programs (default: 1)")
    _add_server(parser)
    _add_settings(parser)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``bench replay``."""
    parser.add_argument("trace", type=Path, help="a Mooncake, agentic or token trace, such as --record-trace writes")
    group = parser.add_argument_group("benchmark")
    group.add_argument("--slowdown", type=float, default=1.0, help="stretches the times of the trace (default: 1)")
    _add_server(parser)
    _add_settings(parser)


def add_what_if(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``bench what-if``."""
    parser.add_argument("trace", type=Path, help="a Mooncake, agentic or token trace, such as --record-trace writes")
    group = parser.add_argument_group("benchmark")
    group.add_argument("--slowdown", type=float, default=1.0, help="stretches the times of the trace (default: 1)")
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings to compare", "Every combination is run; one value comes from the flag of the same meaning.")
    group.add_argument(
        "--policies", type=_names, default=[], metavar="NAMES", help="schedule policies, also lpm:PASSES (default: --schedule-policy)"
    )
    group.add_argument("--evictions", type=_names, default=[], metavar="NAMES", help="eviction policies (default: --radix-eviction-policy)")
    group.add_argument(
        "--pools", type=_names, default=[], metavar="SIZES",
        help="pool sizes, such as 16K,64K or 0.5x,1x of the workload's own (default: --max-total-tokens, else 1x)",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    group.add_argument("--profile", type=Path, metavar="FILE", help="what a step costs, as measured (default: a 7B model on one card)")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    group.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw the figures; needs radixrt[bench]")


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("against a server", "Without --base-url the scheduler runs here, in virtual time, without a model.")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--offline", action="store_true", help="run without a server (default)")
    where.add_argument("--base-url", metavar="URL", help="the server, such as http://127.0.0.1:30000; needs radixrt[bench]")
    group.add_argument(
        "--api", choices=("generate", "completions"), default="generate",
        help="/generate with token ids (radixrt, SGLang), or /v1/completions with text (default: generate)",
    )
    group.add_argument("--server-api-key", metavar="KEY", help="bearer token of the server")
    group.add_argument("--server-model", metavar="NAME", default="default", help="model name to ask for (default: default)")
    group.add_argument("--vocab-size", type=int, default=32_000, help="token ids stay below this (default: 32000)")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
