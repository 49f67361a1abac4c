"""Who may come in: middleware that wants an API key on every path but the health probes, counts what each key has open, and
names each answer.

Deny by default; decided on ``scope["path"]`` alone, never on a header, and before the body is read.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server.problems import ProblemResponse, Refusal, as_problem

logger = logging.getLogger(__name__)

# /ui is a page without data, which asks its reader for the key.
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/health_generate", "/ready", "/ui"})
# Where ``RequireKey`` leaves the digest of the key that let a request in.
KEY = "radixrt.key"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


# What concerns everybody who uses the server, and so may have a key of its own.
ADMIN_PATHS = frozenset(
    {
        "/flush_cache", "/abort_request", "/pause_generation", "/continue_generation", "/v1/cache/pin", "/v1/cache/unpin",
        "/v1/cache/tree", "/v1/requests",
    }
)


def api_keys(config: ServerConfig) -> tuple[str, ...]:
    """Return the keys of flags and file.  Raises ConfigError for a file that cannot be read, or keys that cannot be sent."""
    keys = list(config.api_key)
    if config.api_key_file is not None:
        try:
            keys += [line.strip() for line in Path(config.api_key_file).read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {config.api_key_file}: {error}") from None
        if not keys:
            raise ConfigError(f"--api-key-file {config.api_key_file} holds no key")
    for name, values in (("--api-key", keys), ("--admin-api-key", [] if config.admin_api_key is None else [config.admin_api_key])):
        if any(not key.strip() for key in values):
            raise ConfigError(f"{name} must not be empty")
    return tuple(keys)


class RequireKey:
    """Answer 401 to every request without one of the bearer tokens, except on the health paths.

    With an admin key only that opens ADMIN_PATHS (403 for the others), and it opens the rest too.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], admin_key: str | None = None) -> None:
        self._app = app
        # Digests have one length, so comparing them tells nothing about the keys'.
        self._admin = None if admin_key is None else _digest(admin_key.encode())
        self._keys = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(scope["path"], Headers(scope=scope))
            if refusal is not None:
                headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
                await ProblemResponse(refusal, headers=headers, path=scope["path"])(scope, receive, send)
                return
            scope[KEY] = _digest(_given(Headers(scope=scope)))
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Refusal | None:
        given = _digest(_given(headers))
        # Every key is compared, whichever fits.
        fits = [hmac.compare_digest(given, key) for key in self._keys]
        if self._admin is not None:
            if hmac.compare_digest(given, self._admin):
                return None
            if path in ADMIN_PATHS:
                return Refusal(403, "This needs the admin key.", code="admin_key_required") if any(fits) else _missing()
        return None if any(fits) or not fits else _missing()


class BoundStreams:
    """Answer 429 to a request of a key that has so many open; without keys all clients are one.

    Inside ``RequireKey``, which says whose a request is.  Counts what brings a body, but not what an administrator needs to
    end the others.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._open: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] in ADMIN_PATHS:
            await self._app(scope, receive, send)
            return
        key = scope.get(KEY, b"")
        if self._open[key] >= self._most:
            refusal = Refusal(429, f"This key has {self._most} requests open, which is the most.", code="too_many_streams")
            await ProblemResponse(refusal, path=scope["path"])(scope, receive, send)
            return
        self._open[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


def _given(headers: Headers) -> bytes:
    """The key that a request brings."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    # Header values are decoded as Latin-1, which gives back the bytes that were sent.
    return (token if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode("latin-1", "replace")


def _missing() -> Refusal:
    return Refusal(401, "Missing or wrong API key; send it as 'Authorization: Bearer …'.", code="invalid_api_key")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


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
