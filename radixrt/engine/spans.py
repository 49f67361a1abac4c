"""What became of each answer, as OpenTelemetry spans: one of the answer, and in it queue, prefill and decode.

Names and attributes are those of the GenAI semantic conventions, with the latencies under the names that vLLM and SGLang give
them; no text of prompts or answers is ever in them.  A span is made when its answer has ended, out of times noted until then,
so that a token costs nothing.  The parent is the current context of whoever submits the request.

Imported only where tracing is on: it needs the extra ``otel``.
"""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode

import radixrt
from radixrt.engine.stream import failure
from radixrt.types import Finish, FinishReason, GenerateRequest, Usage

# The key of the context under which a front says what kind of answer is asked for.
OPERATION = "radixrt.operation"
EXPORT_TIMEOUT = 5.0
FLUSH_MILLISECONDS = 2000


class SpanRecorder:
    """Makes spans of answers and hands them to an exporter, by default in batches from a thread of its own.

    Args:
        model_name: what the model is called in them.
        exporter: where they go; ``to`` makes the one of a collector.
    """

    def __init__(self, model_name: str, exporter: SpanExporter) -> None:
        # The environment's name of the service goes first, as everywhere.
        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "radixrt"}
        self._provider = TracerProvider(resource=Resource.create({**name, "service.version": radixrt.__version__}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("radixrt", radixrt.__version__)
        self._model_name = model_name

    @classmethod
    def to(cls, endpoint: str, model_name: str) -> SpanRecorder:
        """Send spans to a collector that speaks OTLP over HTTP; an address without a path gets the usual ``/v1/traces``."""
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = endpoint.rstrip("/") + "/v1/traces"
        return cls(model_name, OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT))

    def begin(self, rid: str, index: int, request: GenerateRequest) -> AnswerSpan:
        """Start to note what becomes of an answer."""
        return AnswerSpan(self._tracer, self._model_name, rid, index, request)

    def close(self) -> None:
        """Send what has not been sent, within FLUSH_MILLISECONDS, and stop.  Waits; idempotent."""
        self._provider.force_flush(FLUSH_MILLISECONDS)
        self._provider.shutdown()


class AnswerSpan:
    """One answer from its request on.  Times are of time.monotonic()."""

    def __init__(self, tracer: trace.Tracer, model_name: str, rid: str, index: int, request: GenerateRequest) -> None:
        self._tracer = tracer
        self._context = contexts.get_current()
        self._started = time.monotonic()
        # What turns a monotonic time into the wall clock's nanoseconds.
        self._epoch = time.time_ns() - round(1e9 * self._started)
        self.queued = 0.0  # seconds that it had waited when it was admitted first
        self._first: float | None = None
        operation = contexts.get_value(OPERATION, self._context) or "text_completion"
        self._name = f"{operation} {model_name}"
        sampling = request.sampling
        self._attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "radixrt",
            "gen_ai.request.model": model_name,
            "gen_ai.response.model": model_name,
            "gen_ai.request.id": rid,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "radixrt.choice": index,
        }
        if sampling.seed is not None:
            self._attributes["gen_ai.request.seed"] = sampling.seed

    def first_token(self, now: float, queued: float) -> None:
        """The first token is there."""
        self._first, self.queued = now, queued

    def end(self, now: float, usage: Usage, finish: Finish | None) -> None:
        """The answer is over; ``finish`` is None when nobody waits for it any more."""
        first, started = self._first, self._started
        queued = min(self.queued, now - started)
        times = {"gen_ai.latency.e2e": now - started}
        if first is not None:
            times |= {
                "gen_ai.latency.time_in_queue": queued,
                "gen_ai.latency.time_to_first_token": first - started,
                "gen_ai.latency.time_in_model_prefill": first - started - queued,
                "gen_ai.latency.time_in_model_decode": now - first,
            }
        span = self._tracer.start_span(
            self._name, self._context, SpanKind.SERVER, {**self._attributes, **times, **_usage(usage)}, start_time=self._at(started)
        )
        error = failure(finish)
        if error is not None:
            span.set_attribute("error.type", error.code or error.type)
            span.set_status(Status(StatusCode.ERROR, error.message[:200]))
        else:
            span.set_attribute("gen_ai.response.finish_reasons", ["abort" if finish is None else finish.reason.value])
        admitted = started + queued
        if first is not None:
            span.add_event("first_token", timestamp=self._at(first))
            self._part(span, "queue", started, admitted)
            self._part(span, "prefill", admitted, first)
            self._part(span, "decode", first, now)
        elif finish is not None and finish.reason is not FinishReason.ABORT:
            # Nothing was to be generated: an embedding, or the scores of a prompt.
            self._part(span, "queue", started, admitted)
            self._part(span, "prefill", admitted, now)
        else:
            self._part(span, "queue", started, now)
        span.end(self._at(now))

    def _part(self, span: trace.Span, name: str, start: float, end: float) -> None:
        part = self._tracer.start_span(name, trace.set_span_in_context(span), start_time=self._at(start))
        part.end(self._at(end))

    def _at(self, moment: float) -> int:
        return self._epoch + round(1e9 * moment)


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        # As SGLang and vLLM spell them.
        "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": usage.completion_tokens,
        "gen_ai.usage.cached_tokens": usage.cached_tokens,
    }
