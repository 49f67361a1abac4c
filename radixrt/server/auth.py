"""Who may come in: a middleware that wants the API key on every path but the health probes, and names each answer.

Deny by default; decided on ``scope["path"]`` alone, never on a header, and before the body is read.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixrt.server.problems import ProblemResponse, Refusal, as_problem

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready"})
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequireKey:
    """Answer 401 to every request without the bearer token, except on the health paths."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        # Digests have one length, so comparing them tells nothing about the key's.
        self._digest = hashlib.sha256(api_key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._admits(Headers(scope=scope)):
            refusal = Refusal(401, "Missing or wrong API key; send it as 'Authorization: Bearer …'.", code="invalid_api_key")
            await ProblemResponse(refusal, headers={"www-authenticate": "Bearer"}, path=scope["path"])(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(hashlib.sha256(given.encode("latin-1", "replace")).digest(), self._digest)


class NameAnswers:
    """Put ``x-request-id`` on every answer, the client's own when it is well formed; optionally log one line a request.

    The outermost middleware, so it also answers for what nothing else has caught.
    """

    def __init__(self, app: ASGIApp, *, log: bool = False) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        started = time.perf_counter()
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception as error:
            problem = as_problem(error)
            if not status:
                await ProblemResponse(problem, path=scope["path"])(scope, receive, named)
        finally:
            if self._log:
                took = time.perf_counter() - started
                logger.info("%s %s %d %.3fs %s", scope["method"], ascii(scope["path"][:100]), status, took, name)
