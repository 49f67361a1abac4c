"""Which reports of the loop around a core carry counts."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.config import EngineConfig
from radixrt.engine import loop
from radixrt.engine.link import Abort, Command, Outputs, Stop
from radixrt.types import EngineStats, Finish, FinishReason, ModelInfo, TokenOutput

END = Finish(FinishReason.STOP)


class Script:
    """A core whose steps bring what is written; commands arrive before steps of some numbers."""

    info = ModelInfo(model_path="", architecture="", vocab_size=1, context_length=1, capacity_tokens=1)
    config = EngineConfig()
    patience = None

    def __init__(self, finishes: list[Finish | None], commands: dict[int, Command]) -> None:
        self.finishes, self.commands, self.steps = finishes, commands, 0

    def receive(self, *, timeout: float | None) -> Command | None:
        return Stop() if self.steps == len(self.finishes) else self.commands.pop(self.steps, None)

    def has_work(self) -> bool:
        return self.steps < len(self.finishes)

    def step(self) -> list[TokenOutput]:
        self.steps += 1
        return [TokenOutput(1, [7], finish=self.finishes[self.steps - 1])]

    def stats(self) -> EngineStats:
        return EngineStats(steps=self.steps)

    def prepare(self) -> None: ...

    def abort(self, uid: int) -> None: ...

    def close(self) -> None: ...


def counted(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the steps whose reports have counts, of eight: one ends a request, a command comes before another."""
    monkeypatch.setattr(loop, "STATS_SECONDS", seconds)
    reports: list[Any] = []
    script: Any = Script([None, None, END, None, None, None, None, None], {5: Abort(9)})
    assert loop.CoreLoop(script, reports.append).run(lambda *_, **__: script, EngineConfig())
    outputs = [report for report in reports if isinstance(report, Outputs)]
    assert len(outputs) == 8
    assert all(report.stats is None or report.stats.steps == number for number, report in enumerate(outputs, 1))
    return [number for number, report in enumerate(outputs, 1) if report.stats is not None]


def test_counts_come_first_with_ends_after_commands_and_before_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(1e9, monkeypatch) == [1, 3, 6, 8]


def test_counts_come_again_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(0.0, monkeypatch) == [*range(1, 9)]
