"""The loop around a core, by itself: when it gets ready for what may come."""

from __future__ import annotations

import time

import msgspec
import pytest
from echo_core import EchoCore

from radixrt.config import EngineConfig
from radixrt.engine.link import Command, Flush, Outputs, Report, Stop
from radixrt.engine.loop import QUIET_LOOKS, STATS_SECONDS, CoreLoop
from radixrt.types import EngineStats, GrammarStats

NEWS = Flush(1)


class Script:
    """An inbox with these commands, of which None are looks into it while it is empty."""

    def __init__(self, commands: list[Command | None]) -> None:
        self._commands = [*commands, Stop()]

    def receive(self, *, timeout: float | None) -> Command | None:
        return self._commands.pop(0) if timeout != 0.0 else None


class Counting(EchoCore):
    def __init__(self) -> None:
        super().__init__()
        self.times_prepared = 0

    def prepare(self) -> None:
        self.times_prepared += 1


@pytest.mark.parametrize(
    ("commands", "times"),
    [
        ([None] * (QUIET_LOOKS - 1), 0),
        ([None] * QUIET_LOOKS, 1),
        ([None] * 5 * QUIET_LOOKS, 1),
        ([None] * (QUIET_LOOKS - 1) + [NEWS] + [None] * (QUIET_LOOKS - 1), 0),
        ([NEWS] * QUIET_LOOKS + [None] * QUIET_LOOKS, 1),
    ],
)
def test_it_gets_ready_once_when_nothing_comes_for_a_while(commands: list[Command | None], times: int) -> None:
    assert times_prepared(commands, prepares=True) == times
    assert times_prepared(commands, prepares=False) == 0


def test_counts_that_change_while_nothing_is_asked_are_told_once() -> None:
    """A grammar is done after everybody who asked for it has gone."""

    class Changing(EchoCore):
        def __init__(self) -> None:
            super().__init__()
            self.pending = 1

        def stats(self) -> EngineStats:
            return msgspec.structs.replace(super().stats(), grammar=GrammarStats(pending=self.pending))

    class Slow(Script):
        def receive(self, *, timeout: float | None) -> Command | None:
            if timeout != 0.0 and len(self._commands) == 4:
                core.pending = 0
            time.sleep(STATS_SECONDS)
            return super().receive(timeout=timeout)

    core = Changing()
    reports: list[Report] = []
    assert CoreLoop(Slow([None, NEWS, None, None, None, None]), reports.append).run(lambda config, progress=None: core, EngineConfig())
    assert [report.stats.grammar.pending for report in reports if isinstance(report, Outputs) and report.stats] == [0]


def times_prepared(commands: list[Command | None], *, prepares: bool) -> int:
    core = Counting()
    loop = CoreLoop(Script(commands), lambda report: None, prepares=prepares)
    assert loop.run(lambda config, progress=None: core, EngineConfig())
    return core.times_prepared
