"""What a compiling child and its owner say to each other over two pipes: msgpack structs behind their length."""

from __future__ import annotations

import os
import select
import struct
import time

import msgspec

from radixrt.types import GrammarSpec

_LENGTH = struct.Struct("<I")
_READ = 1 << 16


class Tokens(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message to a child: the vocabulary."""

    token_bytes: list[bytes | None]
    end_ids: list[int]
    size: int


class Task(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compile this with the engine of that module, in at most so many bytes more than are taken now."""

    module: str
    spec: GrammarSpec
    max_bytes: int


class Begun(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is loaded; from now on the spec alone takes time."""


class Compiled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    data: bytes


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A GrammarError."""

    message: str
    code: str | None
    keyword: str | None
    pointer: str | None


ToChild = Tokens | Task
FromChild = Begun | Compiled | Refused


class Pipe:
    """Whole messages over two file descriptors."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, message: ToChild | FromChild) -> None:
        """Write a message; raises OSError when nobody reads any more."""
        data = self._encode(message)
        view = memoryview(_LENGTH.pack(len(data)) + data)
        while view:
            view = view[os.write(self._outgoing, view) :]

    def waits(self, seconds: float) -> bool:
        """Whether something to read comes within so long."""
        return bool(select.select([self._incoming], [], [], seconds)[0])

    def receive(self, until: float | None = None) -> bytes | None:
        """Read a message; None when the other end is gone.  Raises TimeoutError after ``until`` (time.monotonic())."""
        head = self._read(_LENGTH.size, until)
        return None if head is None else self._read(_LENGTH.unpack(head)[0], until)

    def _read(self, count: int, until: float | None) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            if until is not None:
                left = until - time.monotonic()
                if left <= 0 or not select.select([self._incoming], [], [], left)[0]:
                    raise TimeoutError
            part = os.read(self._incoming, min(_READ, count - len(parts)))
            if not part:
                return None
            parts += part
        return bytes(parts)
