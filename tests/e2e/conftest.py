"""Real servers for the tests of this folder: one shared one with the toy model, and private ones to signal or kill."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT = 60.0


class RunningServer:
    """A server process and a client that talks to it."""

    def __init__(self, *flags: str, model: str = "toy", verify: ssl.SSLContext | bool = True) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radixrt.launch_server", "--model-path", model, "--port", "0", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        )
        self.log: list[str] = []
        self._bound = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._bound.wait(START_TIMEOUT)
        found = re.search(r"https?://\S+:\d+", "".join(self.log))
        self.url = found[0] if found else ""
        self.http = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False, verify=verify)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if "listens on" in line:
                self._bound.set()
        self._bound.set()

    def wait_ready(self) -> RunningServer:
        self.wait_for(lambda: self.process.poll() is not None or self.http.get("/health").status_code == 200, START_TIMEOUT)
        assert self.process.poll() is None, "".join(self.log)
        return self

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> float:
        """Wait until ``holds``; return how long that took."""
        started = time.monotonic()
        while not holds():
            waited = time.monotonic() - started
            assert waited < seconds, f"not so after {waited:.1f} s; log:\n{''.join(self.log[-20:])}"
            time.sleep(0.02)
        return time.monotonic() - started

    def is_idle(self) -> bool:
        state = self.http.get("/server_info").json()["internal_states"][0]
        return state["num_running_reqs"] == state["num_waiting_reqs"] == state["kv_used_tokens"] == 0

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal_and_wait(self, number: signal.Signals, seconds: float) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def stop(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def running(*flags: str, model: str = "toy") -> Iterator[RunningServer]:
    server = RunningServer(*flags, model=model)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A server with the toy model, shared by the tests that leave it as it was."""
    with running() as server:
        yield server.wait_ready()


@pytest.fixture(scope="session")
def model_server() -> Iterator[RunningServer]:
    """A server with the default model."""
    with running(model="smollm2-135m-instruct") as server:
        yield server.wait_ready()


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """Start private servers; they are stopped after the test."""
    servers: list[RunningServer] = []

    def start(*flags: str, model: str = "toy", verify: ssl.SSLContext | bool = True) -> RunningServer:
        servers.append(RunningServer(*flags, model=model, verify=verify))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
