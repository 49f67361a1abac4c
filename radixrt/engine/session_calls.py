"""The sessions of an engine front in time: opened and closed by callers, closed by a timer, their leavings dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from radixrt.engine.questions import AnyQuestion, DropTails
from radixrt.engine.sessions import SessionParams, Sessions, Tails, Turn
from radixrt.types import Namespace

# How often sessions are looked at whose time may be up.
REAP_SECONDS = 1.0


class SessionCalls:
    """Sessions on one event loop.  ``tell`` puts a question to the core whose answer nobody waits for."""

    def __init__(self, tell: Callable[[AnyQuestion], None]) -> None:
        self.bos: int | None = None  # the token that encoding writes by itself
        self._tell = tell
        self._sessions = Sessions()
        self._reaper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, id: str | None = None, *, timeout: float | None = None) -> str:
        """Open a session and return its id; it ends by itself after ``timeout`` seconds without a request.

        Raises RequestError for an id that is open, Overloaded when there are too many.
        """
        id = self._sessions.open(id, timeout=timeout, now=time.monotonic())
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(REAP_SECONDS, self._reap)
        return id

    def close(self, id: str) -> None:
        """End a session; what it alone put into the cache is dropped.  Raises RequestError when there is none of that id."""
        self._drop(self._sessions.close(id))

    def prompt(self, params: SessionParams, tokens: Sequence[int]) -> list[int]:
        """Return the whole prompt of a request that adds ``tokens``, changing nothing.  Raises RequestError."""
        return self._sessions.prompt(params, tokens, bos=self.bos)

    def add(self, params: SessionParams, rid: str, tokens: Sequence[int], namespace: Namespace) -> tuple[Turn, list[str]]:
        """Take a request in; returns its turn and the requests to end because it replaces them.  Raises as ``prompt``."""
        return self._sessions.add(params, rid, tokens, bos=self.bos, namespace=namespace, now=time.monotonic())

    def push(self, turn: Turn, tokens: Sequence[int], cached: int) -> None:
        """Take in output of a turn, and how much of its prompt was cached."""
        self._sessions.push(turn, tokens, cached)

    def finish(self, turn: Turn, *, failed: bool) -> None:
        """Take in that a turn has ended; one that failed was never there."""
        self._drop(self._sessions.finish(turn, time.monotonic(), failed=failed))

    def stop(self) -> None:
        """Stop the timer; the engine is closing."""
        if self._reaper is not None:
            self._reaper.cancel()

    def _reap(self) -> None:
        self._drop(self._sessions.reap(time.monotonic()))
        self._reaper = asyncio.get_running_loop().call_later(REAP_SECONDS, self._reap) if len(self._sessions) else None

    def _drop(self, tails: Tails) -> None:
        for namespace in {namespace for namespace, _, _ in tails}:
            self._tell(DropTails([(tokens, keep) for other, tokens, keep in tails if other == namespace], namespace))
