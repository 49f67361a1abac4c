"""Where the work of a step is queued.  Work runs in the order it was submitted, one piece at a time.

``ThreadStream`` runs it in one thread of its own: on CPUs the host goes on while kernels, which release the GIL, compute.
``InlineStream`` runs it at once: where there is no overlap, and for devices whose kernels are asynchronous by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Stream(Protocol):
    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work; the future holds its result or its exception."""

    def close(self) -> None:
        """Let queued work end and take no more."""


class InlineStream:
    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        return


class ThreadStream:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="radixrt-stream")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._executor.submit(work)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
