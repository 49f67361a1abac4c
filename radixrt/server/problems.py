"""The one place where exceptions become HTTP answers: ``{"error": {message, type, param, code}}`` with a status.

The routes of other dialects have their own shapes of the same, chosen by the path (``SHAPES``).

Messages are cut to a bound and never carry internals; what is not a RadixrtError is a 500 that is logged here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from radixrt.errors import InternalError, RadixrtError, RequestError

logger = logging.getLogger(__name__)

MAX_MESSAGE = 600
MAX_ECHO = 100
RETRY_AFTER = 1

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "overloaded_error", 503: "service_unavailable"}


class Refusal(RadixrtError):
    """An error with an explicit HTTP status, for what the exception tree has no class for."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = _TYPES.get(status, "invalid_request_error" if status < 500 else "internal_error")
        self.code = code
        self.param = param


class ProblemResponse(Response):
    """A JSON answer for an error, in the shape that clients of ``path`` read."""

    media_type = "application/json"

    def __init__(self, error: RadixrtError, headers: Mapping[str, str] | None = None, *, path: str = "") -> None:
        extra = dict(headers or {})
        if error.status in (429, 503):
            extra["retry-after"] = str(getattr(error, "retry_after", RETRY_AFTER))
        super().__init__(error_json(error, path), status_code=error.status, headers=extra)


def openai_shape(error: RadixrtError, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}


def anthropic_shape(error: RadixrtError, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def ollama_shape(error: RadixrtError, message: str) -> dict[str, Any]:
    return {"error": message}


_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}
SHAPES: tuple[tuple[str, Callable[[RadixrtError, str], dict[str, Any]]], ...] = (
    ("/v1/messages", anthropic_shape), ("/api/", ollama_shape), ("", openai_shape)
)


def error_json(error: RadixrtError, path: str = "") -> bytes:
    """Encode the body of an error on a route."""
    message = error.message or error.type
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    # A lone surrogate cannot be encoded; an error about one must still reach the client.
    message = message.encode("utf-8", "replace").decode()
    shape = next(shape for prefix, shape in SHAPES if path.startswith(prefix))
    return orjson.dumps(shape(error, message))


def excerpt(value: object) -> str:
    """Show a piece of the caller's input, bounded."""
    text = str(value)
    return text if len(text) <= MAX_ECHO else text[: MAX_ECHO - 1] + "…"


def as_problem(error: BaseException) -> RadixrtError:
    """Return the error to show for any exception; an unexpected one is logged and hidden."""
    if isinstance(error, RadixrtError):
        return error
    logger.error("request failed", exc_info=error)
    return InternalError("Internal error; the server log has the details.")


def install(app: FastAPI) -> None:
    """Make errors of the routes answer in this shape, those of the framework included; the rest is ``NameAnswers``'s."""

    async def known(request: Request, error: Exception) -> Response:
        return ProblemResponse(as_problem(error), path=request.url.path)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        messages: dict[int, tuple[str, str]] = {
            404: (f"There is no route {excerpt(request.url.path)}.", "route_not_found"),
            405: (f"{request.method} is not allowed on {excerpt(request.url.path)}.", "method_not_allowed"),
        }
        message, code = messages.get(error.status_code, (excerpt(error.detail), "http_error"))
        return ProblemResponse(Refusal(error.status_code, message, code=code), headers=error.headers, path=request.url.path)

    async def invalid(request: Request, error: Exception) -> Response:
        return ProblemResponse(RequestError("The request's path or query is not valid.", code="invalid_value"), path=request.url.path)

    app.add_exception_handler(RadixrtError, known)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, invalid)
