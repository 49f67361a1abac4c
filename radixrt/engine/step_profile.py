"""When the parts of every step ran, and on which thread: a trace that chrome://tracing and Perfetto draw.

It shows whether the host work of one step hides under the computing of the next.  Holds names, times and thread ids; no
request, token or text.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from radixrt.errors import ConfigError
from radixrt.runner.stream import Result, Stream

T = TypeVar("T")

# A step is seven events of about 100 bytes; what comes after so many is not recorded.
MAX_EVENTS = 350_000


class StepProfile:
    """Appends spans of time to a file in Chrome's trace format, whose last bracket may be missing.

    Raises ConfigError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--profile-steps {path}: {error.strerror or error}") from None
        self._file.write("[\n")
        self._began = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._threads: set[int] = set()
        self._num_events = 0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record how long the block takes on this thread."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._add(name, start, time.perf_counter_ns())

    def close(self) -> None:
        """Write what is still held back, and close the file."""
        with self._lock:
            if not self._file.closed:
                self._file.write("{}]\n")
                self._file.close()

    def _add(self, name: str, start: int, end: int) -> None:
        thread = threading.get_ident()
        event = {"name": name, "ph": "X", "ts": (start - self._began) / 1000, "dur": (end - start) / 1000, "pid": 0, "tid": thread}
        with self._lock:
            if self._file.closed or self._num_events >= MAX_EVENTS:
                return
            if thread not in self._threads:
                self._threads.add(thread)
                self._write({"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": threading.current_thread().name}})
            self._write(event)

    def _write(self, event: dict[str, Any]) -> None:
        self._num_events += 1
        self._file.write(json.dumps(event, separators=(",", ":")) + ",\n")


class ProfiledStream:
    """A stream whose work is recorded where it runs, under the name of its function."""

    def __init__(self, stream: Stream, profile: StepProfile) -> None:
        self._stream = stream
        self._profile = profile

    def submit(self, work: Callable[[], T]) -> Result[T]:
        def recorded() -> T:
            with self._profile.span(getattr(work, "__name__", "work")):
                return work()

        return self._stream.submit(recorded)

    def close(self) -> None:
        self._stream.close()
