"""The exception tree of radixrt, and nothing else.

    RadixrtError
    ├── ConfigError        bad combination or name at start-up (exit code 2)
    ├── RequestError       the caller's fault: HTTP 400 with ``param`` and ``code``
    │   ├── PromptTooLong · InvalidSampling · GrammarError · UnknownModel (404)
    ├── Overloaded         the queue is full: HTTP 429 with Retry-After
    ├── EngineStopped      the engine is gone or going: HTTP 503
    └── InternalError      ours: HTTP 500 for that request only
"""

from __future__ import annotations


class RadixrtError(Exception):
    """Base of every error radixrt raises on purpose; ``status`` is the HTTP status it maps to."""

    status = 500
    type = "internal_error"
    code: str | None = None
    param: str | None = None

    @property
    def message(self) -> str:
        return str(self)


class ConfigError(RadixrtError):
    """A flag, name or combination that cannot work; raised before anything is started."""


class RequestError(RadixrtError):
    """The caller's fault.

    Args:
        message: what is wrong, for a person.
        param: the request field at fault.
        code: a machine-readable reason.
    """

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code if code is not None else type(self).code


class PromptTooLong(RequestError):
    """The prompt does not fit the context or the KV pool."""

    code = "context_length_exceeded"


class InvalidSampling(RequestError):
    """A sampling parameter is out of range or of the wrong type."""

    code = "invalid_value"


class GrammarError(RequestError):
    """A grammar or schema is malformed, unsupported or over the limits.

    ``keyword`` and ``pointer`` (a JSON pointer) say which part of a schema is meant, where one part is.
    """

    code = "invalid_grammar"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, keyword: str | None = None, pointer: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.keyword = keyword
        self.pointer = pointer


class UnknownModel(RequestError):
    """The request names a model this server does not serve."""

    status = 404
    type = "not_found_error"
    code = "model_not_found"


class Overloaded(RadixrtError):
    """The waiting queue is full; the caller may retry after ``retry_after`` seconds."""

    status = 429
    type = "overloaded_error"
    code = "queue_full"
    retry_after = 1


class EngineStopped(RadixrtError):
    """The engine has stopped, is stopping, or its process died."""

    status = 503
    type = "service_unavailable"
    code = "engine_stopped"


class InternalError(RadixrtError):
    """An error of ours that ends one request; ``code`` says which, where there is more to say than that."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or "internal_error"
