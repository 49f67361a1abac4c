"""Who runs and who waits, as plain values for people and routers."""

from __future__ import annotations

from itertools import islice

from radixrt.engine.questions import RequestFacts, RequestsView
from radixrt.schedule.request import Request
from radixrt.schedule.scheduler import Scheduler


def view_requests(scheduler: Scheduler, limit: int, now: float) -> RequestsView:
    """Return up to ``limit`` running and as many waiting requests."""
    return RequestsView(
        [_facts(request, "", now) for request in islice(scheduler.running, limit)],
        [_facts(request, scheduler.waits_for(request), now) for request in islice(scheduler.waiting, limit)],
        len(scheduler.running), len(scheduler.waiting),
    )


def _facts(request: Request, waits_for: str, now: float) -> RequestFacts:
    return RequestFacts(
        request.uid, request.num_prompt, request.num_cached, request.num_computed, request.num_verified - request.num_prompt,
        request.priority, request.num_retractions, now - request.arrived, waits_for,
    )
