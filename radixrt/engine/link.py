"""The process link: what travels between the engine front and its core, and the two ends of the ZMQ connection.

Messages are frozen tagged structs in msgpack; the same structs are used when the core runs in a thread of the front.
Sockets are ``ipc://`` files in a directory of mode 0700, which goes as soon as both ends are connected.  Nothing is ever
dropped: the front's sends queue without a limit (what is open bounds them) so that it never blocks; the worker's sends
block when the front falls behind, which pauses the step loop.  Starting, watching and restarting the worker is not done
here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import zmq

from radixrt.config import EngineConfig
from radixrt.engine.questions import AnyAnswer, AnyQuestion
from radixrt.types import EngineStats, GenerateRequest, ModelInfo, TokenOutput

PROTOCOL = 3

# Reports a worker may be ahead of the front before its step loop waits.
MAX_REPORTS_AHEAD = 1000
# A worker that is leaving gives its last words this long to get out.
LINGER_MS = 2000
# Socket paths have about 100 bytes; a longer temporary folder is replaced.
MAX_TEMP_PATH = 60


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """First command to a worker: which engine to load."""

    protocol: int
    config: EngineConfig
    log_level: int


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Take these requests, all before the next step."""

    requests: list[GenerateRequest]


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    uid: int


class Flush(msgspec.Struct, frozen=True, tag=True, array_like=True):
    ticket: int


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answer a question about the cache between two steps."""

    ticket: int
    question: AnyQuestion


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End the loop now; what still runs is not answered."""


class Progress(msgspec.Struct, frozen=True, tag=True, array_like=True):
    done: int
    total: int
    name: str


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The core takes requests.  ``config``: the one it was given, with every ``auto`` resolved."""

    protocol: int
    model: ModelInfo
    stats: EngineStats
    config: EngineConfig


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The core is gone: the last report of its life.  ``config`` tells a ConfigError from everything else."""

    message: str
    config: bool = False


class Outputs(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a step brought.  ``stats`` come with some of them only: a hundred steps a second change them by little."""

    outputs: list[TokenOutput]
    stats: EngineStats | None


class Flushed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    ticket: int
    ok: bool
    stats: EngineStats


class Answered(msgspec.Struct, frozen=True, tag=True, array_like=True):
    ticket: int
    answer: AnyAnswer
    stats: EngineStats


class Heartbeat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Sent every second by a thread beside the step loop, so a long step is not silence.

    ``steps`` that stand still while ``busy`` tell a stuck core from a slow one.
    """

    steps: int
    busy: bool


Command = Load | Add | Abort | Flush | Ask | Stop
Report = Progress | Ready | Failed | Outputs | Flushed | Answered | Heartbeat

_encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_report = msgspec.msgpack.Decoder(Report).decode


class FrontLink:
    """The front's end: ``send`` in one thread, ``receive`` in one other, ``close`` when both have ended."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        self._directory = tempfile.TemporaryDirectory(prefix="radixrt-", dir=parent if len(parent) <= MAX_TEMP_PATH else "/tmp")
        self.path = Path(self._directory.name)
        self._context = zmq.Context()
        self._reports = self._context.socket(zmq.PULL)
        self._reports.setsockopt(zmq.RCVHWM, MAX_REPORTS_AHEAD)
        self._reports.bind(f"ipc://{self.path}/reports")
        # The connecting side has its queue at once; a bound one would refuse to send until the worker is there.
        self._commands = self._context.socket(zmq.PUSH)
        self._commands.setsockopt(zmq.SNDHWM, 0)
        self._commands.setsockopt(zmq.RECONNECT_IVL, 20)
        self._commands.connect(f"ipc://{self.path}/commands")

    def send(self, command: Command) -> None:
        """Queue a command; never blocks."""
        self._commands.send(_encode(command), zmq.NOBLOCK)

    def receive(self, timeout_ms: int) -> Report | None:
        """Return the next report, or None when none came in time.  Raises msgspec.DecodeError for a foreign one."""
        if not self._reports.poll(timeout_ms):
            return None
        return _decode_report(self._reports.recv())

    def hide(self) -> None:
        """Remove the directory: what is connected stays so, nobody else can connect, and no crash leaves it behind."""
        self._directory.cleanup()

    def close(self) -> None:
        """Close both sockets and remove their directory; unsent commands are discarded.  Idempotent."""
        self._context.destroy(linger=0)
        self._directory.cleanup()


class WorkerLink:
    """The worker's end: commands in, reports out, used by the thread of the step loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.setsockopt(zmq.RCVHWM, 0)
        self._commands.bind(f"ipc://{path}/commands")
        self._reports = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        reports = self._context.socket(zmq.PUSH)
        reports.setsockopt(zmq.SNDHWM, MAX_REPORTS_AHEAD)
        reports.setsockopt(zmq.LINGER, LINGER_MS)
        reports.connect(f"ipc://{self._path}/reports")
        return reports

    def receive(self, timeout_ms: int) -> Command | None:
        """Return the next command, or None when none came in time."""
        if not self._commands.poll(timeout_ms):
            return None
        return _decode_command(self._commands.recv())

    def send(self, report: Report) -> None:
        """Send a report; waits while the front is MAX_REPORTS_AHEAD behind."""
        self._reports.send(_encode(report))

    def beats(self) -> BeatSocket:
        """Open a second socket for another thread; ZMQ sockets belong to one thread each."""
        return BeatSocket(self._connect())

    def close(self) -> None:
        """Close the sockets once the last reports are out, at most LINGER_MS from now."""
        self._commands.close(linger=0)
        self._reports.close()
        self._context.term()


class BeatSocket:
    """Sends heartbeats from a thread of its own."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, beat: Heartbeat) -> None:
        """Send a beat, or leave it out when the front is far behind: the reports it has not read are beats enough."""
        if self._socket.poll(0, zmq.POLLOUT):
            self._socket.send(_encode(beat))

    def close(self) -> None:
        self._socket.close(linger=0)
