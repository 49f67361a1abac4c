"""``--dp-size N``: N servers on this machine behind smg, whose routing keeps a conversation where its prefix is cached.

The gateway is smg's (the extra ``gateway``): cache-aware by default, with retries, a circuit breaker and health checks.  This
module starts it and the servers, starts a server again that dies, and ends all of them together.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.processes import die_with_parent
from radixrt.server.auth import api_keys

logger = logging.getLogger(__name__)

RESTART_DELAYS = (1.0, 5.0, 15.0, 60.0)
# A server that has lived so long is given every restart again.
STEADY_SECONDS = 300.0
POLL = 0.2
HEALTH_INTERVAL = 5
HEALTH_FAILURES = 2
# Seconds between two looks at a server that still loads.
STARTUP_INTERVAL = 1
# A server that failed so often in a row is left alone for HEALTH_INTERVAL seconds: fewer than the five tries of a request.
RETRIED_FAILURES = 3
# Beyond the drain of a server: the gateway's own end and the interpreter's.
GRACE = 10.0


def serve_fleet(flags: Sequence[str], config: ServerConfig) -> int:
    """Run ``--dp-size`` servers with these command-line flags, and the gateway, until told to stop; return the exit code.

    Raises ConfigError when smg is not installed.
    """
    if importlib.util.find_spec("smg") is None:
        raise ConfigError("--dp-size needs the gateway: pip install 'radixrt[gateway]'")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    members = [Member(flags, port) for port in free_ports(config.dp_size)]
    gateway = None
    try:
        for member in members:
            member.start()
        gateway = subprocess.Popen(
            gateway_command(config, [member.url for member in members]), preexec_fn=functools.partial(die_with_parent, os.getpid())
        )
        logger.info("%d servers behind http://%s:%d: %s", len(members), config.host, config.port, ", ".join(m.url for m in members))
        while not stop.wait(POLL):
            if gateway.poll() is not None:
                logger.error("the gateway ended with code %d", gateway.returncode)
                return 1
            alive = [member.look_after() for member in members]
            if not all(alive):
                return 1
        return 0
    finally:
        _end([gateway] if gateway is not None else [], GRACE)
        _end([member.process for member in members if member.process is not None], config.drain_timeout + GRACE)


class Member:
    """One server of a fleet, at a port of this machine's loopback address."""

    def __init__(self, flags: Sequence[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None
        # Later flags replace earlier ones.
        own = ["--dp-size", "1", "--host", "127.0.0.1", "--port", str(port)]
        self._command = [sys.executable, "-m", "radixrt", "serve", *flags, *own]
        self._started = 0.0
        self._restarts = 0
        self._due: float | None = None

    def start(self) -> None:
        # What the environment says of host and port is the gateway's.
        environment = {name: value for name, value in os.environ.items() if name not in ("RADIXRT_HOST", "RADIXRT_PORT", "RADIXRT_DP_SIZE")}
        self.process = subprocess.Popen(self._command, env=environment, preexec_fn=functools.partial(die_with_parent, os.getpid()))
        self._started, self._due = time.monotonic(), None

    def look_after(self) -> bool:
        """Start the server again, after growing delays, when it has died; False when it has died too often."""
        assert self.process is not None
        now = time.monotonic()
        if self._due is not None:
            if now >= self._due:
                self.start()
            return True
        if self.process.poll() is None:
            return True
        if now - self._started > STEADY_SECONDS:
            self._restarts = 0
        if self._restarts >= len(RESTART_DELAYS):
            logger.error("the server at %s died too often", self.url)
            return False
        logger.error("the server at %s died with code %d; it is started again", self.url, self.process.returncode)
        self._due = now + RESTART_DELAYS[self._restarts]
        self._restarts += 1
        return True


def gateway_command(config: ServerConfig, urls: Sequence[str]) -> list[str]:
    """The command line of smg for these servers."""
    command = [
        sys.executable, "-m", "smg", "launch", "--host", config.host, "--port", str(config.port), "--worker-urls", *urls,
        "--health-check-interval-secs", str(HEALTH_INTERVAL), "--health-failure-threshold", str(HEALTH_FAILURES),
        "--worker-startup-check-interval", str(STARTUP_INTERVAL),
        "--cb-failure-threshold", str(RETRIED_FAILURES), "--cb-timeout-duration-secs", str(HEALTH_INTERVAL),
        "--max-payload-size", str(config.max_body_bytes), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_ports(1)[0]),
        "--log-level", {"warning": "warn"}.get(config.log_level, config.log_level),
    ]
    keys = api_keys(config)
    return [*command, "--api-key", keys[0]] if keys else command


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


def _end(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Tell processes to end, and kill those that have not after so long."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
