"""A list that grows on the loop, and that readers in any thread or on any loop follow from its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Generic, TypeVar

from radixlang import loop

T = TypeVar("T")


class Feed(Generic[T]):
    """Items may be pushed from any thread; all are kept."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._closed = False
        self._readers: list[asyncio.Future[None]] = []

    def push(self, item: T) -> None:
        self._items.append(item)
        self._wake()

    def close(self) -> None:
        """No more will come; idempotent."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._readers:
            readers, self._readers = self._readers, []
            for reader in readers:
                reader.get_loop().call_soon_threadsafe(_wake, reader)

    async def item(self, i: int) -> T | None:
        """Wait for item ``i``; None when there will be none."""
        while i >= len(self._items):
            if self._closed:
                # What was pushed between the two looks is there now.
                return self._items[i] if i < len(self._items) else None
            reader = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            if i < len(self._items) or self._closed:
                continue
            await reader
        return self._items[i]

    def __iter__(self) -> Iterator[T]:
        i = 0
        while (item := loop.run(self.item(i))) is not None:
            yield item
            i += 1

    async def __aiter__(self) -> AsyncIterator[T]:
        i = 0
        while (item := await asyncio.wrap_future(loop.spawn(self.item(i)))) is not None:
            yield item
            i += 1


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)
