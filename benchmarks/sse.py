"""What streaming costs the server process: CPU time for each token that goes out as a server-sent event, without a model.

    python benchmarks/sse.py [--streams 64] [--rate 1000] [--seconds 10] [--repeats 3] [--route chat|completions]

Starts radixrt's HTTP server and engine front with a worker that computes nothing and sends one token to every stream at a
steady pace, reads all streams to their end, and divides the CPU time of the server process (its threads included, the
worker and this client not) by the tokens.  One percent of a core for each 1,000 tokens/s is ten microseconds a token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import uvicorn

from radixrt.config import EngineConfig, ModelConfig, ServerConfig
from radixrt.engine import worker
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.client import ProcessClient
from radixrt.engine.questions import AnyAnswer, AnyQuestion
from radixrt.errors import RequestError
from radixrt.server.app import build_app
from radixrt.server.connection import BoundedProtocol
from radixrt.server.lifecycle import bind, loop_factory
from radixrt.types import EngineStats, Finish, FinishReason, GenerateRequest, ModelInfo, TokenOutput

PACE_VARIABLE = "RADIXRT_BENCHMARK_PACE"
CONTEXT = 1 << 20
# Printable ASCII of the toy vocabulary: every token is a piece of text of its own.
FIRST_TOKEN, NUM_TOKENS = 32, 95
START_TIMEOUT = 60.0


class PacedCore:
    """Gives every running request one token a step, and a step so many seconds.  Implements ``radixrt.engine.loop.Core``."""

    def __init__(self, config: EngineConfig, pace: float) -> None:
        self.config = config
        self.info = ModelInfo(model_path="paced", architecture="Paced", vocab_size=259, context_length=CONTEXT, capacity_tokens=CONTEXT)
        self._pace = pace
        self._due = 0.0
        self._running: dict[int, tuple[GenerateRequest, int]] = {}
        self._generated = 0

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Callable[[int, int, str], None] | None = None) -> PacedCore:
        return cls(config, float(os.environ[PACE_VARIABLE]))

    def add(self, request: GenerateRequest) -> None:
        self._running[request.uid] = (request, 0)

    def abort(self, uid: int) -> None:
        self._running.pop(uid, None)

    def flush(self) -> bool:
        return not self._running

    def answer(self, question: AnyQuestion) -> AnyAnswer:
        raise RequestError("a worker of the benchmark has no cache")

    patience = None

    def has_work(self) -> bool:
        return bool(self._running)

    def step(self) -> list[TokenOutput]:
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(self._due, now) + self._pace
        outputs = []
        for uid, (request, done) in list(self._running.items()):
            token = FIRST_TOKEN + (uid + done) % NUM_TOKENS
            done += 1
            self._running[uid] = (request, done)
            finish = Finish(FinishReason.LENGTH) if done == request.sampling.max_new_tokens else None
            if finish is not None:
                del self._running[uid]
            outputs.append(TokenOutput(uid, [token], finish=finish))
        self._generated += len(outputs)
        return outputs

    def stats(self) -> EngineStats:
        return EngineStats(capacity_tokens=CONTEXT, free_tokens=CONTEXT, num_running=len(self._running), generated_tokens=self._generated)

    def close(self) -> None:
        self._running.clear()


async def serve() -> None:
    """Run the server until its standard input ends; prints its port."""
    settings = ServerConfig(port=0)
    engine = AsyncEngine(
        EngineConfig(model=ModelConfig(model_path="toy")), client=ProcessClient((sys.executable, os.path.abspath(__file__), "--worker"))
    )
    with contextlib.closing(bind(settings)) as listener:
        await engine.start()
        http = uvicorn.Server(
            uvicorn.Config(build_app(engine, settings), http=BoundedProtocol, ws="none", lifespan="off", access_log=False, log_config=None)
        )
        serving = asyncio.create_task(http.serve(sockets=[listener]))
        print(listener.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await engine.close()
        http.should_exit = True
        await serving


class Reader(asyncio.Protocol):
    """Asks one thing and reads the answer to its end; ``whole`` becomes the answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parts: list[bytes] = []
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.whole.done():
            self.whole.set_result(b"".join(self._parts))


async def read_streams(port: int, route: str, num_streams: int, num_tokens: int) -> int:
    """Read so many streams at once; return the events that brought text."""
    options = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    if route == "chat":
        path, asked = "/v1/chat/completions", {"messages": [{"role": "user", "content": "Count."}], **options}
    else:
        path, asked = "/v1/completions", {"prompt": "Count.", **options}
    body = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    request = f"{head}connection: close\r\n\r\n".encode() + body
    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: Reader(request), "127.0.0.1", port) for _ in range(num_streams)]
    wholes = await asyncio.gather(*(reader.whole for _, reader in opened))
    assert all(b"data: [DONE]" in whole for whole in wholes), wholes[0][-500:]
    return sum(len(re.findall(rb'"(?:content|text)":"[^"]', whole)) for whole in wholes)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(options: argparse.Namespace) -> list[float]:
    """Return microseconds of the server's CPU for each token, one figure a repetition; an uncounted one comes first."""
    pace = options.streams / options.rate
    server = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, PACE_VARIABLE: str(pace)},
    )
    assert server.stdin is not None and server.stdout is not None
    figures = []
    try:
        port = int(server.stdout.readline())
        process = psutil.Process(server.pid)
        for repetition in range(options.repeats + 1):
            num_tokens = max(2, int((options.seconds if repetition else 2) / pace))
            before, began = cpu_seconds(process), time.monotonic()
            events = asyncio.run(read_streams(port, options.route, options.streams, num_tokens))
            used, took = cpu_seconds(process) - before, time.monotonic() - began
            tokens = num_tokens * options.streams
            if repetition:
                figures.append(1e6 * used / tokens)
                print(f"{tokens / took:6.0f} tokens/s in {events / tokens:.2f} events a token: {figures[-1]:5.1f} us of CPU a token")
    finally:
        server.stdin.close()
        server.wait(START_TIMEOUT)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1000.0, help="tokens a second, over all streams")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--route", choices=("chat", "completions"), default="chat")
    options = parser.parse_args()
    micros = statistics.median(measure(options))
    print(f"median: {micros:.1f} us a token, {micros / 10:.1f}% of a core for each 1,000 tokens/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        os._exit(worker.main(sys.argv[2:], PacedCore.load))
    if sys.argv[1:] == ["--serve"]:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve())
    else:
        main()
