"""The life of the server process: bind, load, serve, drain, leave.

The port is bound before the model loads.  The first SIGINT or SIGTERM lets open streams finish and takes nothing new;
a second one ends everything at once.  What the process returns is its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn

from radixrt.config import EngineConfig, ServerConfig, flag
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.client import CoreClient
from radixrt.engine.trace import TraceRecorder
from radixrt.errors import ConfigError, RadixrtError
from radixrt.server.app import build_app
from radixrt.server.auth import api_keys
from radixrt.server.connection import BoundedProtocol
from radixrt.server.screen import Screen
from radixrt.types import MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from radixrt.engine.spans import SpanRecorder

logger = logging.getLogger(__name__)

BACKLOG = 2048
# After the drain nothing is open but connections in the middle of sending a request.
CLOSE_TIMEOUT = 3
EXIT_FAILURE = 1
EXIT_CONFIG = 2


def check(config: ServerConfig) -> None:
    """Raise ConfigError for settings of the server that cannot work or should not."""
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"--port must be in [0, 65535], got {config.port}")
    config.check()
    if config.max_top_logprobs > MAX_TOP_LOGPROBS:
        raise ConfigError(f"--max-top-logprobs must be in [1, {MAX_TOP_LOGPROBS}], got {config.max_top_logprobs}")
    if config.dp_size < 1:
        raise ConfigError(f"--dp-size must be at least 1, got {config.dp_size}")
    if config.dp_size > 1 and config.port == 0:
        raise ConfigError("--dp-size needs a --port")
    if config.dp_size > 1 and config.ssl_certfile is not None:
        raise ConfigError("--dp-size: let smg itself serve HTTPS, in front of servers started one by one")
    if config.drain_timeout < 0:
        raise ConfigError(f"--drain-timeout must not be negative, got {config.drain_timeout}")
    if (config.ssl_certfile is None) != (config.ssl_keyfile is None):
        raise ConfigError("--ssl-certfile and --ssl-keyfile go together")
    for name in ("ssl_certfile", "ssl_keyfile"):
        path = getattr(config, name)
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{flag(name)} {path}: no such file")
    if not api_keys(config) and not config.allow_remote_without_api_key and not _loopback(config.host):
        raise ConfigError(
            f"--host {config.host} can be reached from other machines: set --api-key, or --allow-remote-without-api-key if that is meant"
        )


def bind(config: ServerConfig) -> socket.socket:
    """Bind the port.  Raises ConfigError when it is taken or the address is not this machine's."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
    except OSError as error:
        raise ConfigError(f"--host {config.host}: {error.strerror or error}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Listening at once makes a second server on the port fail here and not later.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}; try another --port, or 0 for any free one") from None
    return listener


def serve(engine_config: EngineConfig, config: ServerConfig, *, client: CoreClient | None = None) -> int:
    """Run a server until it is told to stop; return the exit code.  Raises ConfigError before anything is served.

    client: the core to use, instead of a worker process that is started here.
    """
    check(config)
    name = config.served_model_name[0] if config.served_model_name else engine_config.model.model_path
    with contextlib.closing(bind(config)) as listener, _recorder(config) as recorder, _spans(config, name) as spans:
        engine = AsyncEngine(engine_config, model_name=name, recorder=recorder, spans=spans, client=client)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_Run(engine, config, listener).run())


def _recorder(config: ServerConfig) -> AbstractContextManager[TraceRecorder | None]:
    if config.record_trace is None:
        return contextlib.nullcontext()
    try:
        return TraceRecorder(Path(config.record_trace))
    except OSError as error:
        raise ConfigError(f"--record-trace {config.record_trace}: {error.strerror or error}") from None


@contextlib.contextmanager
def _spans(config: ServerConfig, model_name: str) -> Iterator[SpanRecorder | None]:
    endpoint = config.otlp_traces_endpoint
    if endpoint is None:
        yield None
        return
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(f"--otlp-traces-endpoint must be a URL of http or https, got {endpoint}")
    try:
        from radixrt.engine.spans import SpanRecorder
    except ImportError as error:
        raise ConfigError(f"--otlp-traces-endpoint needs OpenTelemetry: pip install 'radixrt[otel]' ({error})") from None
    with contextlib.closing(SpanRecorder.to(endpoint, model_name)) as spans:
        yield spans


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: it would raise the signal again after serving, past all clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Run:
    """One run of the server."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig, listener: socket.socket) -> None:
        self._engine = engine
        self._config = config
        self._listener = listener
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._screen = Screen(config, listener.getsockname()[1])
        self._http = _QuietServer(
            uvicorn.Config(
                build_app(engine, config), http=BoundedProtocol.within(config), ws="none", lifespan="off", access_log=False,
                log_config=None, server_header=False, backlog=BACKLOG, timeout_keep_alive=config.keep_alive_timeout,
                timeout_graceful_shutdown=CLOSE_TIMEOUT, ssl_certfile=config.ssl_certfile, ssl_keyfile=config.ssl_keyfile,
            )
        )

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        self._screen.loading()
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        engine = asyncio.create_task(self._load())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({http, engine, stop}, return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                engine.result()
                self._screen.ready(self._engine)
                await asyncio.wait({http, stop}, return_when=asyncio.FIRST_COMPLETED)
            return await self._leave(http, engine)
        except ConfigError as error:
            self._screen.fail(str(error))
            return EXIT_CONFIG
        except RadixrtError as error:
            self._screen.fail(str(error))
            return EXIT_FAILURE
        finally:
            # Reached in every case: no worker outlives this function.
            engine.cancel()
            stop.cancel()
            await self._engine.close()
            self._http.should_exit = self._http.force_exit = True
            await asyncio.gather(http, engine, stop, return_exceptions=True)
            self._screen.close()

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _load(self) -> None:
        self._engine.progress = self._screen.progress
        await self._engine.start()

    async def _leave(self, http: asyncio.Task[None], engine: asyncio.Task[None]) -> int:
        """Let open requests finish, then close the connections."""
        if http.done():
            http.result()
            logger.error("the HTTP server ended by itself")
            return EXIT_FAILURE
        self._screen.stopping(self._engine.num_open)
        drain = asyncio.create_task(self._engine.close(drain=self._config.drain_timeout if engine.done() else 0.0))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not drain.done():
            drain.cancel()
            await asyncio.gather(drain, return_exceptions=True)
            await self._engine.close()
            self._http.force_exit = True
        self._http.should_exit = True
        await asyncio.wait({http}, timeout=CLOSE_TIMEOUT + 1)
        return 0


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
