"""The instruction set in use, and the pool: every task runs once a round, on any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt_kernels.ops import NATIVE

if not NATIVE:
    pytest.skip("nothing was compiled", allow_module_level=True)

from radixrt_kernels import _native

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    isa, count = _native.cpu_isa(), _native.num_threads()
    yield
    _native.set_cpu_isa(isa)
    _native.set_num_threads(count)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [0, 1, 2, 5, 1000])
def test_every_task_runs_once_a_round(num_threads: int, tasks: int) -> None:
    _native.set_num_threads(num_threads)
    assert _native.num_threads() == num_threads
    assert _native._count_tasks(tasks, 200) == [200] * tasks


def test_callers_at_the_same_time_do_not_mix() -> None:
    _native.set_num_threads(2)
    results: list[list[int]] = []
    callers = [threading.Thread(target=lambda: results.append(_native._count_tasks(50, 400))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[400] * 50] * 4


def test_a_set_can_be_chosen_up_to_what_the_processor_has() -> None:
    names = _native.isa_names()
    offered = names[: names.index(_native.detected_isa()) + 1]
    for name in offered:
        _native.set_cpu_isa(name)
        assert _native.cpu_isa() == name
    for name in [*names[len(offered) :], "sse", ""]:
        with pytest.raises(ValueError, match="cpu"):
            _native.set_cpu_isa(name)


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [("RADIXRT_CPU_ISA", "portable", "_native.cpu_isa()"), ("RADIXRT_NUM_THREADS", "3", "str(_native.num_threads())")],
)
def test_the_environment_chooses(variable: str, value: str, code: str) -> None:
    program = f"from radixrt_kernels import _native; print({code})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, variable: value}, capture_output=True, text=True)
    assert done.stdout.strip() == value


def test_a_count_of_threads_is_checked() -> None:
    for count in (0, -1, 1025):
        with pytest.raises(ValueError, match="threads"):
            _native.set_num_threads(count)
