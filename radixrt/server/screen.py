"""What the server shows of itself: a progress bar and one panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime

import orjson
from rich.console import Console
from rich.logging import RichHandler
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import radixrt
from radixrt.config import ServerConfig
from radixrt.engine.async_engine import AsyncEngine

QUIET_LOGGERS = ("uvicorn.error", "httptools", "asyncio")
LINE_INTERVAL = 5.0

logger = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, and ``error`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(), "level": record.levelname.lower(), "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up_logging(level: str, style: str = "auto") -> None:
    """Send the program's log to standard error: coloured on a terminal, plain or as JSON elsewhere, by ``--log-format``."""
    if style == "json":
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False, markup=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


class Screen:
    """The messages of one run, in the order of its life."""

    def __init__(self, config: ServerConfig, port: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        scheme = "http" if config.ssl_certfile is None else "https"
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"{scheme}://{host}:{port}"
        self._config = config
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = time.monotonic()

    def loading(self) -> None:
        self._line(f"radixrt {radixrt.__version__} listens on {self.url}; loading the model")

    def progress(self, done: int, total: int, name: str) -> None:
        """Show how far loading is."""
        if not self._console.is_terminal or self._config.log_format == "json":
            now = time.monotonic()
            if now - self._last_line > LINE_INTERVAL:
                self._last_line = now
                self._line(f"loading: {100 * done // max(1, total)} %")
            return
        if self._bar is None:
            percent = TextColumn("{task.percentage:>3.0f} % {task.description}", markup=False)
            columns = (TextColumn("loading"), BarColumn(), percent, TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(name, total=total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=done, total=total, description=name[-40:])

    def ready(self, engine: AsyncEngine) -> None:
        """Say where the server is and how to try it."""
        self.close()
        info = engine.info
        served = ", ".join(self._config.served_model_name) or engine.config.model.model_path
        curl = (
            f"curl {self.url}/v1/chat/completions -H 'Content-Type: application/json' "
            + ("-H 'Authorization: Bearer …' " if self._config.api_key or self._config.api_key_file else "")
            + """-d '{"messages": [{"role": "user", "content": "Hello!"}]}'"""
        )
        policy = engine.resolved.schedule.schedule_policy
        cache = "no prefix cache" if engine.config.cache.disable_radix_cache else f"{engine.config.cache.radix_eviction_policy} eviction"
        rows = (
            ("URL", self.url),
            ("Model", f"{served}: {info.architecture}, {info.dtype}, context {info.context_length:,}, loaded in {info.load_seconds:.1f} s"),
            ("KV pool", f"{info.capacity_tokens:,} tokens, {cache}"),
            ("Schedule", f"{policy}, attention {info.attention_backend or 'default'}"),
            ("API", f"{self.url}/docs"),
        )
        if self._console.is_terminal and self._config.log_format != "json":
            table = Table.grid(padding=(0, 2))
            for name, value in rows:
                table.add_row(Text(name, style="bold"), Text(value))
            self._console.print(Panel(table, title=f"radixrt {radixrt.__version__}", expand=False))
            self._console.print(curl, soft_wrap=True, markup=False)
        else:
            self._line("ready: " + "; ".join(f"{name} {value}" for name, value in rows))
            self._line(curl)

    def stopping(self, num_open: int) -> None:
        self.close()
        waiting = f"; {num_open} open requests may finish, a second signal ends them" if num_open else ""
        self._line(f"stopping{waiting}")

    def fail(self, message: str) -> None:
        self.close()
        self._line(f"error: {message}")

    def close(self) -> None:
        """Take the progress bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def _line(self, text: str) -> None:
        if self._config.log_format == "json":
            logger.info(text)
            return
        self._console.print(text, soft_wrap=True, markup=False)
