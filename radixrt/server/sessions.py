"""``/open_session`` and ``/close_session``; requests name their session in ``session_params``."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.server.bodies import read_json, typed
from radixrt.server.openai import body_schema, json_response
from radixrt.server.service import Service


class OpenSessionBody(msgspec.Struct, frozen=True, kw_only=True):
    """``timeout``: seconds without a request after which the session ends; ``capacity_of_str_len`` is taken and not needed."""

    capacity_of_str_len: int | None = None
    session_id: str | None = None
    timeout: float | None = None


class CloseSessionBody(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str


def session_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """Sessions begin and end here."""
    router = APIRouter(tags=["sessions"])

    async def read(request: Request, kind: type[Any]) -> Any:
        raw = await read_json(request, service.config)
        service.require_ready()
        return typed(raw, kind)

    @router.get("/open_session", include_in_schema=False)
    @router.post("/open_session", openapi_extra=body_schema(OpenSessionBody, components), summary="Open a session; answers its id")
    async def open_session(request: Request) -> Response:
        body: OpenSessionBody = await read(request, OpenSessionBody)
        return json_response(await service.engine.open_session(body.session_id, timeout=body.timeout))

    @router.get("/close_session", include_in_schema=False)
    @router.post("/close_session", openapi_extra=body_schema(CloseSessionBody, components), summary="End a session")
    async def close_session(request: Request) -> Response:
        body: CloseSessionBody = await read(request, CloseSessionBody)
        await service.engine.close_session(body.session_id)
        return Response()

    return router
