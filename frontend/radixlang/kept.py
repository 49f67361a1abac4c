"""Keeping the text of a state in the cache while its program waits for something else."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any

from radixlang import loop
from radixlang.backends.base import Backend
from radixlang.errors import ProgramError
from radixlang.piece import Future, Piece

logger = logging.getLogger(__name__)


class Kept:
    """``with`` or ``async with`` it: what is not computed yet of the text is, meanwhile, and none of it is evicted before the end."""

    def __init__(self, backend: Backend, last: Piece | None) -> None:
        self._backend = backend
        self._last = last
        self._pin: Future[Any] | None = None

    def __enter__(self) -> Kept:
        self._pin = loop.spawn(self._begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._pin is not None
        loop.spawn(self._end(self._pin))

    async def __aenter__(self) -> Kept:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)

    async def _begin(self) -> Any:
        try:
            if self._last is not None:
                await self._last.settled()
        except ProgramError:
            return None  # whoever reads the state is told
        return await self._backend.pin(self._last, [])

    async def _end(self, pin: Future[Any]) -> None:
        try:
            pinned = await asyncio.wrap_future(pin)
            if pinned is not None:
                await self._backend.unpin(pinned)
        except Exception as error:
            logger.warning("a state was not kept: %s", error)
