"""Questions on their way to the core, and who waits for the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from radixrt.engine.link import Ask, Command, Flush
from radixrt.engine.questions import AnyAnswer, AnyQuestion, Declined
from radixrt.errors import EngineStopped


class Tickets:
    """Numbers questions and hands each answer to whoever asked; on one event loop.  ``submit`` passes commands on."""

    def __init__(self, submit: Callable[[Command], None]) -> None:
        self._submit = submit
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, question: AnyQuestion) -> AnyAnswer:
        """Ask and wait for the answer.  Raises the RequestError with which it is declined, and EngineStopped."""
        answer: AnyAnswer = await self._wait(lambda ticket: Ask(ticket, question))
        if isinstance(answer, Declined):
            raise answer.error()
        return answer

    async def flush(self) -> bool:
        """Have the cache emptied; False when that was refused.  Raises EngineStopped."""
        flushed: bool = await self._wait(Flush)
        return flushed

    def tell(self, question: AnyQuestion) -> None:
        """Ask without waiting: the answer is of no interest."""
        self._submit(Ask(next(self._numbers), question))

    def settle(self, ticket: int, answer: AnyAnswer | bool) -> None:
        """Hand an answer over; nobody may wait for it any more."""
        waiting = self._waiting.get(ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, message: str) -> None:
        """The core is gone: everybody who waits gets EngineStopped."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EngineStopped(message))

    async def _wait(self, command: Callable[[int], Command]) -> Any:
        ticket = next(self._numbers)
        answer = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._submit(command(ticket))
            return await answer
        finally:
            del self._waiting[ticket]
