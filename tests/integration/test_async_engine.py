"""The engine front over a core that echoes: validation, streams, and that nothing hangs or leaks whatever happens when."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from echo_core import BREAK, CAPACITY, CONTEXT, FAIL, REFUSE, VOCABULARY, EchoCore

from radixrt.config import EngineConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.client import ThreadClient
from radixrt.engine.stream import Joined, failure
from radixrt.errors import ConfigError, EngineStopped, InternalError, InvalidSampling, PromptTooLong, RequestError
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import FinishReason, LogprobOptions, RequestOutput, SamplingParams, Usage

SLOW = "echo/0.005"
LONG = SamplingParams(max_new_tokens=None)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; nothing here takes long unless it hangs."""
    asyncio.run(asyncio.wait_for(coroutine, 20))


class Loader:
    """Loads echo cores and keeps them for inspection."""

    def __init__(self) -> None:
        self.cores: list[EchoCore] = []

    def __call__(self, config: EngineConfig, *, progress: Any = None) -> EchoCore:
        self.cores.append(EchoCore.load(config, progress=progress))
        return self.cores[-1]


def make(model: str = "echo", *, restarts: tuple[float, ...] = (), tokenizer: Any = None) -> AsyncEngine:
    loader = Loader()
    engine = AsyncEngine(
        EngineConfig.of(model_path=model), in_process=True, client=ThreadClient(loader), tokenizer=tokenizer or ToyTokenizer()
    )
    engine._life.restarts = restarts
    engine.cores = loader.cores  # type: ignore[attr-defined]
    return engine


@asynccontextmanager
async def running(model: str = "echo", **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = make(model, **options)
    await engine.start()
    try:
        yield engine
        await settled(engine)
    finally:
        await engine.close()


async def settled(engine: AsyncEngine) -> None:
    """Wait until the core is idle, then check that neither side remembers anything."""
    async with asyncio.timeout(5):
        while engine.num_open or not await engine.flush_cache():
            await asyncio.sleep(0.002)
    assert (engine._answers.rids, len(engine._tickets), len(engine._answers.output)) == ([], 0, 0)
    assert engine.stats.locked_tokens == 0


async def until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.002)


async def answer(engine: AsyncEngine, prompt: str = "abc", count: int = 6) -> str:
    (whole,) = await (await engine.submit(prompt, SamplingParams(max_new_tokens=count))).collect()
    assert whole.finish.reason is FinishReason.LENGTH
    return whole.text


def test_events_join_to_the_whole_answer() -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit("abc", SamplingParams(max_new_tokens=7), rid="mine", logprobs=LogprobOptions())
            assert (stream.rid, stream.num_prompt, list(stream.prompt), stream.num_choices) == ("mine", 3, [97, 98, 99], 1)
            events = [event async for event in stream]
            assert "".join(event.text_delta for event in events) == "abcabca"
            assert [token for event in events for token in event.token_ids_delta] == list(b"abcabca")
            assert [entry.token for event in events for entry in event.logprobs_delta or ()] == list(b"abcabca")
            assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
            assert events[-1].usage.completion_tokens == 7
            assert await answer(engine, "abc", 7) == "abcabca"

    run(main())


def test_each_choice_is_a_request_of_its_own_with_its_own_seed() -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit("ab", SamplingParams(max_new_tokens=3, n=3, seed=2**63 - 2))
            answers = await stream.collect()
            assert [(a.index, a.text) for a in answers] == [(0, "aba"), (1, "aba"), (2, "aba")]
            requests = engine.cores[0].requests
            assert [r.sampling.seed for r in requests] == [2**63 - 2, 2**63 - 1, -(2**63)]
            assert [r.sampling.n for r in requests] == [1, 1, 1]
            assert len({r.uid for r in requests}) == 3

    run(main())


