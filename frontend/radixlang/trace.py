"""Running a program on marks in place of arguments: what it says always, and what it would ask for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from radixlang.backends.base import Backend, Plain, Program, Request
from radixlang.errors import ProgramError
from radixlang.expr import Concat, Expr
from radixlang.piece import Answer, Piece, walk
from radixlang.run import Halt, Run
from radixlang.select import Score
from radixlang.state import State

if TYPE_CHECKING:
    from radixlang.program import Function

# Around the name of an argument.  The letter before it differs between two readings of one trace: what both readings have in
# common, as text or as tokens, is what the program says whatever its arguments are.
_BEGIN, _END = "\ue000", "\ue001"
_LETTERS = ("0", "x")
_MARK = re.compile(f"{_LETTERS[0]}{_BEGIN}([^{_END}]*){_END}")


class _Stop(Exception):
    """The trace has seen enough."""


class Argument(Expr):
    """An argument whose value is not known.  It can be appended and formatted; looking into it ends the trace."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"{_LETTERS[0]}{_BEGIN}{self._name}{_END}"

    def __format__(self, spec: str) -> str:
        return str(self)

    def __add__(self, other: Any) -> Any:
        return str(self) + other if isinstance(other, str) else Concat((str(self), other))

    def __radd__(self, other: Any) -> Any:
        return other + str(self) if isinstance(other, str) else Concat((other, str(self)))

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        raise _Stop(f"the value of {self._name} decides how the program goes on")

    __bool__ = __len__ = __iter__ = __getitem__ = __int__ = __float__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _unknown
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._unknown()


class _TraceBackend(Plain):
    """Answers with marks."""

    async def generate(self, request: Request) -> list[Answer]:
        name = request.piece.name if request.piece is not None else None
        return [Answer(str(Argument(name or "gen"))) for _ in range(request.sampling.n or 1)]

    async def score(self, before: Piece | None, choices: Sequence[str], program: Program, *, unconditional: bool) -> list[Score]:
        return [Score(choice, (i,), (0.0,), (0.0,)) for i, choice in enumerate(choices)]


@dataclass(slots=True)
class Trace:
    """What a program says: the states it makes, parents before children.  ``stopped``: why the trace is not complete, if so."""

    name: str
    states: list[State] = field(default_factory=list)
    stopped: str | None = None

    @property
    def prefix(self) -> str:
        """What the program says before the first argument and before anything is generated."""
        pieces = takewhile(lambda piece: piece.kind not in ("gen", "select"), walk(self.states[0]._last))
        text = "".join(f"{piece.role}: " if piece.kind == "begin" else "\n" if piece.kind == "end" else piece.text for piece in pieces)
        return _MARK.split(text, maxsplit=1)[0]

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of what is generated, in all states."""
        names = [piece.name for state in self.states for piece in walk(state._last, state._first) if piece.name is not None]
        return tuple(dict.fromkeys(names))

    def children(self, state: State) -> list[State]:
        """The forks of a state."""
        return [other for other in self.states if other._path[:-1] == state._path and other is not state]

    def __str__(self) -> str:
        return "\n".join(self._lines(self.states[0], ""))

    def _lines(self, state: State, indent: str) -> Iterator[str]:
        for piece in walk(state._last, state._first):
            if piece.kind in ("gen", "select"):
                yield f"{indent}{piece.kind}({piece.name!r})"
            elif piece.kind == "text":
                yield f"{indent}{readable(piece.text)!r}"
            else:
                yield f"{indent}{piece.kind} {piece.role or ''}".rstrip()
        for child in self.children(state):
            yield f"{indent}fork {child._path[-1]}:"
            yield from self._lines(child, indent + "    ")

    def to_html(self) -> str:
        """Return a page that shows the program's text, its holes, and the tree of forks."""
        from radixlang.html import trace_page

        return trace_page(self)


def readable(text: str) -> str:
    """Return a text with marks shown as ``{name}``."""
    return _MARK.sub(lambda mark: "{" + mark[1] + "}", text)


def marks(text: str) -> list[str]:
    """Split a text into what is constant, at even places, and names of arguments, at odd ones."""
    return _MARK.split(text)


def _play(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], *, halt: bool) -> Trace:
    names = function.parameters[len(args) :]
    given = {**{name: Argument(name) for name in names if name not in function.bound}, **kwargs}
    result = Trace(function.body.__name__)
    run = Run(_TraceBackend(), Program(function.body.__name__), on_state=result.states.append, halts=halt)
    state = State(run)
    try:
        played = function.plays(state, *args, **given)
        if function.is_async:
            try:
                played.send(None)  # up to the first thing it would have to wait for
            except StopIteration:
                pass
            else:
                played.close()
                raise _Stop("an async program is traced up to the first thing it waits for")
        state.sync()
    except (_Stop, Halt) as stop:
        result.stopped = str(stop)
    except (ProgramError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A mark is no real value, and whatever the body makes of one may raise.
        result.stopped = f"{type(error).__name__}: {error}"
    return result


def trace(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Trace:
    """Run a program on marks, without a model."""
    return _play(function, args, kwargs, halt=False)


async def constant_prefix(function: Function, backend: Backend, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Cache and pin what a program says before its first unknown argument; the body is run up to its first generation."""
    last = (await asyncio.to_thread(_play, function, args, kwargs, halt=True)).states[0]._last
    return await backend.pin(last, [_read_otherwise(last)])


def _read_otherwise(last: Piece | None) -> Piece | None:
    """Return a copy of a state with the other letter at every mark."""
    copied: Piece | None = None
    for piece in walk(last):
        text = piece.text.replace(_LETTERS[0] + _BEGIN, _LETTERS[1] + _BEGIN)
        copied = Piece(copied, piece.kind, text, role=piece.role, name=piece.name)
    return copied
