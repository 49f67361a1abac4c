"""The HTTP side of tracing: which trace a request belongs to, by its ``traceparent``, and what kind of answer it asks for.

Imported only where tracing is on: it needs the extra ``otel``.
"""

from __future__ import annotations

from opentelemetry import context as contexts
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from radixrt.engine.spans import OPERATION

# Everything else is a text completion.
OPERATIONS = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"), "chat"), "/v1/embeddings": "embeddings",
}


class FollowTrace:
    """Make the trace that a client's headers name (W3C Trace Context) the current one; one that is not well formed is none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Nothing of the surroundings: what goes on in this process beside it has no part in the client's trace.
        context = self._propagator.extract(Headers(scope=scope), contexts.Context())
        operation = OPERATIONS.get(scope["path"], "text_completion")
        token = contexts.attach(contexts.set_value(OPERATION, operation, context))
        try:
            await self._app(scope, receive, send)
        finally:
            contexts.detach(token)
