"""Who is sent back to the queue when slots are missing, and who makes way for a higher priority.

What a retracted request has computed stays in the tree until the room is needed, and what others share stays for sure.
So it costs what only it holds; and the more it has still to generate, the longer it would have stood in the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.schedule.estimate import OutputEstimate
from radixrt.schedule.request import Request

# Slots wanted from a retraction for each running request, so that the next step does not need another one.
HEADROOM = 8


class Shortage(Protocol):
    def __call__(self, running: Sequence[Request], /) -> int:
        """Return how many slots the waiting request lacks when only these run, before what the others hold is given back."""


def victim(candidates: Sequence[Request], running: Sequence[Request], cache: PrefixCache, estimate: OutputEstimate) -> Request | None:
    """Return the candidate that costs least to bring back, of those whose slots are enough for a while, or None.

    The best of ``running`` by priority and arrival is never the one.
    """
    keep = min(running, key=lambda request: (request.level, request.arrival))
    exclusive = dict(zip((request.uid for request in running), cache.num_exclusive(leases(running)), strict=True))
    wanted = HEADROOM * len(running)

    def cost(request: Request) -> tuple[int, int, int]:
        held = exclusive[request.uid]
        return max(0, wanted - held), held - estimate.remaining(request), -request.arrival

    return min((request for request in candidates if request is not keep), key=cost, default=None)


def make_way(
    request: Request, running: Sequence[Request], cache: PrefixCache, *, threshold: int, num_rows: int, shortage: Shortage
) -> list[Request]:
    """Return running requests to send back so that ``request`` gets ``num_rows`` rows and the slots it needs.

    Only those whose level is worse by more than ``threshold``, worst and newest first; none at all when they do not hold
    enough.
    """
    below = [other for other in running if other.admitted_level - request.level > threshold]
    below.sort(key=lambda other: (-other.admitted_level, -other.arrival))
    held = dict(zip((other.uid for other in running), cache.num_exclusive(leases(running)), strict=True))
    freed = 0
    for count in range(len(below) + 1):
        chosen = below[:count]
        freed += sum(held[other.uid] for other in chosen[-1:])
        if count >= num_rows and shortage([other for other in running if other not in chosen]) <= freed:
            return chosen
    return []


def leases(requests: Sequence[Request]) -> list[Lease]:
    return [request.lease for request in requests if request.lease is not None]
