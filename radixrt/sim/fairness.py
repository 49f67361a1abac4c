"""A count, kept apart from the scheduler's own, of how often a waiting request is passed over.

A request's turn has come when ``PATIENCE`` times as many requests have been admitted since its arrival as were waiting then.
A pass that admits one that has come after that passes it over.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from radixrt.config import ScheduleConfig
from radixrt.schedule.admission import MAX_SKIPS
from radixrt.schedule.queue import PATIENCE


@dataclass(slots=True)
class Turn:
    """``newcomers``: the place of the first that has come since, or None before the turn."""

    comes_at: int
    newcomers: int | None = None
    times_passed: int = 0


class Fairness:
    """Raises AssertionError when a request is passed over more often than the policy allows."""

    def __init__(self, schedule: ScheduleConfig) -> None:
        self.most_passes = self._most_passes(schedule)
        self._turns: dict[int, Turn] = {}
        self._running: Set[int] = set()
        self._num_admitted = 0
        self._places: dict[int, int] = {}  # by uid, in the order of arrival

    def arrived(self, uid: int, num_waiting: int) -> None:
        """A request has been queued behind ``num_waiting`` others."""
        self._places[uid] = len(self._places)
        if self.most_passes is not None:
            self._turns[uid] = Turn(self._num_admitted + math.ceil(PATIENCE * num_waiting), None if num_waiting else len(self._places))

    def left(self, uid: int) -> None:
        """A request has ended, wherever it was."""
        self._turns.pop(uid, None)

    def passed(self, extended: Set[int], running: Set[int]) -> None:
        """A pass has extended these requests; whoever was not running before has been admitted by it."""
        if self.most_passes is None or not extended:
            return
        admitted = extended - self._running
        self._running = running
        if not admitted:
            return
        newest = max(self._places[uid] for uid in admitted)
        for uid in admitted:
            self._turns.pop(uid, None)
        for uid, turn in self._turns.items():
            if turn.newcomers is not None and newest >= turn.newcomers:
                turn.times_passed += 1
                assert turn.times_passed <= self.most_passes, f"request {uid} is passed over too often"
        self._num_admitted += len(admitted)
        for turn in self._turns.values():
            if turn.newcomers is None and turn.comes_at <= self._num_admitted:
                turn.newcomers = len(self._places)

    @staticmethod
    def _most_passes(schedule: ScheduleConfig) -> int | None:
        """How often the settings allow a request to be passed over; None for any number of times."""
        if schedule.enable_priority_scheduling:
            return None
        if schedule.schedule_policy == "fcfs":
            return MAX_SKIPS
        if schedule.schedule_policy == "lpm" and schedule.lpm_max_passes:
            return schedule.lpm_max_passes
        return None
