"""The engine front with its core in a worker process: deaths, silences and farewells of both sides.

Most use a worker that echoes, which starts in a fraction of a second; one uses the real core with the toy model.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from echo_core import DIE, FAIL, HANG, REFUSE

from radixrt.config import EngineConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.client import ProcessClient
from radixrt.engine.stream import failure
from radixrt.errors import ConfigError, EngineStopped
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import FinishReason, SamplingParams

ECHO_WORKER = (sys.executable, str(Path(__file__).parents[1] / "echo_core.py"))
LONG = SamplingParams(max_new_tokens=None)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


def make(model: str = "echo/0.005", *, silence: float = 30.0, stall: float = 60.0) -> AsyncEngine:
    client = ProcessClient(ECHO_WORKER, silence=silence, stall=stall)
    engine = AsyncEngine(EngineConfig.of(model_path=model), client=client, tokenizer=ToyTokenizer())
    engine._life.restarts = (0.05, 0.05)
    return engine


def worker_of(engine: AsyncEngine) -> psutil.Process:
    (pid,) = engine._client.pids
    return psutil.Process(pid)


async def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def echo(engine: AsyncEngine) -> None:
    (whole,) = await (await engine.submit("abc", SamplingParams(max_new_tokens=6))).collect()
    assert (whole.text, whole.finish.reason) == ("abcabc", FinishReason.LENGTH)


def test_a_worker_answers_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        engine = make()
        seen = []
        engine.progress = lambda *step: seen.append(step)
        await engine.start()
        worker = worker_of(engine)
        folder = Path(worker.cmdline()[-2])
        assert seen == [(0, 1000, "weights"), (1, 1000, "weights")]
        await asyncio.gather(*(echo(engine) for _ in range(50)))
        (whole,) = await (await engine.submit(REFUSE, LONG)).collect()
        assert whole.finish.status == 400
        assert await engine.flush_cache()
        assert b'process="worker"' in engine.metrics_text()
        await until(lambda: not folder.exists())  # nobody else can connect any more, but the two ends are
        await echo(engine)
        started = time.monotonic()
        await engine.close()
        assert time.monotonic() - started < 2
        assert not worker.is_running()
        await engine.close()

    run(main())


def spawned() -> tuple[ProcessClient, psutil.Process, Path]:
    client = ProcessClient(ECHO_WORKER)
    before = set(psutil.Process().children())
    client.spawn()
    (worker,) = set(psutil.Process().children()) - before
    return client, worker, Path(worker.cmdline()[-2])


def test_a_worker_that_was_spawned_before_its_configuration_serves() -> None:
    async def main() -> None:
        client, worker, folder = spawned()
        assert folder.is_dir()
        engine = AsyncEngine(EngineConfig.of(model_path="echo"), client=client, tokenizer=ToyTokenizer())
        await engine.start()
        assert worker_of(engine) == worker
        await echo(engine)
        client.discard()  # what was started is no longer idle
        await echo(engine)
        await engine.close()
        assert not worker.is_running()
        assert not folder.exists()

    run(main())


def test_a_spawned_worker_that_is_not_wanted_leaves_nothing_behind() -> None:
    client, worker, folder = spawned()
    client.discard()
    assert not worker.is_running()
    assert not folder.exists()
    client.discard()


def test_closing_ends_a_spawned_worker() -> None:
    client, worker, folder = spawned()
    run(client.close())
    assert not worker.is_running()
    assert not folder.exists()


def test_a_server_with_settings_that_cannot_work_leaves_no_worker_behind() -> None:
    code = (
        "import sys, psutil, radixrt.cli as cli; code = cli.main(['serve', '--model-path', 'toy', '--port', '99999']);"
        "sys.exit(code * 10 + len(psutil.Process().children()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 20, done.stderr


def test_the_front_needs_no_torch() -> None:
    code = "import sys, radixrt.engine.async_engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_killed_worker_is_noticed_at_once_and_replaced() -> None:
    async def main() -> None:
        engine = make()
        await engine.start()
        first = worker_of(engine)
        streams = [await engine.submit("abc", LONG) for _ in range(8)]
        await anext(streams[0])
        started = time.monotonic()
        first.kill()
        for stream in streams:
            (whole,) = await stream.collect()
            assert isinstance(failure(whole.finish), EngineStopped)
        assert time.monotonic() - started < 3
        assert engine.status == "starting"
        with pytest.raises(EngineStopped):
            await engine.submit("abc", LONG)
        await until(lambda: engine.status == "ready")
        assert worker_of(engine).pid != first.pid
        await echo(engine)
        await engine.close()

    run(main())


@pytest.mark.parametrize("prompt", [FAIL, DIE])
def test_a_worker_that_dies_by_itself_answers_its_requests_and_is_replaced(prompt: str) -> None:
    async def main() -> None:
        engine = make()
        await engine.start()
        neighbour = await engine.submit("abc", LONG)
        for stream in (await engine.submit(prompt, LONG), neighbour):
            (whole,) = await stream.collect()
            assert whole.finish.status == 503
        await until(lambda: engine.status == "ready")
        await echo(engine)
        await engine.close()

    run(main())


def test_a_worker_that_keeps_dying_is_given_up() -> None:
    async def main() -> None:
        engine = make()
        await engine.start()
        for _ in range(3):
            await until(lambda: engine.status == "ready")
            await (await engine.submit(DIE, LONG)).collect()
        await until(lambda: engine.status == "stopped")
        assert engine._client.pids == ()
        await engine.close()

    run(main())


def test_a_worker_that_falls_silent_is_killed_and_replaced() -> None:
    async def main() -> None:
        engine = make(silence=1.5)
        await engine.start()
        first = worker_of(engine)
        await asyncio.sleep(2)  # an idle worker is not silent
        assert worker_of(engine).pid == first.pid
        stream = await engine.submit("abc", LONG)
        first.suspend()
        (whole,) = await stream.collect()
        assert whole.finish.status == 503
        assert "silent" in (whole.finish.message or "")
        await until(lambda: not first.is_running())
        await until(lambda: engine.status == "ready")
        await echo(engine)
        await engine.close()

    run(main())


PAUSED = """
import asyncio, test_worker

