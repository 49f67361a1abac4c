"""Main of the worker process: one engine core behind the process link.

Started by ``ProcessClient`` as ``python -m radixrt.engine.worker DIRECTORY PARENT_PID``.  Lives no longer than its
parent, leaves Ctrl-C to it, and stops in order on SIGTERM.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import math
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from radixrt.config import EngineConfig
from radixrt.engine.link import PROTOCOL, BeatSocket, Command, Failed, Heartbeat, Load, WorkerLink
from radixrt.engine.loop import Core, CoreLoop, LoadCore, OnProgress, load_core
from radixrt.processes import be_own, brief_turns, die_with_parent

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
# How long an idle loop sleeps at most before it looks whether SIGTERM came.
IDLE_MS = 250


class LinkInbox:
    """The commands of a worker link as the inbox of a loop."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link

    def receive(self, *, timeout: float | None) -> Command | None:
        return self._link.receive(IDLE_MS if timeout is None else min(IDLE_MS, math.ceil(1000 * timeout)))


def main(arguments: list[str], load: LoadCore = load_core, *, imports: str | None = None) -> int:
    """Serve until stopped and return the exit code: 0 when told to stop, 1 when the core failed.

    imports: a module that ``load`` will need, imported before the first command is waited for.
    """
    directory, parent = Path(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    be_own()
    brief_turns()
    link = WorkerLink(directory)
    loop = CoreLoop(LinkInbox(link), link.send, prepares=True)

    def stop(signum: int, frame: FrameType | None) -> None:
        loop.stopping = True
        if not loop.loaded:
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(link.beats(), loop, parent, ended), name="heartbeat", daemon=True)
    beats.start()
    try:
        return _serve(link, loop, parent, load, imports)
    finally:
        ended.set()
        beats.join()
        link.close()


def _serve(link: WorkerLink, loop: CoreLoop, parent: int, load: LoadCore, imports: str | None) -> int:
    # Nearly all that is made until the core is up stays for good: the collector would look through it again and again.
    gc.disable()
    if imports is not None:
        # What cannot be imported is told when the core is loaded.
        with contextlib.suppress(ImportError):
            importlib.import_module(imports)
    first = _first_command(link, parent)
    if not isinstance(first, Load):
        return 0
    logging.basicConfig(level=first.log_level, format="%(levelname)s %(name)s (worker): %(message)s")
    if first.protocol != PROTOCOL:
        link.send(Failed(f"the worker speaks link protocol {PROTOCOL}, the front {first.protocol}"))
        return 1

    def load_for_good(config: EngineConfig, *, progress: OnProgress | None = None) -> Core:
        core = load(config, progress=progress)
        gc.freeze()
        gc.enable()
        return core

    return 0 if loop.run(load_for_good, first.config) else 1


def _first_command(link: WorkerLink, parent: int) -> Command | None:
    while os.getppid() == parent:
        command = link.receive(IDLE_MS)
        if command is not None:
            return command
    return None


def _beat(socket: BeatSocket, loop: CoreLoop, parent: int, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        if os.getppid() != parent:
            os._exit(1)
        socket.send(Heartbeat(loop.steps, loop.busy))
    socket.close()


if __name__ == "__main__":
    code = main(sys.argv[1:], imports="radixrt.engine.core")
    # Taking the interpreter and torch apart takes a second or more, and there is nothing left that could need it.
    os._exit(code)
