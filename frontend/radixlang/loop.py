"""The event loop that everything asynchronous in radixlang runs on: one daemon thread a process, started when first used.

Programs may therefore be called from scripts, notebooks (which have a running loop of their own) and tests alike.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from radixlang.errors import refuse

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_pid = 0


def _running() -> asyncio.AbstractEventLoop:
    global _loop, _thread, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():  # a forked child has the loop, not the thread
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            _thread = threading.Thread(target=_loop.run_forever, name="radixlang", daemon=True)
            _thread.start()
        return _loop


def spawn(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Start a coroutine on the loop, from any thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _running())


def wait(future: concurrent.futures.Future[T]) -> T:
    """Block until a future is done and return its result; refused on the loop itself, which could never do it."""
    if not future.done() and threading.current_thread() is _thread:
        raise refuse("Reading this would block the event loop: in an async program, await s.get(name) or s.sync().")
    return future.result()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it; it is cancelled when the wait is interrupted."""
    if threading.current_thread() is _thread:
        coroutine.close()
        raise refuse("This would block the event loop: await the asynchronous form in an async program.")
    future = spawn(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def resolved(value: T) -> concurrent.futures.Future[T]:
    """Return a future that is done."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_result(value)
    return future
