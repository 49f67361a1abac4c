"""The front's hold on an engine core, wherever it runs.

``ThreadClient`` keeps it in a thread of this process, ``ProcessClient`` in a worker process behind the link.  Both
deliver reports, in order, on the event loop that started them; ``Failed`` is the last report of a life, after which
``start`` may begin the next one.  Whether to do so is the front's decision.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import radixrt
from radixrt.config import EngineConfig
from radixrt.engine.link import PROTOCOL, Command, Failed, FrontLink, Heartbeat, Load, Ready, Report, Stop
from radixrt.engine.loop import CoreLoop, LoadCore, load_core

logger = logging.getLogger(__name__)

OnReport = Callable[[Report], None]

# A worker that says nothing for this long is taken for dead: its heartbeat comes every second, whatever it computes.
SILENCE_SECONDS = 30.0
# A worker whose step has not ended for this long is taken for stuck.
STALL_SECONDS = 600.0
# How long a worker may take to leave after Stop, and then after SIGTERM, before it is killed.
STOP_SECONDS = 5.0
# How often the listener looks at the worker when nothing comes: the delay in noticing its death.
LOOK_MS = 50
# Longer than this between two looks, the listener did not run itself.
PAUSE_SECONDS = 0.5


class CoreClient(Protocol):
    """One core.  All methods are called on the event loop of the owner."""

    def start(self, config: EngineConfig, on_report: OnReport) -> None:
        """Begin to load; Progress, then Ready or Failed follow as reports."""

    def submit(self, command: Command) -> None:
        """Pass a command on; never blocks.  Without a live core it is discarded: Failed is on its way or was there."""

    async def close(self) -> None:
        """End the core and wait for it; no report follows.  Idempotent, and safe to cancel and repeat."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes the core runs in besides this one."""


class ThreadClient:
    """A core in a thread of this process: no children."""

    def __init__(self, load: LoadCore = load_core) -> None:
        self._load = load
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._core_loop: CoreLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._closed = False

    def start(self, config: EngineConfig, on_report: OnReport) -> None:
        assert self._core_loop is None, "already started"
        owner = asyncio.get_running_loop()
        ended = self._ended = owner.create_future()
        self._commands = queue.SimpleQueue()

        def deliver(report: Report) -> None:
            if isinstance(report, Failed):
                self._core_loop = None
            if not self._closed:
                on_report(report)

        core_loop = self._core_loop = CoreLoop(_QueueInbox(self._commands), lambda report: post(owner, deliver, report))

        def run() -> None:
            try:
                core_loop.run(self._load, config)
            finally:
                post(owner, _settle, ended)

        threading.Thread(target=run, name="radixrt-core", daemon=True).start()

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    async def close(self) -> None:
        self._closed = True
        if self._core_loop is not None:
            self._core_loop.stopping = True
        self._commands.put(Stop())
        if self._ended is not None:
            await asyncio.shield(self._ended)

    @property
    def pids(self) -> tuple[int, ...]:
        return ()


class _QueueInbox:
    def __init__(self, commands: queue.SimpleQueue[Command]) -> None:
        self._commands = commands

    def receive(self, *, timeout: float | None) -> Command | None:
        try:
            return self._commands.get(block=timeout != 0, timeout=timeout or None)
        except queue.Empty:
            return None


