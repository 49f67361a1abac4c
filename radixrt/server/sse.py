"""Streamed answers: several request streams as one, which ends when the client does; server-sent events unless a framing says otherwise.

A writer turns outputs into bytes and knows no sockets; ``EventStream`` sends them, watches the connection, and closes the
request streams whatever happens, so that a client that goes away costs one abort and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.engine.stream import Answer, RequestStream, failure
from radixrt.errors import RadixrtError
from radixrt.server import aside
from radixrt.server.connection import PIECES
from radixrt.server.problems import ProblemResponse, as_problem, error_json
from radixrt.types import RequestOutput


@dataclass(frozen=True, slots=True)
class Framing:
    """How a dialect streams: ``error`` encodes what went wrong after the head was sent, ``tail`` ends every stream."""

    media_type: str
    error: Callable[[RadixrtError], bytes]
    tail: bytes = b""


def _error_event(error: RadixrtError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"


OPENAI = Framing("text/event-stream", _error_event, b"data: [DONE]\n\n")

# A refusal by the engine core comes as a first output.  Holding the status line back this long lets it be an HTTP status,
# which clients know how to retry; a slower first token does not delay the head of the answer any further.
HEAD_GRACE = 0.1
# A grammar is refused after it was compiled, which has a deadline of 5 seconds and may wait for others.
GRAMMAR_GRACE = 10.0

Result = TypeVar("Result")
Numbered = tuple[int, RequestOutput]


class StreamWriter(Protocol):
    """Turns the outputs of a request into events; one a request, called in order."""

    def start(self) -> bytes: ...

    def size(self, prompt: int, output: RequestOutput) -> int:
        """Count the positions that the event of an output will report."""
        ...

    def push(self, prompt: int, output: RequestOutput) -> bytes: ...

    def end(self) -> bytes: ...


class Outputs:
    """The request streams of one HTTP request, a stream a prompt."""

    def __init__(self, streams: Sequence[RequestStream]) -> None:
        self.streams = streams

    def read(self) -> _Alone | AsyncGenerator[Numbered]:
        """Yield (prompt, output) until every stream has ended."""
        return _Alone(self.streams[0]) if len(self.streams) == 1 else self._merge()

    async def _merge(self) -> AsyncGenerator[Numbered]:
        # One place in the queue: a slow client must leave the merging of what is pending to the request streams.
        queue: asyncio.Queue[Numbered | None] = asyncio.Queue(maxsize=1)
        ended = asyncio.Event()

        async def pump() -> None:
            async def drain(prompt: int, stream: RequestStream) -> None:
                async for output in stream:
                    await queue.put((prompt, output))

            try:
                async with asyncio.TaskGroup() as group:
                    for prompt, stream in enumerate(self.streams):
                        group.create_task(drain(prompt, stream))
            finally:
                ended.set()
                with contextlib.suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

        task = asyncio.create_task(pump())
        try:
            while not (ended.is_set() and queue.empty()):
                item = await queue.get()
                if item is not None:
                    yield item
            await task
        except* RadixrtError as group:
            raise group.exceptions[0] from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def collect(self) -> list[list[Answer]]:
        """Return the finished answers, choices by prompt; raise the first failure among them."""
        answers = [await stream.collect() for stream in self.streams]
        for choices in answers:
            for answer in choices:
                error = failure(answer.finish)
                if error is not None:
                    raise error
        return answers

    async def aclose(self) -> None:
        """Abort what has not finished."""
        for stream in self.streams:
            await stream.aclose()

    async def __aenter__(self) -> Outputs:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _Alone:
    """One stream as ``Outputs.read`` gives it.  No generator, which would be one more thing to resume for every token."""

    def __init__(self, stream: RequestStream) -> None:
        self._next = aiter(stream).__anext__

    def __aiter__(self) -> _Alone:
        return self

    async def __anext__(self) -> Numbered:
        return 0, await self._next()

    async def aclose(self) -> None:
        """Leave the stream to whoever owns it."""


def event(value: object) -> bytes:
    """Encode one event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Run ``work`` and return its result; cancel it and return None as soon as the client has gone.

    The body of the request must have been read.
    """

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(until_gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class EventStream(Response):
    """A streamed answer.  An error before the first event is an HTTP error, a later one an event before the tail."""

    def __init__(self, outputs: Outputs, writer: StreamWriter, framing: Framing = OPENAI) -> None:
        self._outputs = outputs
        self._writer = writer
        self._framing = framing
        self.media_type = framing.media_type
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._outputs:
            await while_connected(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._outputs.read()) as outputs:
            first = asyncio.ensure_future(anext(outputs))
            try:
                constrained = any(stream.constrained for stream in self._outputs.streams)
                await asyncio.wait({first}, timeout=GRAMMAR_GRACE if constrained else HEAD_GRACE)
                error = _failed(first)
                if error is not None:
                    await ProblemResponse(error, path=scope["path"])(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await _write(send, self._writer.start())
                tail = await self._relay(first, outputs, scope.get("extensions", {}).get(PIECES, send))
                await _write(send, tail + self._framing.tail)
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _relay(self, first: asyncio.Future[Numbered], outputs: AsyncIterator[Numbered], send: Send) -> bytes:
        """Send events until the outputs end; return what is left to say."""
        try:
            prompt, output = await first
            while True:
                error = failure(output.finish)
                if error is not None:
                    return self._framing.error(error)
                size = self._writer.size(prompt, output)
                if size <= aside.LARGE:
                    body = self._writer.push(prompt, output)
                else:
                    body = await aside.build(functools.partial(self._writer.push, prompt, output), size)
                await _write(send, body)
                prompt, output = await anext(outputs)
        except StopAsyncIteration:
            return self._writer.end()
        except (RadixrtError, ExceptionGroup) as caught:
            return self._framing.error(as_problem(caught))


def _failed(first: asyncio.Future[Numbered]) -> RadixrtError | None:
    """The error that the first output brings, when it is there and is one."""
    if not first.done():
        return None
    raised = first.exception()
    if raised is not None:
        return None if isinstance(raised, StopAsyncIteration) else as_problem(raised)
    return failure(first.result()[1].finish)


async def _write(send: Send, body: bytes) -> None:
    """Send a piece; waits for a slow reader, which the connection ends when it takes nothing for too long."""
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
