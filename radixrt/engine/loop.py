"""The loop around an engine core: commands in, one step, reports out.

The same body serves a worker process and a thread of the embedding process; they differ in the inbox and in where
reports go.  It runs in exactly one thread, which also loads the core.  Whatever goes wrong while one command is handled
ends that request and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from radixrt.config import EngineConfig
from radixrt.engine.link import (
    PROTOCOL,
    Abort,
    Add,
    Answered,
    Ask,
    Command,
    Failed,
    Flush,
    Flushed,
    Outputs,
    Progress,
    Ready,
    Report,
    Stop,
)
from radixrt.engine.questions import AnyAnswer, AnyQuestion, Declined
from radixrt.engine.stream import ended_by
from radixrt.errors import ConfigError, RadixrtError
from radixrt.types import EngineStats, Finish, FinishReason, GenerateRequest, ModelInfo, TokenOutput

logger = logging.getLogger(__name__)

# Seconds for which nobody minds that counts are old, while nothing begins or ends.
STATS_SECONDS = 0.05

OnProgress = Callable[[int, int, str], None]

# After so many looks into an empty inbox, with nothing to do, nobody minds what else is done.
QUIET_LOOKS = 4


class Core(Protocol):
    """The engine core as its owner sees it; ``radixrt.engine.core.EngineCore`` is the one that computes."""

    info: ModelInfo
    config: EngineConfig

    def add(self, request: GenerateRequest) -> None: ...

    def abort(self, uid: int) -> None: ...

    def flush(self) -> bool: ...

    def answer(self, question: AnyQuestion) -> AnyAnswer: ...

    def has_work(self) -> bool: ...

    @property
    def patience(self) -> float | None: ...

    def prepare(self) -> None: ...

    def step(self) -> list[TokenOutput]: ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class LoadCore(Protocol):
    def __call__(self, config: EngineConfig, *, progress: OnProgress | None = None) -> Core: ...


class Inbox(Protocol):
    def receive(self, *, timeout: float | None) -> Command | None:
        """Return the next command; None when there is none within ``timeout`` seconds, or when it is time to look around.

        None as the time-out: until there is one.
        """


def load_core(config: EngineConfig, *, progress: OnProgress | None = None) -> Core:
    """Load the real core."""
    # Imported here because the core brings torch, which a front with a worker process never needs.
    from radixrt.engine.core import EngineCore

    return EngineCore.load(config, progress=progress)


class CoreLoop:
    """Loads one core and drives it until told to stop.

    ``prepares``: the first time that nothing comes for a while, the core gets ready for what may come; for an inbox that returns
    now and then, in a process of its own.  Other threads may read ``steps``, ``busy`` and ``loaded``, and set ``stopping``.
    """

    def __init__(self, inbox: Inbox, report: Callable[[Report], None], *, prepares: bool = False) -> None:
        self.steps = 0
        self.busy = False
        self.loaded = False
        self.stopping = False
        self._stats_due = 0.0
        self._counted: EngineStats | None = None
        self._inbox = inbox
        self._prepares = prepares
        self._report = report

    def run(self, load: LoadCore, config: EngineConfig) -> bool:
        """Load, report Ready and serve until Stop; False, after a report of Failed, when it ended by itself."""
        try:
            core = load(config, progress=self._progress)
        except _Stopped:
            return True
        except ConfigError as error:
            self._report(Failed(str(error), config=True))
            return False
        except Exception as error:
            logger.exception("loading the model failed")
            self._report(Failed(f"loading the model failed: {_first_line(error)}"))
            return False
        try:
            self.loaded = True
            self._report(Ready(PROTOCOL, core.info, self._count(core), core.config))
            self._serve(core)
        except Exception as error:
            if not isinstance(error, RadixrtError):
                logger.exception("the engine core failed")
            self._report(Failed(f"the engine core failed: {_first_line(error)}"))
            return False
        finally:
            core.close()
        return True

    def _progress(self, done: int, total: int, name: str) -> None:
        if self.stopping:
            raise _Stopped
        self._report(Progress(done, total, name))

    def _serve(self, core: Core) -> None:
        quiet = 0
        while not self.stopping:
            self.busy = core.has_work()
            command = self._inbox.receive(timeout=0.0 if self.busy else core.patience)
            quiet = 0 if self.busy or command is not None else quiet + 1
            if quiet:
                self._recount(core)
            if self._prepares and quiet == QUIET_LOOKS:
                self._prepares = False
                core.prepare()
            while command is not None and not self.stopping:
                self._stats_due = 0.0
                try:
                    self._accept(core, command)
                except Exception:
                    logger.exception("%s could not be handled", type(command).__name__)
                    self._refuse(core, command)
                command = self._inbox.receive(timeout=0.0)
            if not self.stopping and core.has_work():
                self.busy = True
                outputs = core.step()
                self.steps += 1
                self._report(Outputs(outputs, self._due_stats(core, outputs)))

    def _due_stats(self, core: Core, outputs: list[TokenOutput]) -> EngineStats | None:
        """Count when it is time, when a command came or a request ended since the last count, and before the loop rests."""
        now = time.monotonic()
        if now < self._stats_due and core.has_work() and all(output.finish is None for output in outputs):
            return None
        self._stats_due = now + STATS_SECONDS
        return self._count(core)

    def _recount(self, core: Core) -> None:
        """Tell what has changed with nobody waiting for it, such as a grammar that is done after all who asked for it have gone."""
        now = time.monotonic()
        if now >= self._stats_due:
            self._stats_due = now + STATS_SECONDS
            counted = self._counted
            if self._count(core) != counted:
                self._report(Outputs([], self._counted))

    def _count(self, core: Core) -> EngineStats:
        self._counted = core.stats()
        return self._counted

    def _accept(self, core: Core, command: Command) -> None:
        match command:
            case Add(requests):
                refused = [output for request in requests if (output := self._add(core, request)) is not None]
                if refused:
                    self._report(Outputs(refused, self._count(core)))
            case Abort(uid):
                core.abort(uid)
            case Flush(ticket):
                self._report(Flushed(ticket, core.flush(), self._count(core)))
            case Ask(ticket, question):
                self._report(Answered(ticket, self._answer(core, question), self._count(core)))
            case Stop():
                self.stopping = True
            case _:
                raise AssertionError(f"{type(command).__name__} is not for a running core")

    def _refuse(self, core: Core, command: Command) -> None:
        match command:
            case Add(requests):
                self._report(Outputs([refusal(request.uid, "internal error", 500) for request in requests], self._count(core)))
            case Abort(uid):
                self._report(Outputs([refusal(uid, "internal error", 500)], self._count(core)))
            case Flush(ticket):
                self._report(Flushed(ticket, False, self._count(core)))
            case Ask(ticket):
                self._report(Answered(ticket, Declined("internal error", 500), self._count(core)))

    def _answer(self, core: Core, question: AnyQuestion) -> AnyAnswer:
        try:
            return core.answer(question)
        except RadixrtError as error:
            return Declined.of(error)

    def _add(self, core: Core, request: GenerateRequest) -> TokenOutput | None:
        try:
            core.add(request)
        except RadixrtError as error:
            return TokenOutput(request.uid, [], finish=ended_by(error))
        except Exception:
            logger.exception("request %d could not be added", request.uid)
            core.abort(request.uid)
            return refusal(request.uid, "internal error while the request was added", 500)
        return None


class _Stopped(Exception):
    """Breaks off loading."""


def refusal(uid: int, message: str, status: int) -> TokenOutput:
    """The output that ends a request which will not be (further) computed."""
    return TokenOutput(uid, [], finish=Finish(FinishReason.ABORT, message=message, status=status))


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
