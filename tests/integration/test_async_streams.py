"""The engine front's streams over a core that echoes: whoever leaves, cancels or reads slowly, nothing hangs or leaks."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from echo_engine import LONG, SLOW, answer, run, running, settled, until

from radixrt.engine.stream import Joined
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import FinishReason, LogprobOptions, RequestOutput, SamplingParams, Usage


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
