"""``python -m radixrt.sim``: live histories until one breaks a promise, or enough steps are done."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from radixrt.sim.search import CHECK_EVERY, DEFAULT_LENGTH, Failure, explore, replay
from radixrt.sim.world import Tally

HISTORIES_A_TASK = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 when a history broke."""
    parser = argparse.ArgumentParser(prog="python -m radixrt.sim", description=__doc__)
    parser.add_argument("--steps", type=int, default=300_000, help="scheduling steps to live, in all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history; the others count up from it")
    parser.add_argument("--length", type=int, default=DEFAULT_LENGTH, help="operations of a history")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--check-every", type=int, default=CHECK_EVERY, help="steps between walks of the whole ledger")
    parser.add_argument("--save", type=Path, default=Path("failure.json"), help="where a history that broke is written")
    parser.add_argument("--replay", type=Path, help="live the history of such a file again, and nothing else")
    chosen = parser.parse_args(arguments)
    if chosen.replay is not None:
        failure = replay(chosen.replay)
        print(failure or "the history breaks nothing")
        return int(failure is not None)
    begin = time.perf_counter()
    tally, failure = run(chosen.steps, seed=chosen.seed, jobs=chosen.jobs, length=chosen.length, check_every=chosen.check_every)
    seconds = time.perf_counter() - begin
    print(f"{tally}\n{seconds:.1f} s, {tally.steps / seconds:,.0f} steps/s")
    if failure is not None:
        failure.save(chosen.save)
        print(f"{failure}\nsaved; live it again with --replay {chosen.save}")
    return int(failure is not None)


def run(steps: int, *, seed: int, jobs: int, length: int, check_every: int) -> tuple[Tally, Failure | None]:
    """Live histories until their steps add up to ``steps`` or one breaks."""
    tally = Tally()
    tasks = (range(start, start + HISTORIES_A_TASK) for start in itertools.count(seed, HISTORIES_A_TASK))
    for done, failure in _explored(tasks, jobs, length, check_every):
        tally += done
        if sys.stderr.isatty():
            print(f"\r{tally.steps:,} of {steps:,} steps", end="", file=sys.stderr)
        if failure is not None or tally.steps >= steps:
            return tally, failure
    raise AssertionError("seeds never run out")


def _explored(tasks: Iterator[range], jobs: int, length: int, check_every: int) -> Iterator[tuple[Tally, Failure | None]]:
    if jobs == 1:
        for seeds in tasks:
            yield explore(seeds, length=length, check_every=check_every)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:  # whoever calls may have threads
        pending: set[Future[tuple[Tally, Failure | None]]] = set()
        try:
            while True:
                while len(pending) < 2 * jobs:
                    pending.add(pool.submit(explore, next(tasks), length=length, check_every=check_every))
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
