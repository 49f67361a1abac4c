"""The one place where exceptions become HTTP answers: ``{"error": {message, type, param, code}}`` with a status.

Messages are cut to a bound and never carry internals; what is not a RadixrtError is a 500 that is logged here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
    """A JSON answer for an error."""

    media_type = "application/json"

    def __init__(self, error: RadixrtError, headers: Mapping[str, str] | None = None) -> None:
        extra = dict(headers or {})
        if error.status in (429, 503):
            extra["retry-after"] = str(getattr(error, "retry_after", RETRY_AFTER))
        super().__init__(error_json(error), status_code=error.status, headers=extra)


def error_json(error: RadixrtError) -> bytes:
    """Encode the body of an error."""
    message = error.message or error.type
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    # A lone surrogate cannot be encoded; an error about one must still reach the client.
    message = message.encode("utf-8", "replace").decode()
    return orjson.dumps({"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}})


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
        return ProblemResponse(as_problem(error))

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        messages: dict[int, tuple[str, str]] = {
            404: (f"There is no route {excerpt(request.url.path)}.", "route_not_found"),
            405: (f"{request.method} is not allowed on {excerpt(request.url.path)}.", "method_not_allowed"),
        }
        message, code = messages.get(error.status_code, (excerpt(error.detail), "http_error"))
        return ProblemResponse(Refusal(error.status_code, message, code=code), headers=error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        return ProblemResponse(RequestError("The request's path or query is not valid.", code="invalid_value"))

    app.add_exception_handler(RadixrtError, known)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, invalid)


def body_of(error: RadixrtError) -> dict[str, Any]:
    """The body of an error as an object, for events inside a stream."""
    decoded: dict[str, Any] = orjson.loads(error_json(error))
    return decoded
