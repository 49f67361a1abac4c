"""What a caller of the engine holds: the stream of one request's answers, and the fold that makes them whole.

Knows nothing of engines or cores: events are pushed in, and giving up is reported through a callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any

import msgspec

from radixrt.errors import EngineStopped, InternalError, Overloaded, RadixrtError, RequestError
from radixrt.types import Finish, FinishReason, RequestOutput, TokenLogprob, Usage


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One complete answer of a request."""

    index: int
    text: str
    token_ids: list[int]
    finish: Finish
    usage: Usage
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    num_retractions: int = 0
    report: dict[str, Any] | None = None
    embedding: list[float] | None = None


class Joined:
    """Consecutive events of one answer, joined into one."""

    __slots__ = ("_last", "_logprobs", "_texts", "_token_ids")

    def __init__(self, first: RequestOutput) -> None:
        self._last = first
        self._texts = [first.text_delta]
        # Copied only when there is something to join: most events are taken one by one.
        self._token_ids = first.token_ids_delta
        self._logprobs = first.logprobs_delta

    def push(self, event: RequestOutput) -> None:
        if len(self._texts) == 1:
            self._token_ids = list(self._token_ids)
            self._logprobs = None if self._logprobs is None else list(self._logprobs)
        self._texts.append(event.text_delta)
        self._token_ids += event.token_ids_delta
        if event.logprobs_delta is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += event.logprobs_delta
        self._last = event

    def event(self) -> RequestOutput:
        if len(self._texts) == 1:
            return self._last
        return msgspec.structs.replace(
            self._last, text_delta="".join(self._texts), token_ids_delta=self._token_ids, logprobs_delta=self._logprobs
        )


class Channel:
    """Events on their way to one consumer: at most one, joined, for each choice that is not finished."""

    def __init__(self, num_choices: int) -> None:
        self.open = set(range(num_choices))
        self._pending: dict[int, RequestOutput | Joined] = {}
        self._waiting: asyncio.Future[None] | None = None

    def push(self, event: RequestOutput) -> None:
        index = event.index
        pending = self._pending.get(index)
        # Most events are taken one by one; only a second one makes a joint of them.
        if pending is None:
            self._pending[index] = event
        elif isinstance(pending, Joined):
            pending.push(event)
        else:
            joined = self._pending[index] = Joined(pending)
            joined.push(event)
        if event.finish is not None:
            self.open.discard(index)
        self._wake()

    def close(self) -> None:
        self.open.clear()
        self._pending.clear()
        self._wake()

    def take(self) -> RequestOutput | None:
        """Return what the longest-waiting choice has, or None."""
        if not self._pending:
            return None
        event = self._pending.pop(next(iter(self._pending)))
        return event.event() if isinstance(event, Joined) else event

    async def next(self) -> RequestOutput:
        """Wait for an event; raises StopAsyncIteration when every choice has finished and all was taken."""
        while (event := self.take()) is None:
            if not self.open:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return event

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class RequestStream:
    """The answers of one request as they come: an asynchronous iterator of events, for one consumer.

    Ends when every choice has finished.  Leaving it early, by ``aclose``, ``async with`` or by dropping it, aborts what
    has not.  A consumer that is slow gets fewer, longer events.  ``constrained``: its grammar may have to be compiled first,
    and may be refused then.
    """

    def __init__(
        self, rid: str, prompt: Sequence[int], channel: Channel, release: Callable[[], None], *, constrained: bool = False
    ) -> None:
        self.rid = rid
        self.prompt = prompt
        self.constrained = constrained
        self.num_choices = len(channel.open)
        self._channel = channel
        self._release = release
        self._owner = asyncio.get_running_loop()

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    def __aiter__(self) -> RequestStream:
        return self

    def __anext__(self) -> Coroutine[Any, Any, RequestOutput]:
        # Not a coroutine of its own around the channel's: each is resumed for every token.
        return self._channel.next()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Abort what has not finished and drop what was not taken.  Never waits, so it cannot be cancelled; idempotent."""
        self._release()
        self._channel.close()

    async def collect(self) -> list[Answer]:
        """Wait for all choices and return their whole answers by index; aborts the request if cancelled.

        Raises EngineStopped when the stream was closed before its end.
        """
        parts: dict[int, Joined] = {}
        async with self:
            async for event in self:
                if event.index in parts:
                    parts[event.index].push(event)
                else:
                    parts[event.index] = Joined(event)
        answers = [_answer(parts[index].event()) for index in sorted(parts) if parts[index].event().finish is not None]
        if len(answers) < self.num_choices:
            raise EngineStopped("the request was closed before its answer was complete")
        return answers

    def __del__(self) -> None:
        # The engine holds the channel, not the stream, so a stream that nobody will read any more ends here.
        if self._channel.open and not self._owner.is_closed():
            self._owner.call_soon_threadsafe(self._release)


def _answer(event: RequestOutput) -> Answer:
    assert event.finish is not None
    return Answer(
        index=event.index, text=event.text_delta, token_ids=event.token_ids_delta, finish=event.finish, usage=event.usage,
        logprobs=event.logprobs_delta, prompt_logprobs=event.prompt_logprobs, num_retractions=event.num_retractions,
        report=event.report, embedding=event.embedding,
    )


def ended_by(error: RadixrtError) -> Finish:
    """Return the end of a request that an error keeps from its answer."""
    return Finish(FinishReason.ABORT, message=error.message, status=error.status, code=error.code, param=error.param)


def failure(finish: Finish | None) -> RadixrtError | None:
    """Return the error a finish stands for, or None when the answer is one (an abort on request is)."""
    if finish is None or finish.status is None or finish.status < 400:
        return None
    message = finish.message or "the request failed"
    if finish.status == Overloaded.status:
        return Overloaded(message)
    if finish.status == EngineStopped.status:
        return EngineStopped(message)
    if finish.status < 500:
        return RequestError(message, param=finish.param, code=finish.code)
    return InternalError(message, code=finish.code)


