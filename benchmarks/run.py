"""Workloads against servers, from outside: any that speak OpenAI's API, radixrt or its peers.

    python benchmarks/run.py --suite peers --base-url http://127.0.0.1:30000 [--base-url URL --label NAME …]
        [--workloads W1,W3] [--repeat 3] [--scale 0.25] [--json FILE] [--plot FILE.png]

With several --base-url, repetitions take turns (A B A B), and the same prompts go to each.  Prompts have exact lengths in the
tokens of --tokenizer and are new in every repetition and every call of this script, unless --seed repeats an earlier one; so
nothing is cached but what a workload itself asks twice.  Warm-up requests are not counted.  docs/performance.md says how to
read the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import time
from pathlib import Path
from typing import Any

try:
    import psutil
    import torch
    from peers import report
    from peers.client import Server
    from peers.machine import gemm_gigaops_s
    from peers.suite import Plan, Progress, Result, Suite
    from peers.words import Vocabulary
    from peers.workloads import WORKLOADS, Workload
    from rich.console import Console

    from radixrt.config import DEFAULT_MODEL
    from radixrt.errors import RadixrtError
    from radixrt.text.tokenizer import load_tokenizer
    from radixrt.weights.resolve import resolve_model
except ModuleNotFoundError as error:
    sys.exit(f"{error}: scripts/install makes an environment that has it, to run this as .venv/bin/python benchmarks/run.py")

SUITES = ("peers",)
TABLE_WIDTH = 110


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if len(options.label) > len(options.base_url) or len(options.pid) > len(options.base_url):
        parser.error("more labels or pids than servers")
    console, log = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(options, console, log))
    except RadixrtError as error:
        log.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return 2


async def _run(options: argparse.Namespace, console: Console, log: Console) -> int:
    files = resolve_model(options.tokenizer)
    model_bytes = options.model_bytes if options.model_bytes is not None else sum(path.stat().st_size for path in files.weights)
    labels = options.label + [""] * (len(options.base_url) - len(options.label))
    servers = [
        Server(url, label=label, api_key=options.api_key, model=options.model, timeout=options.timeout)
        for url, label in zip(options.base_url, labels, strict=True)
    ]
    for server in servers:
        await server.find_model()
    plan = Plan(
        workloads=options.workloads, repeats=options.repeat, warm_ups=options.warm_up, seed=options.seed or str(time.time_ns()),
        scale=options.scale, concurrency=options.concurrency, model_bytes=model_bytes, one_at_a_time=options.one_at_a_time,
    )  # fmt: skip
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    with log.status("measuring the machine") as status:
        gemm = gemm_gigaops_s()
        progress = _progress(log, status.update)
        pids = options.pid + [None] * (len(servers) - len(options.pid))
        suite = Suite(servers, Vocabulary(load_tokenizer(files.tokenizer)), plan, progress, pids)
        try:
            await suite.run()
        except asyncio.CancelledError:
            log.print("stopped; these are the figures so far")
    results = suite.results
    machine = _machine() | {"memory_gb_s": max(suite.bandwidths, default=0.0), "gemm_gigaops_s": gemm}
    of = f"medians of {plan.repeats}" + (f", lengths x {plan.scale:g}" if plan.scale != 1 else "")
    console.print(report.table(results, f"what users feel, {of}"))
    console.print(report.costs(results, f"what it took, {of}"))
    console.print(_sentence(machine), highlight=False, soft_wrap=True)
    for remark in report.remarks(results):
        console.print(f"! {remark}", highlight=False, markup=False, soft_wrap=True)
    if options.json is not None:
        report.write_json(
            options.json, results, suite=options.suite, began=began, seed=plan.seed, scale=plan.scale, repeats=plan.repeats,
            model_bytes=model_bytes, machine=machine, servers={server.label: server.model for server in servers},
        )  # fmt: skip
    if options.plot is not None:
        from peers import pictures  # matplotlib is wanted only here

        pictures.comparison(results, options.plot)
    return 1 if any(result.median["errors"] for result in results) else 0


def _progress(log: Console, update: Any) -> Progress:
    what, answers = "", 0

    def begins(workload: str, label: str, part: str) -> None:
        nonlocal what, answers
        what, answers = f"{workload} {label} {part}", 0
        update(what)

    def heard(_: object) -> None:
        nonlocal answers
        answers += 1
        update(f"{what}: {answers} answers")

    def ended(result: Result) -> None:
        log.print(report.line(result), highlight=False, soft_wrap=True)

    return Progress(begins, heard, ended)


def _machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(), "processor": _processor(), "cpus": psutil.cpu_count(),
        "torch_isa": torch.backends.cpu.get_cpu_capability(), "memory_gb": psutil.virtual_memory().total / 1e9,
        "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _sentence(machine: dict[str, Any]) -> str:
    gemm = ", ".join(f"{name} {rate:,.0f}" for name, rate in machine["gemm_gigaops_s"].items())
    return (
        f"{machine['processor']}, {machine['cpus']} cores, {machine['torch_isa']}; memory read at {machine['memory_gb_s']:.1f} GB/s; "
        f"torch's products, 10^9 operations a second: {gemm}"
    )


def _workloads(names: str) -> list[Workload]:
    if names == "all":
        return list(WORKLOADS.values())
    unknown = [name for name in names.split(",") if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in names.split(",")]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("a number above 0 is wanted")
    return value


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _loop_factory() -> Any:
    try:
        import uvloop  # the server's own; the client takes less of the machine with it
    except ImportError:
        return None
    return uvloop.new_event_loop


def _parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {workload.name:4} {workload.about}" for workload in WORKLOADS.values())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0], epilog=f"workloads:\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--suite", choices=SUITES, default="peers")
    add("--base-url", action="append", required=True, help="a server; several take turns")
    add("--label", action="append", default=[], help="what to call it, in the order of --base-url")
    add("--pid", action="append", type=int, default=[], help="its process; found by its port when it is on this machine")
    add("--one-at-a-time", action="store_true", help="stop the processes of the other servers on this machine during a server's turn")
    add("--workloads", type=_workloads, default="W1,W2,W2b,W3,W4,W5,W7", help="comma list, or all (default: all but W6 and W6n)")
    add("--repeat", type=_count, default=3, help="counted repetitions of each workload (default: 3)")
    add("--warm-up", type=int, default=1, help="uncounted repetitions at a tenth of the length (default: 1)")
    add("--scale", type=_positive, default=1.0, help="tokens of prompts and answers, times this (default: 1)")
    add("--concurrency", type=_count, help="requests, or conversations, at a time, in place of a workload's own")
    add("--seed", help="of the prompts; a new one each time unless given")
    add("--tokenizer", default=DEFAULT_MODEL, help="model whose tokens are counted: alias, .gguf, folder, or toy")
    add("--model", help="name to ask for (default: the first the server lists)")
    add("--model-bytes", type=_count, help="bytes of weights a token reads, for the memory floor (default: size of --tokenizer's weights)")
    add("--api-key")
    add("--timeout", type=_positive, default=900.0, help="seconds a request may take (default: 900)")
    add("--json", type=Path, help="write all figures there")
    add("--plot", type=Path, help="draw the comparison there, as PNG")
    return parser


if __name__ == "__main__":
    sys.exit(main())