class ProcessClient:
    """A core in a worker process, watched by a thread that receives its reports.

    ``command`` starts a worker, given the link directory and our process id as further arguments.
    """

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-m", "radixrt.engine.worker"),
        *,
        silence: float = SILENCE_SECONDS,
        stall: float = STALL_SECONDS,
    ) -> None:
        self._command = command
        self._silence = silence
        self._stall = stall
        self._life: _WorkerLife | None = None
        self._idle: _WorkerLife | None = None
        self._closed = False

    def spawn(self) -> None:
        """Start the worker before its configuration is known: it imports meanwhile what it will need.

        Called in the thread that will run the event loop; ``start`` takes that worker, ``discard`` ends it.
        """
        assert self._idle is None and self._life is None, "already started"
        self._idle = _WorkerLife(self._command, self._silence, self._stall)

    def discard(self) -> None:
        """End a worker that was spawned and never started."""
        if self._idle is not None:
            self._idle.kill()
            self._idle = None

    def start(self, config: EngineConfig, on_report: OnReport) -> None:
        assert self._life is None, "already started"
        owner = asyncio.get_running_loop()

        def deliver(report: Report) -> None:
            if isinstance(report, Failed):
                self._life = None
            if not self._closed:
                on_report(report)

        # The worker is started by the thread of the event loop, because it dies with the thread that started it.
        life = self._life = self._idle or _WorkerLife(self._command, self._silence, self._stall)
        self._idle = None
        life.ended = owner.create_future()
        life.link.send(Load(PROTOCOL, config, logging.getLogger("radixrt").getEffectiveLevel()))
        threading.Thread(target=life.listen, args=(owner, deliver), name="radixrt-link", daemon=True).start()

    def submit(self, command: Command) -> None:
        if self._life is not None:
            self._life.link.send(command)

    async def close(self) -> None:
        self._closed = True
        self.discard()
        life = self._life
        if life is None:
            return
        assert life.ended is not None
        asks: list[Callable[[], None]] = [life.process.terminate, life.process.kill]
        if life.loaded:
            asks.insert(0, lambda: life.link.send(Stop()))
        for ask in asks:
            if life.ended.done():
                break
            ask()
            await asyncio.wait([life.ended], timeout=STOP_SECONDS)
        self._life = None

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._life is None else (self._life.process.pid,)


class _WorkerLife:
    """One worker from its start to its end, with its link."""

    def __init__(self, command: Sequence[str], silence: float, stall: float) -> None:
        self.ended: asyncio.Future[None] | None = None
        self.loaded = False
        self._silence = silence
        self._stall = stall
        self.link = FrontLink()
        try:
            self.process = subprocess.Popen(
                [*command, str(self.link.path), str(os.getpid())], stdin=subprocess.DEVNULL, env=_worker_environment()
            )
        except BaseException:
            self.link.close()
            raise

    def kill(self) -> None:
        """End a worker that nobody listens to."""
        self.process.kill()
        self.process.wait()
        self.link.close()

    def listen(self, owner: asyncio.AbstractEventLoop, deliver: OnReport) -> None:
        """Deliver reports until the worker is gone or has to go, then Failed."""
        try:
            failed = self._relay(lambda report: post(owner, deliver, report))
        except Exception as error:
            logger.exception("the worker's reports could not be read")
            failed = Failed(f"the link to the worker broke: {type(error).__name__}")
        # A worker that has failed by its own account has nothing left to save either.
        self.process.kill()
        self.process.wait()
        post(owner, self._end, deliver, failed)

    def _end(self, deliver: OnReport, failed: Failed) -> None:
        # On the owner's loop, since that is where the link is sent on.
        self.link.close()
        if self.ended is not None:
            _settle(self.ended)
        deliver(failed)

    def _relay(self, send: OnReport) -> Failed:
        clock = Watch()
        heard = moved = clock.seconds()
        steps = -1
        while True:
            report = self.link.receive(LOOK_MS)
            now = clock.seconds()
            if report is None:
                # Only a link that is quiet is looked behind, so the last words of a dead worker are read first.
                if self.process.poll() is not None:
                    return Failed(f"the engine process died ({_exit_text(self.process.returncode)})")
                if now - heard > self._silence:
                    return Failed(f"the engine process has been silent for {now - heard:.0f} s")
                continue
            heard = now
            match report:
                case Heartbeat():
                    if self.loaded:
                        self.link.hide()
                    if report.steps != steps or not report.busy:
                        steps, moved = report.steps, now
                    elif now - moved > self._stall:
                        return Failed(f"the engine has been stuck in one step for {now - moved:.0f} s")
                case Failed():
                    return report
                case _:
                    self.loaded = self.loaded or isinstance(report, Ready)
                    send(report)


class Watch:
    """Time as a watcher lives it, seconds.

    Processes that are stopped and go on, or a machine that slept, have been silent for nobody: of the time between two readings no
    more than PAUSE_SECONDS counts.
    """

    def __init__(self) -> None:
        self._read = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """How long it has watched."""
        now = time.monotonic()
        self._seconds += min(now - self._read, PAUSE_SECONDS)
        self._read = now
        return self._seconds


def post(owner: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Call on the owner's event loop, from any thread; a loop that is closed has nobody left to tell."""
    try:
        owner.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        logger.debug("the event loop of the engine is closed")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _worker_environment() -> dict[str, str]:
    """Our environment, with the folder radixrt was imported from first, so that the worker runs the same code."""
    root = str(Path(radixrt.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root + os.pathsep + inherited if inherited else root}


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
