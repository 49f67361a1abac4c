"""``radixrt bench lpm | replay | what-if``: read the flags, run, show."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from rich.console import Console

from radixrt.bench import offline, report, sweep, trace, workloads
from radixrt.bench.figures import Figures, Run, figures
from radixrt.bench.program import Workload
from radixrt.config import EngineConfig
from radixrt.errors import ConfigError
from radixrt.sim.cost import StepCost

CHUNK = 2048
MAX_RUNNING = 64
# Columns of a table that no terminal shows.
FILE_WIDTH = 200


def run_lpm(options: argparse.Namespace, config: EngineConfig) -> int:
    """Run workloads by name."""
    names = options.workloads or list(workloads.WORKLOADS)
    built = [workloads.build(name, seed=options.seed, scale=options.scale, vocab_size=options.vocab_size) for name in names]
    return _run(built, options, config, f"LPM benchmark, seed {options.seed}, scale {options.scale:g}")


def run_replay(options: argparse.Namespace, config: EngineConfig) -> int:
    """Run the requests of a trace."""
    workload = trace.read(options.trace, slowdown=options.slowdown, vocab_size=options.vocab_size)
    return _run([workload], options, config, f"replay of {options.trace}")


def run_what_if(options: argparse.Namespace, config: EngineConfig) -> int:
    """Run a trace with many sizes of the pool."""
    workload = trace.read(options.trace, slowdown=options.slowdown)
    settings = _settings(options, config)
    if not settings.pools and config.cache.max_total_tokens is None:
        settings = replace(settings, pools=sweep.what_if_pools(workload, options.seed))
    pictures = _pictures(options.pictures)
    results, _ = _offline([workload], settings, options)
    _show(results, f"what if: {options.trace}")
    _write_json(results, options)
    if pictures is not None:
        pictures.what_if(results, options.pictures / "what_if.png", title=workload.name)
    return 0


def _run(built: Sequence[Workload], options: argparse.Namespace, config: EngineConfig, title: str) -> int:
    pictures = _pictures(options.pictures)
    if options.base_url:
        results, runs = _online(built, options)
    else:
        results, runs = _offline(built, _settings(options, config), options)
    _show(results, title)
    _write_json(results, options)
    if pictures is not None:
        pictures.hit_rates(results, options.pictures / "hit_rates.png")
        for name in dict.fromkeys(run.workload for run in runs):
            of_one = [run for run in runs if run.workload == name]
            pictures.waits(of_one, options.pictures / f"waits_{name}.png", title=name)
    return int(any(result.errors for result in results))


def _offline(built: Sequence[Workload], settings: sweep.Settings, options: argparse.Namespace) -> tuple[list[Figures], list[Run]]:
    cost = offline.CARD if options.profile is None else _profile(options.profile)
    runs: list[Run] = []
    console = Console(stderr=True)

    def ended(run: Run, result: Figures) -> None:
        # Only a picture needs what happened to each call; its tokens nothing needs any more.
        if options.pictures:
            runs.append(replace(run, records=[replace(record, tokens=record.tokens[:0]) for record in run.records]))
        setting = f"{run.workload}: {run.policy} / {run.eviction} / {run.pool}"
        console.print(f"{setting}: {100 * result.hit_rate:.1f}% of prompt tokens cached", highlight=False)

    return sweep.run(built, settings, seed=options.seed, cost=cost, ended=ended), runs


def _online(built: Sequence[Workload], options: argparse.Namespace) -> tuple[list[Figures], list[Run]]:
    _require("httpx", "--base-url")
    from radixrt.bench import online  # needs the bench extra

    runs = online.run(built, options.base_url, api=options.api, api_key=options.server_api_key, model=options.server_model)
    return [figures(run) for run in runs], runs


def _settings(options: argparse.Namespace, config: EngineConfig) -> sweep.Settings:
    schedule = config.schedule
    schedule = replace(
        schedule,
        chunked_prefill_size=CHUNK if schedule.chunked_prefill_size is None else schedule.chunked_prefill_size,
        max_running_requests=MAX_RUNNING if schedule.max_running_requests is None else schedule.max_running_requests,
    )
    return sweep.Settings(replace(config, schedule=schedule), options.policies, options.evictions, options.pools)


def _profile(path: Path) -> StepCost:
    try:
        return StepCost.load(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read the profile {path}: {type(error).__name__}: {error}") from error


def _show(results: Sequence[Figures], title: str) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    console.print(report.table(results, title))


def _write_json(results: Sequence[Figures], options: argparse.Namespace) -> None:
    if options.json:
        try:
            report.write_json(options.json, results, seed=options.seed, server=getattr(options, "base_url", None))
        except OSError as error:
            raise ConfigError(f"--json {options.json}: {error.strerror or error}") from None


def _pictures(folder: Path | None) -> ModuleType | None:
    """The module that draws, before anything is run that it could not draw."""
    if folder is None:
        return None
    _require("matplotlib", "--pictures")
    from radixrt.bench import pictures  # needs the bench extra

    return pictures


def _require(package: str, flag: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{flag} needs {package}: pip install 'radixrt[bench]'")
