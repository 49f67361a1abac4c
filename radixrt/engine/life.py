"""The life of an engine's core: started, started again when it dies, ended.  Knows nothing of requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from radixrt.config import EngineConfig
from radixrt.engine.client import CoreClient, OnReport
from radixrt.errors import ConfigError, EngineStopped, RadixrtError

logger = logging.getLogger(__name__)

Status = Literal["starting", "ready", "draining", "stopped"]

# Delays before each restart of a worker that dies again and again; after the last the engine stays stopped.  A worker
# that has lived LASTING_SECONDS starts the count anew.
RESTART_DELAYS = (0.2, 1.0, 2.0, 5.0, 10.0)
LASTING_SECONDS = 60.0


class CoreLife:
    """Keeps one core alive through its client, on one event loop.

    Args:
        restarts: delays in seconds before each restart of a core that dies; empty when it is not to be restarted.
        on_report: gets every report, ``Ready`` and ``Failed`` included, for which the owner calls ``came_up`` and ``failed``.
        on_lost: called with the reason when a core dies that was up.
    """

    def __init__(
        self, client: CoreClient, config: EngineConfig, *, restarts: Sequence[float], on_report: OnReport, on_lost: Callable[[str], None]
    ) -> None:
        self.client = client
        self.status: Status = "starting"
        self.failure = ""
        self.restarts = restarts
        self._config = config
        self._on_report = on_report
        self._on_lost = on_lost
        self._restarts_used = 0
        self._ready_since = 0.0
        self._up: asyncio.Future[None] | None = None
        self._restarter: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Future[None]:
        """Begin to load; the future is done when the core is up, or has the ConfigError or EngineStopped that it failed with."""
        self.failure = ""
        up = self._up = asyncio.get_running_loop().create_future()
        # Whoever waits for it gets the exception; when nobody does any more, that is no error.
        up.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.client.start(self._config, self._on_report)
        return up

    @property
    def begun(self) -> bool:
        return self._up is not None

    def came_up(self) -> None:
        """Take in that the core is loaded."""
        if self._up is not None and not self._up.done():
            self._up.set_result(None)

    def set_ready(self) -> None:
        """Let requests in.  Raises EngineStopped when the core has failed again, or the engine been closed, since it came up."""
        if self.status != "starting" or self.failure:
            raise EngineStopped(self.failure or "the engine was closed while it was loading")
        self._ready_since = time.monotonic()
        self.status = "ready"

    def failed(self, message: str, *, config: bool) -> None:
        """Take in that the core is gone; it is restarted when it had been ready."""
        self.failure = message
        if self._up is not None and not self._up.done():
            self._up.set_exception(ConfigError(message) if config else EngineStopped(message))
            return
        self._on_lost(message)
        if self.status == "ready":
            self.status = "starting"
            self._restarter = asyncio.create_task(self._restart())

    def require_ready(self) -> None:
        """Raise EngineStopped, with the reason, unless requests are let in."""
        if self.status == "ready":
            return
        reasons = {"starting": "The engine is starting.", "draining": "The engine is shutting down."}
        raise EngineStopped(reasons.get(self.status, "The engine has stopped."))

    async def close(self, drain: Callable[[], Awaitable[None]], last: Callable[[], None]) -> None:
        """Refuse new requests, wait for ``drain`` when the engine was ready, call ``last``, end the core.  Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(drain if self.status == "ready" else None, last))
            self.status = "draining"
        await asyncio.shield(self._closing)

    async def _close(self, drain: Callable[[], Awaitable[None]] | None, last: Callable[[], None]) -> None:
        if self._restarter is not None:
            self._restarter.cancel()
            await asyncio.gather(self._restarter, return_exceptions=True)
        if self._up is not None and not self._up.done():
            self._up.set_exception(EngineStopped("the engine was closed while it was loading"))
        if drain is not None:
            await drain()
        last()
        self.status = "stopped"
        await self.client.close()

    async def _restart(self) -> None:
        if time.monotonic() - self._ready_since > LASTING_SECONDS:
            self._restarts_used = 0
        while self._restarts_used < len(self.restarts):
            delay = self.restarts[self._restarts_used]
            self._restarts_used += 1
            logger.warning("restarting the engine process in %.1f s", delay)
            await asyncio.sleep(delay)
            try:
                await self.begin()
                self.set_ready()
            except (RadixrtError, OSError) as error:
                logger.error("restarting failed: %s", error)
                continue
            logger.warning("the engine process is back")
            return
        logger.error("the engine has stopped for good")
        self.status = "stopped"
