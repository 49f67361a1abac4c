"""What the states of one run of a program share, and values that are on their way."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radixlang.backends.base import Backend, Program
from radixlang.errors import ProgramError, Site
from radixlang.options import Sampling
from radixlang.piece import Future, Piece

if TYPE_CHECKING:
    from radixlang.state import State


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of prompts, how many of them came from the cache, and tokens written."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Halt(Exception):
    """The program has come to the first thing the model would write."""


@dataclasses.dataclass(slots=True)
class Run:
    """What all states of one run of a program have in common.

    ``pieces``: what was written, in the order it was finished.  ``on_state`` is told of each state.  ``halts``: Halt is raised
    where something would be written.
    """

    backend: Backend
    program: Program
    defaults: Sampling = dataclasses.field(default_factory=Sampling)
    streams: bool = False
    pieces: list[Piece] = dataclasses.field(default_factory=list)
    tasks: set[Future[Any]] = dataclasses.field(default_factory=set)
    on_state: Callable[[State], None] | None = None
    halts: bool = False

    def usage(self) -> Usage:
        """Return the tokens of everything that is finished."""
        total = Usage()
        for piece in list(self.pieces):
            first = piece.answers[0].meta
            written = sum(answer.meta.get("completion_tokens", 0) for answer in piece.answers)
            total += Usage(first.get("prompt_tokens", 0), first.get("cached_tokens", 0), written)
        return total

    def cancel(self) -> None:
        """Stop everything that is being written."""
        for task in list(self.tasks):
            task.cancel()


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A value that is there or on its way, and the piece it is the text of."""

    value: Future[Any]
    piece: Piece | None = None


def then(done: Future[Any], value: Callable[[], Any], site: Site) -> Future[Any]:
    """Return a future of what ``value`` returns once ``done`` is; what it raises is an error of ``site``."""
    result: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        try:
            done.result()
            result.set_result(value())
        except concurrent.futures.CancelledError:
            result.cancel()
        except Exception as error:
            result.set_exception(ProgramError.of(error, site))

    done.add_done_callback(settle)
    return result
