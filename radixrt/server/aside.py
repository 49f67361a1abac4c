"""Where answers are put together: small ones at once, large ones in a thread, so that nobody else waits for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from radixrt.engine.stream import Answer

# Positions; each can carry well over a hundred logprobs, and that many positions take some 10 ms.
LARGE = 256

T = TypeVar("T")


@functools.cache
def _thread() -> ThreadPoolExecutor:
    # One thread: several would only take the interpreter from each other, and from the event loop.
    return ThreadPoolExecutor(1, thread_name_prefix="radixrt-answers")


async def build(call: Callable[[], T], size: int) -> T:
    """Return what ``call`` does; it reports ``size`` positions and touches nothing that changes meanwhile."""
    if size <= LARGE:
        return call()
    return await asyncio.get_running_loop().run_in_executor(_thread(), call)


def num_positions(answers: Iterable[Sequence[Answer]]) -> int:
    """Count the positions that whole answers report."""
    return sum(len(answer.token_ids) + len(answer.prompt_logprobs or ()) for choices in answers for answer in choices)
