"""The engine front over a core that echoes: how it starts, drains, closes, and loses its core."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from echo_core import FAIL
from echo_engine import LONG, SLOW, answer, make, run, running, until

from radixrt.engine.stream import failure
from radixrt.errors import ConfigError, EngineStopped
from radixrt.types import SamplingParams


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
