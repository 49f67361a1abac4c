"""OpenTelemetry spans of requests: their times, their counts, whose trace they belong to, and what tracing refuses."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from radixrt.config import EngineConfig, ServerConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.spans import SpanRecorder
from radixrt.errors import ConfigError
from radixrt.server.app import build_app
from radixrt.server.lifecycle import _spans
from radixrt.types import SamplingParams

PARTS = ["queue", "prefill", "decode"]


def recorded(main: Callable[[AsyncEngine], Coroutine[Any, Any, None]], **options: Any) -> list[ReadableSpan]:
    """Run something on a toy engine and return the spans it left."""
    exporter = InMemorySpanExporter()
    recorder = SpanRecorder("m", exporter)

    async def run() -> None:
        engine = AsyncEngine(EngineConfig.of(model_path="toy", random_seed=1, **options), in_process=True, spans=recorder)
        await engine.start()
        try:
            await main(engine)
        finally:
            await engine.close()

    try:
        asyncio.run(asyncio.wait_for(run(), 30))
    finally:
        recorder.close()
    return list(exporter.get_finished_spans())


def roots(spans: list[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.name not in PARTS]


def parts(spans: list[ReadableSpan], root: ReadableSpan) -> list[ReadableSpan]:
    return [span for span in spans if span.parent is not None and span.parent.span_id == root.context.span_id]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def ask(engine: AsyncEngine, prompt: str, count: int, **options: Any) -> None:
    await (await engine.submit(prompt, SamplingParams(max_new_tokens=count, ignore_eos=True, **options))).collect()


def test_the_parts_of_an_answer_follow_each_other_and_fill_it() -> None:
    async def main(engine: AsyncEngine) -> None:
        await ask(engine, "What is a radix tree?", 9, temperature=0.5, seed=3)
        await ask(engine, "What is a radix tree?", 9, n=2)

    spans = recorded(main)
    first, *others = roots(spans)
    assert len(others) == 2 and len(spans) == 3 * (1 + len(PARTS))
    for root in (first, *others):
        queue, prefill, decode = parts(spans, root)
        assert [part.name for part in (queue, prefill, decode)] == PARTS
        assert root.start_time == queue.start_time and decode.end_time == root.end_time
        assert queue.end_time == prefill.start_time and prefill.end_time == decode.start_time == root.events[0].timestamp
        found = attributes(root)
        names = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "e2e")
        *split, whole = seconds = [found[f"gen_ai.latency.{name}"] for name in names]
        assert sum(split) == pytest.approx(whole) == pytest.approx((root.end_time - root.start_time) / 1e9, abs=1e-6)
        assert all(value >= 0 for value in seconds)
        assert found["gen_ai.usage.output_tokens"] == found["gen_ai.usage.completion_tokens"] == 9
        assert found["gen_ai.response.finish_reasons"] == ("length",)
        assert root.parent is None
    assert attributes(first)["gen_ai.usage.cache_read.input_tokens"] == 0
    prompt = attributes(first)["gen_ai.usage.input_tokens"]
    assert [attributes(other)["gen_ai.usage.cache_read.input_tokens"] for other in others] == [prompt - 1] * 2
    assert [attributes(other)["radixrt.choice"] for other in others] == [0, 1]
    assert (attributes(first)["gen_ai.request.temperature"], attributes(first)["gen_ai.request.seed"]) == (0.5, 3)
    assert "radix tree" not in repr([(span.name, attributes(span), span.events) for span in spans])


def test_who_waits_for_a_place_is_in_the_queue_until_there_is_one() -> None:
    async def main(engine: AsyncEngine) -> None:
        async with asyncio.TaskGroup() as group:
            for prompt in ("one", "two"):
                group.create_task(ask(engine, prompt, 200))

    spans = recorded(main, max_running_requests=1)
    first, second = roots(spans)
    queue = parts(spans, second)[0]
    assert queue.end_time - queue.start_time > 0.5 * (first.end_time - first.start_time)
    assert queue.end_time >= parts(spans, first)[2].start_time


def test_a_prompt_that_generates_nothing_is_queued_and_computed() -> None:
    async def main(engine: AsyncEngine) -> None:
        app = build_app(engine, ServerConfig(otlp_traces_endpoint="http://127.0.0.1:1"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            assert (await client.post("/v1/embeddings", json={"input": "a text"})).status_code == 200

    spans = recorded(main)
    (root,) = roots(spans)
    assert root.name == "embeddings m"
    queue, prefill = parts(spans, root)
    assert [queue.name, prefill.name] == PARTS[:2]
    assert (queue.start_time, queue.end_time, prefill.end_time) == (root.start_time, prefill.start_time, root.end_time)


def test_an_answer_nobody_waits_for_and_one_that_fails_have_spans_too() -> None:
    async def main(engine: AsyncEngine) -> None:
        stream = await engine.submit("one", SamplingParams(max_new_tokens=5000, ignore_eos=True))
        await anext(aiter(stream))
        await stream.aclose()
        waiting = await engine.submit("two", SamplingParams(max_new_tokens=5000, ignore_eos=True))
        engine._answers.end("gone")
        await waiting.aclose()

    left, failed = roots(recorded(main))
    assert attributes(left)["gen_ai.response.finish_reasons"] == ("abort",)
    assert not failed.status.is_ok and failed.status.description == "gone"
    assert "gen_ai.response.finish_reasons" not in attributes(failed)


def test_spans_belong_to_the_trace_of_the_client() -> None:
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    given = [f"00-{trace}-{span}-01", f"00-{trace}-0000000000000000-01", None]
    answers: list[int] = []

    async def main(engine: AsyncEngine) -> None:
        app = build_app(engine, ServerConfig(otlp_traces_endpoint="http://127.0.0.1:1"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for parent in given:
                headers = {} if parent is None else {"traceparent": parent}
                body = {"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
                answers.append((await client.post("/v1/chat/completions", json=body, headers=headers)).status_code)
            answers.append((await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 4})).status_code)

    spans = recorded(main)
    assert answers == [200] * 4
    followed, *others = roots(spans)
    assert followed.parent is not None and followed.parent.is_remote
    assert (f"{followed.context.trace_id:032x}", f"{followed.parent.span_id:016x}") == (trace, span)
    assert {part.context.trace_id for part in parts(spans, followed)} == {followed.context.trace_id}
    assert [other.parent for other in others] == [None] * 3
    assert len({root.context.trace_id for root in (followed, *others)}) == 4
    assert [root.name for root in (followed, *others)] == ["chat m"] * 3 + ["text_completion m"]


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://localhost:4317", ""])
def test_only_urls_are_collectors(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint"), _spans(ServerConfig(otlp_traces_endpoint=endpoint), "m"):
        pass


def test_without_the_extra_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "radixrt.engine.spans":
            raise ImportError("No module named 'opentelemetry'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"radixrt\[otel\]"), _spans(ServerConfig(otlp_traces_endpoint="http://localhost:4318"), "m"):
        pass
    with _spans(ServerConfig(), "m") as spans:
        assert spans is None