@pytest.mark.parametrize(("asked", "given"), [(None, CONTEXT - 3), (10**9, CONTEXT - 3), (5, 5), (0, 0)])
def test_the_context_bounds_what_is_generated(asked: int | None, given: int) -> None:
    async def main() -> None:
        async with running() as engine:
            (whole,) = await (await engine.submit("abc", SamplingParams(max_new_tokens=asked, min_new_tokens=0))).collect()
            assert (len(whole.token_ids), whole.finish.reason) == (given, FinishReason.LENGTH)

    run(main())


BAD = [
    ("", {}, {}, RequestError, "prompt"),
    ([], {}, {}, RequestError, "prompt"),
    ([-1], {}, {}, RequestError, "prompt"),
    ([VOCABULARY], {}, {}, RequestError, "prompt"),
    ([1, True], {}, {}, RequestError, "prompt"),
    ([1, 2.0], {}, {}, RequestError, "prompt"),
    (["a"], {}, {}, RequestError, "prompt"),
    ("a" * CONTEXT, {}, {}, PromptTooLong, "prompt"),
    ([1] * (CONTEXT + 1), {}, {}, PromptTooLong, "prompt"),
    ("a" * 10**7, {}, {}, PromptTooLong, "prompt"),
    ("\ud83d", {}, {}, RequestError, None),
    ("a", {"temperature": float("nan")}, {}, InvalidSampling, "temperature"),
    ("a", {"stop_token_ids": (VOCABULARY,)}, {}, InvalidSampling, "stop_token_ids"),
    ("a", {"n": 0}, {}, InvalidSampling, "n"),
    ("a", {}, {"logprobs": LogprobOptions(top=21)}, InvalidSampling, "top_logprobs"),
    ("a", {}, {"logprobs": LogprobOptions(start_len=2)}, RequestError, "logprob_start_len"),
    ("a", {}, {"rid": "taken"}, RequestError, "rid"),
    # What has the wrong type would break the core in the middle of everybody's step.
    ("a", {"max_new_tokens": 2.5}, {}, RequestError, "max_new_tokens"),
    ("a", {"temperature": "hot"}, {}, RequestError, "temperature"),
    ("a", {"seed": 1.5}, {}, RequestError, "seed"),
    ("a", {"logit_bias": {1.5: 1}}, {}, RequestError, "logit_bias"),
    ("a", {"top_k": True}, {}, RequestError, "top_k"),
    ("a", {}, {"logprobs": LogprobOptions(top=2.0)}, RequestError, "top"),  # type: ignore[arg-type]
    ("a", {}, {"logprobs": LogprobOptions(start_len=None)}, RequestError, "start_len"),  # type: ignore[arg-type]
    ("a", {}, {"namespace": ("", [5])}, RequestError, "namespace"),
    ("a", {}, {"priority": 2**70}, RequestError, None),
    ("a", {}, {"namespace": ("\ud800",)}, RequestError, None),
    ("a", {"stop": ("\ud800",)}, {}, RequestError, None),
    ("a", {"seed": object()}, {}, RequestError, None),
]


@pytest.mark.parametrize(("prompt", "sampling", "options", "error", "param"), BAD)
def test_bad_input_costs_its_sender_an_error_and_nobody_else_anything(
    prompt: Any, sampling: dict[str, Any], options: dict[str, Any], error: type[RequestError], param: str | None
) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            neighbour = await engine.submit("xyz", SamplingParams(max_new_tokens=20), rid="taken")
            with pytest.raises(error) as caught:
                await engine.submit(prompt, SamplingParams(**sampling), **options)
            assert type(caught.value) is error
            assert caught.value.param == param or param is None
            assert engine.num_open == 1
            (whole,) = await neighbour.collect()
            assert whole.text == "xyz" * 6 + "xy"
            assert len(engine.cores[0].requests) == 1

    run(main())


