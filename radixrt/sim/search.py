"""Living many histories, and finding the shortest one that still breaks.

A history is known by its seed and length.  When one breaks it is lived again with the whole ledger walked after every
step, so that the report names the first bad step; then operations are taken out while it still breaks.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from radixrt.sim.history import History, Operation, draw
from radixrt.sim.people import People
from radixrt.sim.world import Tally, World

DEFAULT_LENGTH = 400
CHECK_EVERY = 16


@dataclass(frozen=True, slots=True)
class Failure:
    """A history that broke a promise: ``operations`` are what is left after shrinking."""

    seed: int
    operations: Sequence[Operation]
    error: str
    trace: str

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"seed": self.seed, "operations": self.operations, "error": self.error}) + "\n")

    def __str__(self) -> str:
        listed = "\n".join(f"  {name} {number}" if number else f"  {name}" for name, number in self.operations)
        return f"seed {self.seed}: {self.error}\n{listed}\n{self.trace}"


def live(history: History, *, check_every: int = CHECK_EVERY) -> World:
    """Live a whole history; raises whatever breaks."""
    world = World(history.settings, check_every=check_every)
    people = People(world)
    for operation in history.operations:
        people.apply(operation)
    world.drain()
    return world


def explore(seeds: Sequence[int], *, length: int = DEFAULT_LENGTH, check_every: int = CHECK_EVERY) -> tuple[Tally, Failure | None]:
    """Live the histories of some seeds; stops at the first that breaks, and shrinks it."""
    tally = Tally()
    with quiet():
        for seed in seeds:
            history = draw(seed, length)
            try:
                tally += live(history, check_every=check_every).tally()
            except Exception:
                return tally, shrink(history)
    return tally, None


def replay(path: Path) -> Failure | None:
    """Live a saved history again."""
    saved = json.loads(path.read_text())
    history = History(draw(saved["seed"], 0).settings, [(name, number) for name, number in saved["operations"]])
    with quiet():
        return failure_of(history)


def failure_of(history: History) -> Failure | None:
    """Live a history with every check after every step."""
    try:
        live(history, check_every=1)
    except Exception as error:
        return Failure(history.settings.seed, history.operations, f"{type(error).__name__}: {error}", traceback.format_exc())
    return None


def shrink(history: History) -> Failure:
    """Take operations out, in ever smaller pieces, while the history still breaks (Zeller and Hildebrandt 2002)."""
    found = failure_of(history)
    if found is None:  # only the sampled checks fail: report it whole
        return Failure(history.settings.seed, history.operations, "breaks only with sampled checks", "")
    size = len(found.operations) // 2
    while size:
        at = 0
        while at < len(found.operations):
            less = [*found.operations[:at], *found.operations[at + size :]]
            shorter = failure_of(History(history.settings, less))
            if shorter is None:
                at += size
            else:
                found = shorter
        size //= 2
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Steps that fail on purpose are not logged."""
    logger = logging.getLogger("radixrt")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
