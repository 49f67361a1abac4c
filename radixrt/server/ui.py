"""``/ui``: one static page that shows the live tree, the requests and the hit rate, and lets people try a prompt.

The page holds no data: it asks the routes that anybody may ask, with the key that its reader gives it.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from radixrt.errors import RequestError
from radixrt.server.cache import number
from radixrt.server.openai import json_response
from radixrt.server.service import Service

MAX_REQUESTS = 1000
# Nothing from elsewhere is loaded or sent to; what the page shows of prompts is put in as text.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'"


def ui_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """The page, and the list of requests it shows."""
    router = APIRouter(tags=["ui"])
    page = resources.files("radixrt.server").joinpath("static/ui.html").read_text("utf-8")

    @router.get("/ui", summary="Look at the tree and the requests in a browser")
    async def ui() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": POLICY, "x-content-type-options": "nosniff"})

    @router.get("/v1/requests", summary="Who runs and who waits, and for what")
    async def requests(request: Request) -> Response:
        service.require_ready()
        limit = number(request, "limit", 100)
        if not 1 <= limit <= MAX_REQUESTS:
            raise RequestError(f"limit must be in [1, {MAX_REQUESTS}], got {limit}.", param="limit", code="invalid_value")
        return json_response(await service.engine.view_requests(limit))

    return router
