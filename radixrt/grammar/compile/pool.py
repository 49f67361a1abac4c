"""Processes that compile what may explode: started when needed, reused, and killed when they take too long.

One belongs to one thread.  A spec that runs into its deadline or its memory limit costs a process, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

import radixrt
from radixrt.errors import GrammarError
from radixrt.grammar.compile.wire import Begun, Compiled, FromChild, Pipe, Refused, Task, Tokens
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec

# How long a child may take to load an engine: it imports large libraries, on a machine that is busy.
LOAD_SECONDS = 120.0
# Beside threads that compute all the time Linux gives a child a thirtieth of their time: steps, which wait for their slowest
# thread, take at most so much longer, and what takes 50 ms is still compiled within 2 s.
NICENESS = 15
# A child is nice, so its time is counted on its own clock; on everybody's it may take so many times as long.
PATIENCE = 4.0
LOOK_SECONDS = 0.25

_decode = msgspec.msgpack.Decoder(FromChild).decode


class ChildFailed(Exception):
    """The child was killed or died: nothing is known about the spec but that it is too much."""


class Child:
    """A compiling process that may not be running.

    ``seconds`` of processor time, and PATIENCE times as many on the clock, are what a spec may take; ``max_bytes`` its memory.
    """

    def __init__(self, vocabulary: Vocabulary, *, seconds: float, max_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def compile(self, module: str, spec: GrammarSpec) -> bytes:
        """Return a grammar, compiled by the engine of that module, as its bytes.

        Raises GrammarError, and ChildFailed after the deadline.
        """
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died between two tasks, which is no fault of this one
        pipe = self._pipe or self._start()
        try:
            pipe.send(Task(module, spec, self._max_bytes))
            answer = self._receive(pipe, LOAD_SECONDS)
            if isinstance(answer, Begun):
                answer = self._result(pipe)
        except TimeoutError:
            self.kill()
            raise ChildFailed(f"took longer than {self._seconds:g} s") from None
        except OSError:
            answer = None
        match answer:
            case Compiled(data):
                return data
            case Refused(message, code, keyword, pointer):
                raise GrammarError(message, code=code, keyword=keyword, pointer=pointer)
        self.kill()
        raise ChildFailed("ended the process that compiles it, which has a limit on its memory")

    def kill(self) -> None:
        """End the process now; the next task starts another.  Any thread may call it."""
        process, self._process, self._pipe = self._process, None, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """End the process, and start no other."""
        self._closed = True
        self.kill()

    def _start(self) -> Pipe:
        if self._closed:
            raise ChildFailed("was given up because the engine stops")
        root = str(Path(radixrt.__file__).parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "radixrt.grammar.compile.child", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": root + os.pathsep + inherited if inherited else root, "OMP_NUM_THREADS": "1"},
        )
        # From here and not by the child, whose imports would run before it could be nice.
        with contextlib.suppress(ProcessLookupError):  # another thread has killed it
            os.setpriority(os.PRIO_PROCESS, process.pid, min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19))
        assert process.stdin is not None and process.stdout is not None
        pipe = self._pipe = Pipe(process.stdout.fileno(), process.stdin.fileno())
        words = self._vocabulary
        pipe.send(Tokens(list(words.token_bytes), list(words.end_ids), words.size))
        return pipe

    def _result(self, pipe: Pipe) -> FromChild | None:
        """Wait for what has begun.  Raises TimeoutError."""
        started, spent = time.monotonic(), self._cpu_seconds()
        while not pipe.waits(LOOK_SECONDS):
            if self._cpu_seconds() - spent > self._seconds or time.monotonic() - started > PATIENCE * self._seconds:
                raise TimeoutError
        return self._receive(pipe, LOAD_SECONDS)

    def _cpu_seconds(self) -> float:
        """Processor time of the process so far; the clock's where that cannot be known."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return time.monotonic()
        return float(times.user + times.system)

    def _receive(self, pipe: Pipe, seconds: float) -> FromChild | None:
        data = pipe.receive(time.monotonic() + seconds)
        return None if data is None else _decode(data)
