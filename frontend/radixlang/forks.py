"""States that went on from the same place, and how they come together again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from radixlang import loop
from radixlang.errors import ProgramError, Site, refuse
from radixlang.expr import Expr
from radixlang.piece import Future, Piece, text_of
from radixlang.run import Variable

if TYPE_CHECKING:
    from radixlang.state import State


class Forks:
    """States that went on from the same place; indexed, iterated and appended to together."""

    def __init__(self, parent: State, states: list[State]) -> None:
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def __getitem__(self, i: int) -> State:
        return self._states[i]

    def __setitem__(self, i: int, state: State) -> None:
        # What Python asks for after ``forks[i] += x``.
        if state is not self._states[i]:
            raise refuse("The branches of a fork cannot be replaced.")

    def __iadd__(self, other: Any) -> Forks:
        """Append the same to every branch, the i-th of a list, or what a function of the index returns."""
        if isinstance(other, Sequence) and not isinstance(other, str):
            if len(other) != len(self):
                raise refuse(f"{len(other)} things for {len(self)} branches.")
            parts = list(other)
        else:
            parts = [other(i) if callable(other) and not isinstance(other, Expr) else other for i in range(len(self))]
        for i, part in enumerate(parts):
            self._states[i] += part
        return self

    def join(self, mode: str = "gather_variable", *, skip_failed: bool = False) -> None:
        """Bring the branches together; does not wait.

        mode: "gather_variable" makes each variable of the branches a list in the state they came from; "concatenate" (or
        "concate_and_append") appends their texts to it, one after the other.  A branch that failed makes that
        variable, or that text, fail; with ``skip_failed`` it is left out.
        """
        site = Site.here()
        for state in self._states:
            state.end()
        if mode == "gather_variable":
            names = list(dict.fromkeys(name for state in self._states for name in state._own))
            for name in names:
                values = [state._variables[name].value for state in self._states if name in state._variables]
                self._parent._set(name, Variable(loop.spawn(_gather(values, site, skip_failed=skip_failed))))
        elif mode in ("concatenate", "concate_and_append"):
            self._concatenate(site, skip_failed=skip_failed)
        else:
            raise refuse(f"join mode must be gather_variable or concatenate, got {mode!r}.")

    def _concatenate(self, site: Site, *, skip_failed: bool) -> None:
        parent = self._parent
        if any(state._role != parent._role for state in self._states):
            raise refuse("Branches that end inside a message cannot be concatenated.")
        before = parent._last
        piece = Piece(before, "join", role=parent._role)
        piece.chat = piece.chat or any(state._last is not None and state._last.chat for state in self._states)
        branches = [(state._first, state._last) for state in self._states]

        async def join() -> None:
            if before is not None:
                await before.settled()
            for first, last in branches:
                try:
                    if last is not None:
                        await last.settled()
                    piece.branches.append((first, last))
                except ProgramError as error:
                    if not skip_failed:
                        raise error
            piece.text = "".join(text_of(last, first) for first, last in piece.branches)

        piece.pending = loop.spawn(join())
        parent._last = piece
        parent._pieces.push(piece)


async def _gather(values: list[Future[Any]], site: Site, *, skip_failed: bool) -> list[Any]:
    results = await asyncio.gather(*map(asyncio.wrap_future, values), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not skip_failed:
            raise ProgramError.of(result, site)
    return [result for result in results if not isinstance(result, BaseException)]
