"""The slots of one pass, and those that are kept for whoever did not fit.

A request that does not fit is skipped.  Those behind it may start if by all that is known it starts no later for that:
because they end before its slots are there, or because they leave enough ("EASY" backfilling, Lifka 1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.schedule.estimate import Forecast, OutputEstimate
from radixrt.schedule.request import Request


class Room:
    """The slots of one pass: those that are there, less those that running requests will grow into."""

    def __init__(self, cache: PrefixCache, estimate: OutputEstimate, running: Sequence[Request]) -> None:
        self._cache = cache
        self._estimate = estimate
        self._num_running = len(running)
        self._forecast = Forecast()
        for request in running:
            self._add(request)
        self._kept: Kept | None = None

    def fits(self, request: Request, num_cached: int) -> bool:
        """Whether a request can start of which ``num_cached`` tokens are cached.

        Alone it always can: nothing is gained by waiting.
        """
        if not self._num_running:
            return True
        if self.shortage(request, num_cached):
            return False
        growth, kept = self._estimate.remaining(request), self._kept
        return kept is None or growth < kept.steps or pending(request, num_cached) + growth <= kept.spare

    def shortage(self, request: Request, num_cached: int) -> int:
        """Return how many slots are missing for a request to start."""
        peak = self._forecast.peak(pending=pending(request, num_cached), growth=self._estimate.remaining(request))
        return max(0, peak - self._cache.num_available)

    def keep(self, request: Request, num_cached: int) -> None:
        """Keep the slots that a request needs, once they are there; only the first one skipped in a pass is worth it."""
        if self._kept is None:
            need = pending(request, num_cached) + self._estimate.remaining(request)
            self._kept = Kept(*self._forecast.when(need, self._cache.num_available))

    def take(self, request: Request) -> None:
        """Count in a request that has started."""
        growth = self._estimate.remaining(request)
        if self._kept is not None and growth >= self._kept.steps:
            self._kept.spare -= pending(request, request.num_computed) + growth
        self._num_running += 1
        self._add(request)

    def _add(self, request: Request) -> None:
        held = max(0, request.num_computed - request.num_shared)
        self._forecast.add(held=held, pending=pending(request, request.num_computed), growth=self._estimate.remaining(request))


def pending(request: Request, num_computed: int) -> int:
    """How many slots a request takes before it grows by one with each token it generates."""
    return max(0, request.num_verified - 1 - num_computed)


@dataclass(slots=True)
class Kept:
    """After ``steps`` steps a skipped request will have its slots, with ``spare`` more that it does not need."""

    steps: int
    spare: int