def test_a_prompt_that_is_too_long_is_told_the_limit_and_its_length() -> None:
    async def main() -> None:
        async with running() as engine:
            with pytest.raises(PromptTooLong, match=rf"maximum context length is {CONTEXT} tokens.* {CONTEXT + 5}\."):
                await engine.submit([1] * (CONTEXT + 5), SamplingParams(), prompt_param="input_ids")
            with pytest.raises(PromptTooLong, match="of 1000000 characters"):
                await engine.encode("a" * 10**6)
            messages = [{"role": "user", "content": [{"type": "text", "text": "a" * 10**6}]}]
            with pytest.raises(PromptTooLong, match="maximum context length"):
                await engine.encode_chat(messages)

    run(main())


def test_ids_of_a_prompt_that_is_too_long_are_not_looked_at() -> None:
    class Unread(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("looked at")

    async def main() -> None:
        async with running() as engine:
            with pytest.raises(PromptTooLong):
                await engine.submit(Unread([1] * CONTEXT), SamplingParams())

    run(main())


def test_a_name_is_free_again_once_its_request_has_ended() -> None:
    async def main() -> None:
        async with running() as engine:
            for _ in range(3):
                stream = await engine.submit("a", SamplingParams(max_new_tokens=2), rid="again")
                await stream.collect()

    run(main())


def test_of_two_racing_requests_of_one_name_one_runs() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            results = await asyncio.gather(
                *(engine.submit("a", SamplingParams(max_new_tokens=3), rid="one") for _ in range(4)), return_exceptions=True
            )
            streams = [result for result in results if not isinstance(result, BaseException)]
            assert len(streams) == 1
            await streams[0].collect()

    run(main())


def test_abort_takes_exactly_the_named_request() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            one = await engine.submit("abc", SamplingParams(max_new_tokens=100, n=2), rid="job-1")
            other = await engine.submit("xyz", SamplingParams(max_new_tokens=20), rid="job-12")
            await anext(one)
            assert not await engine.abort("job")
            assert not await engine.abort("")
            assert await engine.abort("job-1")
            answers = await one.collect()
            assert [a.finish.reason for a in answers] == [FinishReason.ABORT] * 2
            assert failure(answers[0].finish) is None
            (whole,) = await other.collect()
            assert whole.text == "xyz" * 6 + "xy"
            assert not await engine.abort("job-1")

    run(main())


def test_abort_all_ends_every_stream() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            streams = [await engine.submit("abc", LONG) for _ in range(5)]
            assert await engine.abort_all() == 5
            for stream in streams:
                (whole,) = await stream.collect()
                assert whole.finish.reason is FinishReason.ABORT

    run(main())


@pytest.mark.parametrize("num_events", [0, 1, 2, 5])
@pytest.mark.parametrize("choices", [1, 3])
def test_leaving_a_stream_at_any_event_frees_the_core(num_events: int, choices: int) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            async with await engine.submit("abc", SamplingParams(max_new_tokens=None, n=choices)) as stream:
                for _ in range(num_events):
                    await anext(stream)
            assert engine.num_open == 0
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            await settled(engine)
            assert len(engine.cores[0].aborted) == choices
            assert await answer(engine) == "abcabc"

    run(main())


def test_a_stream_that_nobody_holds_is_aborted() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            await engine.submit("abc", LONG)
            gc.collect()
            await until(lambda: engine.num_open == 0)
            await settled(engine)
            assert len(engine.cores[0].aborted) == 1

    run(main())


def test_a_stream_is_alive_while_its_reader_waits() -> None:
    async def main() -> None:
        async with running("echo/0.05") as engine:
            task = asyncio.create_task((await engine.submit("abc", SamplingParams(max_new_tokens=3))).collect())
            for _ in range(5):
                await asyncio.sleep(0.02)
                gc.collect()
            (whole,) = await task
            assert whole.text == "abc"

    run(main())


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.02])
def test_cancelling_a_caller_aborts_its_request(delay: float) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:

            async def call() -> None:
                await (await engine.submit("abc", LONG)).collect()

            task = asyncio.create_task(call())
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settled(engine)

    run(main())


