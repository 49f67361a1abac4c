"""What a process needs at its start: to end with the one that started it, to say whose it is, and to be up soon."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator

TURN_SECONDS = 0.001
_PR_SET_PDEATHSIG = 1
_own: list[bool] = []


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux); exit at once if that has already happened.

    The signal follows the *thread* that started this process, which therefore must live as long as it is wanted.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def be_own() -> None:
    """Say that this process was started by radixrt for itself, so that no code but its own runs in it."""
    _own.append(True)


def is_own() -> bool:
    """Whether ``be_own`` was said in this process."""
    return bool(_own)


def brief_turns() -> None:
    """Have a thread that computes in Python give way after a millisecond: one that steps asks for its turn many times a step."""
    sys.setswitchinterval(TURN_SECONDS)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Make objects that stay for good: the garbage collector looks at them neither meanwhile, again and again, nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
