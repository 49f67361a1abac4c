"""Where the work of a step is queued.  Work runs in the order it was submitted, one piece at a time.

``ThreadStream`` runs it in one thread of its own: on CPUs the host goes on while kernels, which release the GIL, compute.
``InlineStream`` runs it at once: where there is no overlap, and for devices whose kernels are asynchronous by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Result(Protocol[T_co]):
    def result(self) -> T_co:
        """Wait for the work; returns what it returned, or raises what it raised."""


class Stream(Protocol):
    def submit(self, work: Callable[[], T]) -> Result[T]:
        """Queue work."""

    def close(self) -> None:
        """Let queued work end and take no more."""


class Done(Generic[T]):
    """The result of work that is over."""

    __slots__ = ("_error", "_value")

    def __init__(self, work: Callable[[], T]) -> None:
        self._error: Exception | None = None
        try:
            self._value = work()
        except Exception as error:
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


class InlineStream:
    def submit(self, work: Callable[[], T]) -> Result[T]:
        return Done(work)

    def close(self) -> None:
        return


class ThreadStream:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="radixrt-stream")

    def submit(self, work: Callable[[], T]) -> Result[T]:
        return self._executor.submit(work)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