def test_cancelling_during_tokenizing_starts_nothing() -> None:
    class SlowTokenizer(ToyTokenizer):
        def encode(self, text: str, **options: bool) -> list[int]:
            time.sleep(0.2)
            return super().encode(text, **options)

    async def main() -> None:
        async with running(tokenizer=SlowTokenizer()) as engine:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await engine.submit("abc", LONG)
            await asyncio.sleep(0.3)
            assert engine.cores[0].requests == []

    run(main())


def test_tokenizing_does_not_hold_up_the_event_loop() -> None:
    class SlowTokenizer(ToyTokenizer):
        def encode(self, text: str, **options: bool) -> list[int]:
            time.sleep(0.3)
            return super().encode(text, **options)

    async def main() -> None:
        async with running(tokenizer=SlowTokenizer()) as engine:
            task = asyncio.create_task(engine.encode("abc"))
            ticks = 0
            while not task.done():
                await asyncio.sleep(0.01)
                ticks += 1
            assert ticks > 10

    run(main())


def test_a_slow_reader_gets_one_joined_event_a_choice() -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit("abc", SamplingParams(max_new_tokens=50, n=2), logprobs=LogprobOptions())
            await until(lambda: engine.num_open == 0)
            events = [event async for event in stream]
            assert [event.index for event in events] == [0, 1]
            for event in events:
                assert event.text_delta == ("abc" * 17)[:50]
                assert len(event.token_ids_delta) == len(event.logprobs_delta or ()) == 50
                assert event.finish is not None

    run(main())


def test_joining_events_leaves_them_as_they_were() -> None:
    events = [RequestOutput(rid="r", index=0, text_delta="a", token_ids_delta=[i], usage=Usage()) for i in range(3)]
    joined = Joined(events[0])
    joined.push(events[1])
    joined.push(events[2])
    assert (joined.event().text_delta, joined.event().token_ids_delta) == ("aaa", [0, 1, 2])
    assert [event.token_ids_delta for event in events] == [[0], [1], [2]]


def test_a_stop_string_ends_the_answer_and_the_computing() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            stream = await engine.submit("abcd", SamplingParams(max_new_tokens=None, stop=("da",)))
            (whole,) = await stream.collect()
            assert (whole.text, whole.finish.reason, whole.finish.matched) == ("abc", FinishReason.STOP, "da")
            await settled(engine)
            assert engine.stats.generated_tokens < 20

    run(main())


@pytest.mark.parametrize(("prompt", "status", "error"), [(REFUSE, 400, RequestError), (BREAK, 500, InternalError)])
def test_a_request_that_fails_in_the_core_fails_alone(prompt: str, status: int, error: type[Exception]) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            neighbour = await engine.submit("xyz", SamplingParams(max_new_tokens=20))
            (whole,) = await (await engine.submit(prompt, LONG)).collect()
            assert (whole.finish.reason, whole.finish.status) == (FinishReason.ABORT, status)
            assert isinstance(failure(whole.finish), error)
            (other,) = await neighbour.collect()
            assert other.text == "xyz" * 6 + "xy"

    run(main())


def test_an_answer_whose_text_cannot_be_made_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            push = engine._answers.output.push

            def breaking(output: Any) -> tuple[RequestOutput | None, bool]:
                if output.tokens == [ord("!")]:
                    raise ValueError("no text")
                return push(output)

            monkeypatch.setattr(engine._answers.output, "push", breaking)
            neighbour = await engine.submit("xyz", SamplingParams(max_new_tokens=20))
            (whole,) = await (await engine.submit("!", LONG)).collect()
            assert whole.finish.status == 500
            (other,) = await neighbour.collect()
            assert other.text == "xyz" * 6 + "xy"

    run(main())


def test_the_cache_is_flushed_only_when_idle() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            async with await engine.submit("abc", LONG) as stream:
                await anext(stream)
                assert not await engine.flush_cache()
            await until(lambda: engine.stats.num_running == 0)
            assert await engine.flush_cache()
            assert engine.stats.evicted_tokens == 1
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await engine.flush_cache()

    run(main())