async def main():
    engine = test_worker.make(silence=1.0, stall=1.0)
    await engine.start()
    worker = test_worker.worker_of(engine)
    print("started", flush=True)
    await asyncio.to_thread(input)
    await asyncio.sleep(1)
    assert test_worker.worker_of(engine) == worker, "another worker"
    await test_worker.echo(engine)
    await engine.close()
    print("answered", flush=True)

test_worker.run(main())
"""


def test_processes_that_were_stopped_together_go_on_as_if_nothing_had_been() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    command = [sys.executable, "-c", PAUSED]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as front:
        assert front.stdin is not None and front.stdout is not None
        try:
            assert front.stdout.readline() == "started\n"
            tree = [psutil.Process(front.pid), *psutil.Process(front.pid).children(recursive=True)]
            for process in tree:
                process.suspend()
            time.sleep(2.5)
            for process in tree:
                process.resume()
            front.stdin.write("\n")
            front.stdin.flush()
            assert front.stdout.readline() == "answered\n"
        finally:
            front.kill()


def test_a_long_step_is_no_silence_but_an_endless_one_is_a_stall() -> None:
    async def main() -> None:
        engine = make("echo/1.0", silence=0.8, stall=1.5)
        await engine.start()
        (whole,) = await (await engine.submit("abc", SamplingParams(max_new_tokens=2))).collect()
        assert whole.text == "ab"
        (hanging,) = await (await engine.submit(HANG, LONG)).collect()
        assert hanging.finish.status == 503
        assert "stuck" in (hanging.finish.message or "")
        await engine.close()

    run(main())


@pytest.mark.parametrize(("model", "error"), [("bad-config", ConfigError), ("broken", EngineStopped)])
def test_a_worker_that_cannot_load_says_why_and_is_gone(model: str, error: type[Exception]) -> None:
    async def main() -> None:
        engine = make(model)
        with pytest.raises(error, match=r"no such model|the disk is gone"):
            await engine.start()
        assert engine._client.pids == ()

    run(main())


def test_a_worker_that_cannot_even_start_is_an_error_of_start() -> None:
    async def main() -> None:
        for command in (("/nonexistent/python",), (sys.executable, "-c", "raise SystemExit(3)")):
            engine = AsyncEngine(EngineConfig.of(model_path="echo"), client=ProcessClient(command), tokenizer=ToyTokenizer())
            with pytest.raises(EngineStopped, match=r"could not be started|exit code 3"):
                await engine.start()
            await engine.close()

    run(main())


def test_closing_while_the_worker_loads_does_not_wait_for_it() -> None:
    async def main() -> None:
        engine = make("slow-load")
        seen = []
        engine.progress = lambda *step: seen.append(step)
        starting = asyncio.create_task(engine.start())
        await until(lambda: len(seen) > 2)
        worker = worker_of(engine)
        started = time.monotonic()
        await engine.close()
        assert time.monotonic() - started < 2
        with pytest.raises(EngineStopped):
            await starting
        assert not worker.is_running()

    run(main())


def test_closing_ends_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("radixrt.engine.client.STOP_SECONDS", 0.3)
        engine = make()
        await engine.start()
        worker = worker_of(engine)
        stream = await engine.submit(HANG, LONG)
        await asyncio.sleep(0.2)
        await engine.close()
        (whole,) = await stream.collect()
        assert whole.finish.status == 503
        assert not worker.is_running()

    run(main())


def test_ctrl_c_is_left_to_the_front_and_sigterm_ends_the_worker_in_order() -> None:
    async def main() -> None:
        engine = make()
        engine._life.restarts = ()
        await engine.start()
        worker = worker_of(engine)
        worker.send_signal(signal.SIGINT)
        await echo(engine)
        assert worker.is_running()
        worker.send_signal(signal.SIGTERM)
        await until(lambda: engine.status == "stopped")
        assert "exit code 0" in engine._life.failure
        await engine.close()

    run(main())


FRONT = """
import asyncio, sys
from radixrt.config import EngineConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.client import ProcessClient
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import SamplingParams

