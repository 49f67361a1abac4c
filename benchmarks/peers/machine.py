"""What the machine could do while a server was measured on it, and what the server took of it.

Figures move with the machine and with who else uses it, so rates are measured in the same run: how fast all cores read
memory, and how fast torch multiplies matrices.  They are what plain code reaches here, not what the data sheet says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import psutil
import torch

READ_BYTES = 256 << 20  # more than caches hold
READ_TRIES = 5
GEMM_SECONDS = 0.3  # how long each size of each kind is tried
GEMM_SIZES = (256, 512, 1024, 2048)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class MemoryProbe:
    """Reads an array of its own with all cores."""

    def __init__(self, num_bytes: int = READ_BYTES) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._array = np.ones(num_bytes // 8)
        self._parts = np.array_split(self._array, cores)
        self._threads = ThreadPoolExecutor(cores)

    def gigabytes_s(self) -> float:
        """The best of a few readings, 10^9 bytes a second."""
        seconds = min(_seconds(lambda: list(self._threads.map(np.max, self._parts))) for _ in range(READ_TRIES))
        return self._array.nbytes / seconds / 1e9

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown()


def gemm_gigaops_s() -> dict[str, float]:
    """10^9 operations a second (two a multiplication) in torch's square products, by data type; the largest size that is quick."""
    kinds: dict[str, tuple[torch.dtype, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
        "float32": (torch.float32, torch.mm), "bfloat16": (torch.bfloat16, torch.mm), "int8": (torch.int8, torch._int_mm),
    }  # fmt: skip
    rates = {}
    for name, (dtype, multiply) in kinds.items():
        best = 0.0
        for size in GEMM_SIZES:
            a = torch.ones(size, size, dtype=dtype)
            begin, seconds = time.perf_counter(), float("inf")
            while time.perf_counter() - begin < GEMM_SECONDS:
                seconds = min(seconds, _seconds(lambda a=a, multiply=multiply: multiply(a, a)))  # type: ignore[misc]
            best = max(best, 2 * size**3 / seconds / 1e9)
            if 8 * seconds > GEMM_SECONDS:  # the next size takes eight times as long
                break
        rates[name] = best
    return rates


@dataclass(frozen=True, slots=True)
class Use:
    """What had been used at one moment: CPU seconds of the server's processes, of this one and of all, and memory in bytes.

    resident counts pages shared between the server's processes once for each of them; unshared splits them.
    """

    server_cpu: float
    own_cpu: float
    all_cpu: float
    resident: int
    unshared: int


class Processes:
    """The processes of a server on this machine: whoever listens on its port, and the children."""

    def __init__(self, base_url: str, pid: int | None = None) -> None:
        url = urlsplit(base_url)
        self.pid = pid
        if pid is None and url.hostname in LOOPBACK:
            self.pid = _listener(url.port or 80)

    def use(self) -> Use:
        """Add up."""
        times = psutil.cpu_times()
        own = os.times()
        cpu, resident, unshared = 0.0, 0, 0
        for process in self._tree():
            with suppress(psutil.Error):  # it has ended meanwhile, or is not ours to look at
                spent = process.cpu_times()
                memory = process.memory_full_info()
                cpu += spent.user + spent.system
                resident += memory.rss
                unshared += getattr(memory, "pss", memory.uss)
        return Use(cpu, own.user + own.system, times.user + times.nice + times.system, resident, unshared)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Stop them, and let them go on at the end, whatever happens meanwhile."""
        stopped = []
        try:
            for process in self._tree():
                with suppress(psutil.Error):
                    process.suspend()
                    stopped.append(process)
            yield
        finally:
            for process in reversed(stopped):
                with suppress(psutil.Error):
                    process.resume()

    def _tree(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            if self.pid is not None:
                process = psutil.Process(self.pid)
                return [process, *process.children(recursive=True)]
        return []


def _listener(port: int) -> int | None:
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return int(connection.pid)
    return None


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
