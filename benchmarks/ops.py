"""Speed of the radix tree and of a scheduling pass: no model, no HTTP.

    python benchmarks/ops.py [--nodes 1000 … 1000000] [--python-nodes 100000] [--waiting 10000] [--json FILE]

Microseconds an operation (median of many) in both trees at several sizes: match of a cached sequence, insert of a new
one, lock and unlock, one victim; bytes a node; a match of a 20,000-token cached prompt; a change at a node where 10,000
sequences wait; and ``schedule()`` with 10,000 waiting requests of 20,000 tokens each under longest-prefix-match.  Beside
them, where there are any, the figures published for SGLang, which were measured elsewhere and are only an orientation.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from radixrt.cache import select_tree
from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.cache.tree import Tree
from radixrt.schedule import policy
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import Scheduler
from radixrt.schedule.step import RowResult
from radixrt.types import GenerateRequest, SamplingParams
from radixrt_kernels import ops

GROUPS = 100  # inner nodes of the tree that is measured
LEAF_TOKENS = 4
LONG = 20_000
SAMPLES = 2000
PUBLISHED = {
    "evict": "SGLang builds a heap over all evictable leaves at each eviction: 70 ms at 41,000 leaves",
    "schedule": "SGLang orders by longest prefix only up to 128 waiting requests, and by arrival above",
}


def sequence(leaf: int) -> array[int]:
    """The path to one leaf: a preamble that many share, then tokens of its own."""
    return array("i", [leaf % GROUPS, 7, 7, 7, *range(leaf, leaf + LEAF_TOKENS)])


def filled(tree: Tree, num_nodes: int) -> None:
    """Store sequences until the tree has so many nodes, and use them in random order."""
    rng = random.Random(0)
    leaves = num_nodes - GROUPS
    for leaf in range(leaves):
        tokens = sequence(leaf)
        tree.insert(tokens, tokens)
    for _ in range(leaves // 2):
        tree.match(sequence(rng.randrange(leaves)))


def each(call: Callable[[Any], object], arguments: Iterable[Any]) -> dict[str, float]:
    """Microseconds a call: median, mean and the 99th percentile."""
    gc.disable()
    times = []
    for argument in arguments:
        start = time.perf_counter_ns()
        call(argument)
        times.append((time.perf_counter_ns() - start) / 1000)
    gc.enable()
    return summary(times)


def summary(times: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(times), "mean": statistics.fmean(times), "p99": sorted(times)[int(len(times) * 0.99)]}


def measure_tree(native: bool, num_nodes: int) -> dict[str, Any]:
    """One tree at one size."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    tree = select_tree("lru", native=native)
    start = time.perf_counter()
    filled(tree, num_nodes)
    build_seconds = time.perf_counter() - start
    gc.collect()
    resident = psutil.Process().memory_info().rss - before
    exact = {} if isinstance(tree, RadixTree) else {"bytes_a_node": tree.memory_bytes() / num_nodes}  # type: ignore[attr-defined]
    rng = random.Random(1)
    leaves = num_nodes - GROUPS
    cached = [sequence(rng.randrange(leaves)) for _ in range(SAMPLES)]
    nodes = [tree.match(tokens).node for tokens in cached]

    def hold(node: int) -> None:
        tree.lock(node)
        tree.unlock(node)

    count = min(SAMPLES, leaves // 4)
    figures: dict[str, Any] = {
        "tree": "native" if native else "python",
        "nodes": tree.stats().num_nodes,
        "build_seconds": build_seconds,
        "resident_bytes_a_node": resident / num_nodes,
        **exact,
        "match": each(tree.match, cached),
        "match_length": each(tree.match_length, cached),
        "insert": each(lambda tokens: tree.insert(tokens, tokens), [sequence(leaves + i) for i in range(count)]),
        "lock_unlock": each(hold, nodes),
        # A leaf of four tokens is one victim.
        "evict": each(tree.evict, [LEAF_TOKENS] * count),
        "evict_1000_victims": each(tree.evict, [LEAF_TOKENS * min(1000, leaves // 40)] * 10),
    }
    tree.check_invariants()
    return figures


def measure_long(native: bool) -> dict[str, Any]:
    """A long cached prompt, in one node and in one hundred."""
    figures: dict[str, Any] = {"tree": "native" if native else "python"}
    for num_nodes in (1, 100):
        tree = select_tree("lru", native=native)
        tokens = array("i", range(LONG))
        for end in range(LONG // num_nodes, LONG + 1, LONG // num_nodes):
            tree.insert(tokens[:end], tokens[:end])
        figures[f"match_{LONG}_in_{num_nodes}"] = each(tree.match, [tokens] * 500)
        figures[f"match_length_{LONG}_in_{num_nodes}"] = each(tree.match_length, [tokens] * 500)
    return figures


def measure_watchers(native: bool, num_watchers: int) -> dict[str, Any]:
    """Sequences that wait at the end of one hot node, where others go on."""
    tree = select_tree("lru", native=native)
    preamble = array("i", range(1000))
    tree.insert(preamble, preamble)
    for key in range(num_watchers):
        tree.watch(key, preamble + array("i", [1_000_000 + key]))

    def change(token: int) -> None:
        tokens = preamble + array("i", [token])
        tree.insert(tokens, tokens)
        tree.take_changed()

    return {
        "tree": "native" if native else "python",
        "watchers": num_watchers,
        "another_goes_on": each(change, range(2000, 2500)),
        "one_is_met": each(change, range(1_000_000, 1_000_500)),
    }


def measure_schedule(native: bool, num_waiting: int, num_passes: int = 300) -> dict[str, Any]:
    """Passes of longest-prefix-match over a long queue of long prompts that share preambles, in a pool that must evict."""
    num_slots, num_groups, tail = 40 * LONG, 100, 100
    cache = PrefixCache(tree=select_tree("lru", native=native), num_slots=num_slots, num_rows=64, max_length=LONG + 64)
    scheduler = Scheduler(cache=cache, policy=policy.select("lpm"), token_budget=8192, max_running=64)
    rng = random.Random(0)
    preambles = [[rng.randrange(32_000) for _ in range(LONG - tail)] for _ in range(num_groups)]

    def add(uid: int) -> None:
        prompt = preambles[rng.randrange(num_groups)] + [rng.randrange(32_000) for _ in range(tail)]
        sampling = SamplingParams(max_new_tokens=rng.randrange(8, 48))
        assert sampling.max_new_tokens is not None
        request = GenerateRequest(uid=uid, prompt=prompt, sampling=sampling)
        scheduler.add(Request(request, max_length=len(prompt) + sampling.max_new_tokens))

    for uid in range(num_waiting):
        add(uid)
    gc.collect()
    gc.freeze()  # a million tokens of prompts are not the scheduler's garbage
    times, cpu_times, uid = [], [], num_waiting
    for at in range(num_passes):
        start, cpu_start = time.perf_counter_ns(), time.process_time_ns()
        step = scheduler.schedule(float(at))
        cpu_times.append((time.process_time_ns() - cpu_start) / 1e6)
        times.append((time.perf_counter_ns() - start) / 1e6)
        scheduler.commit(step, [RowResult([5] * row.num_samples) for row in step.rows])
        while len(scheduler.waiting) < num_waiting:
            add(uid)
            uid += 1
    gc.unfreeze()
    return {
        "tree": "native" if native else "python",
        "waiting": num_waiting,
        "prompt_tokens": LONG,
        "evicted_tokens": cache.tree.stats().evicted,
        "finished": scheduler.counters.finished,
        "running": len(scheduler.running),
        "schedule_ms": summary(times[num_passes // 3 :]),
        "schedule_cpu_ms": summary(cpu_times[num_passes // 3 :]),
    }


def measure_comparison() -> dict[str, Any]:
    a, b = array("i", range(LONG)), array("i", range(LONG))
    return {"native": ops.NATIVE, f"common_prefix_length_{LONG}": each(lambda _: ops.common_prefix_length(a, 0, b, 0), range(2000))}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        parts = []
        for name, value in row.items():
            if isinstance(value, dict):
                parts.append(f"{name} {value['median']:.2f} (p99 {value['p99']:.2f})")
            else:
                parts.append(f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}")
        print("  " + " · ".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--python-nodes", type=int, default=100_000, help="largest size for the Python tree")
    parser.add_argument("--waiting", type=int, default=10_000, help="waiting requests of the scheduling pass; 0: leave it out")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    trees = [False, True] if ops.NATIVE else [False]
    sizes = [(native, size) for native in trees for size in options.nodes if native or size <= options.python_nodes]
    machine = {"platform": platform.platform(), "python": sys.version.split()[0], "cpus": psutil.cpu_count(), "load": psutil.getloadavg()}
    results: dict[str, Any] = {
        "machine": machine,
        "published_elsewhere": PUBLISHED,
        "comparison": [measure_comparison()],
    }
    show("comparison, us", results["comparison"])
    results["tree"] = []
    for native, size in sizes:
        results["tree"].append(measure_tree(native, size))
        show("" if len(results["tree"]) > 1 else "tree, us an operation", results["tree"][-1:])
    results["long"] = [measure_long(native) for native in trees]
    show(f"a prompt of {LONG} cached tokens, us", results["long"])
    results["watchers"] = [measure_watchers(native, 10_000) for native in trees]
    show("one insertion and take_changed, us", results["watchers"])
    if options.waiting:
        results["schedule"] = [measure_schedule(native, options.waiting) for native in trees]
        show("a scheduling pass", results["schedule"])
    for text in PUBLISHED.values():
        print(f"  ({text})")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