async def main():
    engine = AsyncEngine(EngineConfig.of(model_path="echo/0.01"), client=ProcessClient(sys.argv[1:]), tokenizer=ToyTokenizer())
    await engine.start()
    stream = await engine.submit("abc", SamplingParams(max_new_tokens=None))
    await anext(stream)
    await asyncio.sleep(0.5)
    print(engine._client.pids[0], flush=True)
    await asyncio.sleep(LAST)

asyncio.run(main())
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_worker_does_not_outlive_its_front(killed: bool) -> None:
    command = [sys.executable, "-c", FRONT.replace("LAST", "60" if killed else "0"), *ECHO_WORKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        worker = psutil.Process(int(front.stdout.readline()))
        if killed:
            front.kill()
        front.wait(10)
        psutil.wait_procs([worker], timeout=5)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_the_real_core_in_a_worker_survives_a_kill() -> None:
    async def main() -> None:
        engine = AsyncEngine(EngineConfig.of(model_path="toy", max_total_tokens=2048))
        await engine.start()
        greedy = SamplingParams(max_new_tokens=16, temperature=0.0, ignore_eos=True)

        async def text() -> str:
            (whole,) = await (await engine.submit("the quick brown fox", greedy)).collect()
            assert whole.finish.reason is FinishReason.LENGTH
            return whole.text

        before = await text()
        stream = await engine.submit("abc", SamplingParams(max_new_tokens=None, ignore_eos=True))
        await anext(stream)
        os.kill(worker_of(engine).pid, signal.SIGKILL)
        (whole,) = await stream.collect()
        assert whole.finish.status == 503
        await until(lambda: engine.status == "ready", 45)
        assert await text() == before
        async with await engine.submit("abc", LONG) as leaving:
            await anext(leaving)
        await until(lambda: engine.stats.num_running == 0 and engine.stats.locked_tokens == 0, 5)
        stats = engine.stats
        assert stats.free_tokens + stats.cached_tokens == stats.capacity_tokens == 2048
        assert await engine.flush_cache()
        await engine.close()

    run(main())