def test_a_question_that_is_declined_or_breaks_costs_its_asker_an_error_and_nobody_else_anything() -> None:
    async def main() -> None:
        async with running() as engine:
            assert await engine.cache.unpin("there")
            assert not await engine.cache.unpin("elsewhere")
            with pytest.raises(RequestError) as declined:
                await engine.cache.unpin(REFUSE)
            assert (declined.value.message, declined.value.param, declined.value.code) == ("refused", "pin_id", "no")
            with pytest.raises(InternalError):
                await engine.cache.unpin(BREAK)
            async with await engine.submit("abc", SamplingParams(max_new_tokens=3)) as stream:
                assert (await stream.collect())[0].text == "abc"

    run(main())


def test_a_closed_engine_has_answered_everybody() -> None:
    async def main() -> None:
        engine = make(SLOW)
        await engine.start()
        stream = await engine.submit("abc", LONG)
        await anext(stream)
        flush, unpin = asyncio.create_task(engine.flush_cache()), asyncio.create_task(engine.cache.unpin("there"))
        reading = asyncio.create_task(stream.collect())
        await asyncio.sleep(0)
        await asyncio.gather(engine.close(), engine.close())
        (whole,) = await reading
        assert whole.finish.status == 503
        assert isinstance(failure(whole.finish), EngineStopped)
        for asked in (flush, unpin):
            assert asked.done()
            assert not asked.exception() or isinstance(asked.exception(), EngineStopped)
        assert (engine.status, engine.num_open, engine.cores[0].closed) == ("stopped", 0, True)
        calls = (
            engine.submit("abc", LONG), engine.flush_cache(), engine.encode("a"), engine.start(), engine.cache.unpin("there"),
            engine.cache.pin([1]), engine.cache.explain([1]), engine.cache.tree(), engine.open_session(), engine.close_session("x"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(EngineStopped):
                await call
        await engine.close()

    before = threading.active_count()
    run(main())
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_draining_lets_running_requests_finish_and_takes_no_new_ones() -> None:
    async def main() -> None:
        engine = make(SLOW)
        await engine.start()
        stream = await engine.submit("abc", SamplingParams(max_new_tokens=30))
        closing = asyncio.create_task(engine.close(drain=10))
        await asyncio.sleep(0)
        assert engine.status == "draining"
        with pytest.raises(EngineStopped, match="shutting down"):
            await engine.submit("abc", LONG)
        (whole,) = await stream.collect()
        assert whole.text == "abc" * 10
        await asyncio.wait_for(closing, 1)
        assert engine.status == "stopped"

    run(main())


@pytest.mark.parametrize("hurry", [True, False])
def test_draining_ends_at_its_time_or_when_told_to_hurry(hurry: bool) -> None:
    async def main() -> None:
        engine = make("echo/0.02")
        await engine.start()
        stream = await engine.submit("abc", LONG)
        started = time.monotonic()
        closing = asyncio.create_task(engine.close(drain=10 if hurry else 0.1))
        await asyncio.sleep(0.05)
        if hurry:
            await engine.close()
        await closing
        assert time.monotonic() - started < 1
        (whole,) = await stream.collect()
        assert whole.finish.status == 503

    run(main())


def test_an_idle_engine_drains_at_once() -> None:
    async def main() -> None:
        engine = make()
        await engine.start()
        await asyncio.wait_for(engine.close(drain=60), 1)

    run(main())


@pytest.mark.parametrize(
    ("model", "error", "message"), [("bad-config", ConfigError, "no such model"), ("broken", EngineStopped, "the disk is gone")]
)
def test_a_model_that_does_not_load_is_an_error_of_start(model: str, error: type[Exception], message: str) -> None:
    async def main() -> None:
        engine = make(model)
        with pytest.raises(error, match=message):
            await engine.start()
        assert engine.status == "stopped"

    run(main())


def test_loading_reports_progress_and_can_be_broken_off() -> None:
    async def main() -> None:
        engine = make("slow-load")
        seen: list[tuple[int, int, str]] = []
        engine.progress = lambda *step: seen.append(step)
        starting = asyncio.create_task(engine.start())
        await until(lambda: len(seen) > 2)
        with pytest.raises(EngineStopped, match="starting"):
            await engine.submit("abc", LONG)
        await asyncio.wait_for(engine.close(), 1)
        with pytest.raises(EngineStopped, match="closed while it was loading"):
            await starting
        assert seen[:2] == [(0, 1000, "weights"), (1, 1000, "weights")]

    run(main())


def test_cancelling_start_closes_the_engine() -> None:
    async def main() -> None:
        engine = make("slow-load")
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert engine.status == "stopped"

    run(main())


def test_a_core_that_dies_answers_open_requests_and_comes_back() -> None:
    async def main() -> None:
        async with running(SLOW, restarts=(0.05,)) as engine:
            neighbour = await engine.submit("xyz", LONG)
            (whole,) = await (await engine.submit(FAIL, LONG)).collect()
            assert whole.finish.status == 503
            (other,) = await neighbour.collect()
            assert isinstance(failure(other.finish), EngineStopped)
            assert engine.status == "starting"
            with pytest.raises(EngineStopped):
                await engine.submit("abc", LONG)
            await until(lambda: engine.status == "ready")
            assert await answer(engine) == "abcabc"
            assert len(engine.cores) == 2

    run(main())


def test_a_core_that_keeps_dying_is_given_up() -> None:
    async def main() -> None:
        engine = make(restarts=(0.0, 0.01))
        await engine.start()
        for _ in range(3):
            await until(lambda: engine.status == "ready")
            await (await engine.submit(FAIL, LONG)).collect()
        await until(lambda: engine.status == "stopped")
        assert len(engine.cores) == 3
        with pytest.raises(EngineStopped, match="has stopped"):
            await engine.submit("abc", LONG)
        await engine.close()

    run(main())


def test_an_engine_can_be_closed_while_its_core_is_restarting() -> None:
    async def main() -> None:
        engine = make(restarts=(10.0,))
        await engine.start()
        await (await engine.submit(FAIL, LONG)).collect()
        assert engine.status == "starting"
        await asyncio.wait_for(engine.close(drain=5), 1)
        assert engine.status == "stopped"

    run(main())


def test_many_requests_at_once_with_random_leavers_end_at_the_baseline() -> None:
    async def main() -> None:
        async with running("echo/0.001") as engine:

            async def call(i: int) -> None:
                stream = await engine.submit("abc", SamplingParams(max_new_tokens=i % 40, n=1 + i % 3), rid=f"r{i}")
                if i % 4 == 0:
                    await engine.abort(f"r{i}")
                if i % 3 == 0:
                    async with stream:
                        for _ in range(i % 7):
                            await anext(stream, None)
                else:
                    assert len(await stream.collect()) == 1 + i % 3

            await asyncio.gather(*(call(i) for i in range(200)))
            await settled(engine)
            text = engine.metrics_text().decode()
            assert 'sglang:num_requests_total{model_name="echo/0.001"} 399.0' in text

    run(main())


def test_metrics_balance_and_count_what_happened() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            await answer(engine)
            async with await engine.submit("abc", LONG) as stream:
                await anext(stream)
                values = samples(engine)
            kv = [values[f"sglang:kv_{kind}_tokens"] for kind in ("available", "evictable", "used")]
            assert sum(kv) == values["sglang:max_total_num_tokens"] == CAPACITY
            assert kv[2] > 0
            assert values["sglang:num_requests_total"] == 2
            assert values["sglang:num_aborted_requests_total"] == 0
            assert values["sglang:time_to_first_token_seconds_count"] == 2
            assert values["sglang:inter_token_latency_seconds_count"] >= 5
            assert samples(engine)["sglang:num_aborted_requests_total"] == 1
            assert values["radixrt_process_resident_memory_bytes"] > 1 << 20

    run(main())


def samples(engine: AsyncEngine) -> dict[str, float]:
    lines = [line for line in engine.metrics_text().decode().splitlines() if not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
