"""What a backend is asked, and ``as_backend``, which makes one of an engine or of an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from radixlang.options import Sampling
from radixlang.piece import Answer, Piece
from radixlang.select import Score
from radixrt import RequestError


@dataclass(slots=True)
class Program:
    """One run of a program, as backends know it.

    ``state`` is the backend's, for as long as the program runs.  ``ephemeral``: what is written in it need not stay cached behind
    its end.  ``num_api_spec_tokens``: how much more than asked for a backend may fetch at a time, to answer the next generations with.
    """

    name: str = ""
    parent: Program | None = None
    num_api_spec_tokens: int | None = None
    ephemeral: bool = False
    state: Any = None


@dataclass(frozen=True, slots=True)
class Request:
    """A generation behind the settled piece ``before``.  ``on_text`` is told what is written while it is, when somebody listens."""

    before: Piece | None
    sampling: Sampling
    program: Program = field(default_factory=Program)
    piece: Piece | None = None
    on_text: Callable[[str], None] | None = None


@runtime_checkable
class Backend(Protocol):
    """Runs the generations of programs; every method is called on radixlang's event loop."""

    async def generate(self, request: Request) -> list[Answer]:
        """Return ``sampling.n`` answers.  Raises what went wrong."""
        ...

    async def score(self, before: Piece | None, choices: Sequence[str], program: Program, *, unconditional: bool) -> list[Score]:
        """Return how likely each choice is behind a settled piece.  Raises when the backend cannot tell."""
        ...

    async def pin(self, before: Piece | None, others: Sequence[Piece | None]) -> Any:
        """Cache what the texts of ``before`` and ``others`` have in common, and keep it until ``unpin``; None for nothing kept."""
        ...

    async def unpin(self, pin: Any) -> None: ...

    async def end(self, program: Program) -> None:
        """A program is over: what only it used will not be needed any more."""
        ...


class Plain:
    """The parts of a backend that has no cache to speak of."""

    async def pin(self, before: Piece | None, others: Sequence[Piece | None]) -> Any:
        return None

    async def unpin(self, pin: Any) -> None:
        return None

    async def end(self, program: Program) -> None:
        return None

    async def score(self, before: Piece | None, choices: Sequence[str], program: Program, *, unconditional: bool) -> list[Score]:
        raise RequestError(f"select needs the logprobs of prompts, which {type(self).__name__} cannot get.")


def as_backend(value: Any) -> Backend:
    """Return a backend as it is, and make one of an ``Engine`` or of the URL of a radixrt server."""
    if isinstance(value, Backend):
        return value
    if isinstance(value, str):
        from radixlang.backends.http import HttpBackend

        return HttpBackend(value)
    if hasattr(value, "async_generate"):
        from radixlang.backends.engine import EngineBackend

        return EngineBackend(value)
    raise TypeError(f"a backend, an Engine or a URL is needed, not {type(value).__name__}")
