"""The state of a running program: what text there is, what is still being written, and the variables in it.

Appending never waits.  A generation starts as soon as everything before it in its own state is known, whatever goes on in
other states; reading a variable waits for that variable only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from radixlang import loop
from radixlang.backends.base import Request
from radixlang.errors import ProgramError, Site, refuse
from radixlang.expr import Call, Concat, Gen, Role, RoleBegin, RoleEnd, Select, image
from radixlang.feed import Feed
from radixlang.forks import Forks
from radixlang.kept import Kept
from radixlang.piece import Answer, Future, Message, Piece, Turn, messages_of, text_of
from radixlang.run import Halt, Run, Usage, Variable, then

T = TypeVar("T")


class State:
    """A prompt that grows: ``s += text``, ``s += gen("name")``; ``s["name"]`` reads a variable."""

    def __init__(self, run: Run, last: Piece | None = None, *, parent: State | None = None, index: int = 0) -> None:
        self._run = run
        self._last = last
        self._first = last
        self._path: tuple[int, ...] = () if parent is None else (*parent._path, index)
        self._variables: dict[str, Variable] = {} if parent is None else dict(parent._variables)
        self._own: list[str] = []
        self._num_gens = 0
        self._num_forks = 0
        self._pieces: Feed[Piece] = Feed()
        self._failure: BaseException | None = None
        self.ret_value: Any = None
        if run.on_state is not None:
            run.on_state(self)

    # Appending

    def __iadd__(self, other: Any) -> State:
        match other:
            case str():
                if other:
                    self._append(Piece(self._last, "text", other, role=self._role))
            case bool() | int() | float():
                self._append(Piece(self._last, "text", str(other), role=self._role))
            case Concat(parts):
                for part in parts:
                    self += part
            case Role(role, expr):
                with self._message(role):
                    self += expr
            case RoleBegin(role):
                self._begin(role)
            case RoleEnd(role):
                self._end(role)
            case Gen():
                self._generate(other)
            case Select():
                self._select(other)
            case Call(body, args, kwargs):
                if inspect.iscoroutinefunction(body):
                    raise refuse(f"{body.__name__} is an async program: await {body.__name__}(s, ...).")
                body(self, *args, **kwargs)
            case _:
                raise refuse(f"A state takes text and expressions, not {type(other).__name__}.")
        return self

    def _check(self, piece: Piece) -> None:
        if piece.kind not in ("begin", "end") and piece.chat and piece.role is None:
            raise refuse("Text outside a message: once a program has used roles, all its text belongs to one.")

    def _append(self, piece: Piece) -> Piece:
        self._check(piece)
        if piece.turn is not None:
            piece.turn.pieces.append(piece)
        self._last = piece
        self._pieces.push(piece)
        return piece

    @property
    def _role(self) -> str | None:
        return None if self._last is None else self._last.role

    def _begin(self, role: str) -> None:
        if self._role is not None:
            raise refuse(f"A message of the {role} inside a message of the {self._role}.")
        if self._last is not None and not self._last.chat:
            raise refuse("A message behind text outside of any: a program either uses roles for all its text or for none.")
        piece = Piece(self._last, "begin", role=role)
        piece.turn = Turn()
        self._append(piece)

    def _end(self, role: str) -> None:
        if self._role != role:
            raise refuse(f"The end of a message of the {role} that was not begun.")
        assert self._last is not None
        turn = self._last.turn
        self._append(Piece(self._last, "end"))
        if turn is not None:
            turn.close()

    @contextmanager
    def _message(self, role: str) -> Iterator[State]:
        self._begin(role)
        yield self
        self._end(role)

    def _say(self, role: str, expr: Any) -> AbstractContextManager[State] | None:
        if expr is None:
            return self._message(role)
        self += Role(role, expr)
        return None

    def system(self, expr: Any = None) -> Any:
        """Append a message of the system; without ``expr`` a context manager around what is appended to it."""
        return self._say("system", expr)

    def user(self, expr: Any = None) -> Any:
        """Append a message of the user; without ``expr`` a context manager around what is appended to it."""
        return self._say("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        """Append a message of the assistant; without ``expr`` a context manager around what is appended to it."""
        return self._say("assistant", expr)

    def image(self, path: Any) -> None:
        """Refused: the models that radixrt serves read text only."""
        image(path)

    # Writing

    def _spawn(self, piece: Piece, work: Any, name: str | None, convert: Callable[[list[Answer]], Any]) -> None:
        """Append a piece whose text ``work`` brings; its variable is what ``convert`` makes of the answers."""
        before, site = piece.before, piece.site
        assert site is not None
        self._check(piece)
        if self._run.halts:
            raise Halt(f"{piece.kind}({piece.name!r})")

        async def write() -> None:
            try:
                if before is not None:
                    await before.settled()
                piece.answers = await work()
                piece.text = piece.answers[0].text
                piece.state = piece.answers[0].state
                self._run.pieces.append(piece)
            except ProgramError:
                raise
            except Exception as error:
                raise ProgramError.of(error, site) from error
            finally:
                if piece.feed is not None:
                    piece.feed.close()

        if self._run.streams:
            piece.feed = Feed()
        piece.pending = loop.spawn(write())
        self._run.tasks.add(piece.pending)
        piece.pending.add_done_callback(self._run.tasks.discard)
        self._append(piece)
        if name is not None:
            self._set(name, Variable(then(piece.pending, lambda: convert(piece.answers), site), piece))

    def _generate(self, gen: Gen) -> None:
        if self._role not in (None, "assistant"):
            raise refuse(f"gen inside a message of the {self._role}: the model writes those of the assistant.")
        before, run = self._last, self._run
        sampling = gen.sampling.over(run.defaults)
        if gen.sampling.seed is None and sampling.seed is not None:
            # Siblings are to differ, and every run of the program to be the same.
            place = repr((sampling.seed, self._path, self._num_gens)).encode()
            sampling = dataclasses.replace(sampling, seed=int.from_bytes(hashlib.blake2b(place, digest_size=7).digest(), "big"))
        self._num_gens += 1
        piece = Piece(before, "gen", role=self._role, name=gen.name)
        piece.site = gen.site
        piece.sampling = sampling

        async def work() -> list[Answer]:
            feed = piece.feed
            return await run.backend.generate(Request(before, sampling, run.program, piece, None if feed is None else feed.push))

        def convert(answers: list[Answer]) -> Any:
            values = [gen.convert(_split(answer.text, gen.reasoning)[1]) for answer in answers]
            return values if (sampling.n or 1) > 1 else values[0]

        self._spawn(piece, work, gen.name, convert)
        if gen.reasoning is not None and gen.name is not None:
            assert piece.pending is not None
            value = then(piece.pending, lambda: _split(piece.text, gen.reasoning)[0], gen.site)
            self._set(f"{gen.name}_reasoning_content", Variable(value, piece))

    def _select(self, choice: Select) -> None:
        if self._role not in (None, "assistant"):
            raise refuse(f"select inside a message of the {self._role}: the model writes those of the assistant.")
        before, run, method = self._last, self._run, choice.method
        piece = Piece(before, "select", role=self._role, name=choice.name)
        piece.site = choice.site

        async def work() -> list[Answer]:
            scores = await run.backend.score(before, choice.choices, run.program, unconditional=method.unconditional)
            best = method.decide(scores)
            text = choice.choices[best]
            if piece.feed is not None:
                piece.feed.push(text)
            return [Answer(text, meta={"choices": [dataclasses.asdict(score) for score in scores], "choices_method": method.name})]

        self._spawn(piece, work, choice.name, lambda answers: answers[0].text)

    # Reading

    def _set(self, name: str, variable: Variable) -> None:
        self._variables[name] = variable
        self._own.append(name)

    def _find(self, name: str) -> Variable:
        if self._last is not None and self._last.turn is not None:
            self._last.turn.close()  # whoever reads before the message is complete, waits for what there is of it
        try:
            return self._variables[name]
        except KeyError:
            if self._failure is not None:
                raise self._failure from None
            known = ", ".join(self._variables) or "none"
            raise refuse(f"There is no variable {name!r} (known: {known}).") from None

    def __getitem__(self, name: str) -> Any:
        """Wait for a variable and return its value.  Raises ProgramError when it could not be written."""
        return self._wait(self._find(name).value)

    async def get(self, name: str) -> Any:
        """As ``s[name]``, awaited."""
        return await asyncio.wrap_future(self._find(name).value)

    get_var = __getitem__

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def __setitem__(self, name: str, value: Any) -> None:
        self._set(name, Variable(loop.resolved(value)))

    set_var = __setitem__

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(self._variables)

    def get_meta_info(self, name: str) -> Any:
        """Return what the backend tells about a variable: token counts, finish reason, logprobs; a list when ``n`` > 1."""
        variable = self._find(name)
        if variable.piece is None:
            raise refuse(f"{name!r} was not written by the model.")
        assert variable.piece.pending is not None
        self._wait(variable.piece.pending)
        metas = [answer.meta for answer in variable.piece.answers]
        return metas if len(metas) > 1 else metas[0]

    def fail(self, error: BaseException) -> None:
        """Take in that the body of the program raised."""
        self._failure = error
        self.end()

    def _wait(self, future: Future[T]) -> T:
        try:
            return loop.wait(future)
        except concurrent.futures.CancelledError:
            raise self._failure or refuse("The program was stopped before this was written.") from None

    def _settle(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._last is not None and self._last.pending is not None:
            if self._last.turn is not None:
                self._last.turn.close()
            self._wait(self._last.pending)

    def text(self) -> str:
        """Wait for everything in this state and return its text; a message begins with its role there."""
        self._settle()
        return text_of(self._last)

    def messages(self) -> list[Message]:
        """Wait for everything in this state and return its messages."""
        self._settle()
        return messages_of(self._last)

    def sync(self) -> State:
        """Wait for everything in this state.  Raises ProgramError when some of it could not be written."""
        self._settle()
        return self

    def error(self) -> BaseException | None:
        """Wait for everything in this state and return what went wrong, or None."""
        if self._failure is None:
            try:
                self._settle()
            except ProgramError as error:
                return error
        return self._failure

    async def settled(self) -> State:
        """As ``sync``, awaited."""
        if self._last is not None:
            if self._last.turn is not None:
                self._last.turn.close()
            await self._last.settled()
        return self

    def usage(self) -> Usage:
        """Return the tokens of everything this run of the program has finished, its forks included."""
        return self._run.usage()

    def to_html(self) -> str:
        """Return a page that shows every token of this run, where it came from, and the tree of forks."""
        from radixlang.html import run_page

        return loop.run(run_page(self._run))

    # Streaming

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """Yield the text of a variable, or of the whole state, as it is written; for programs run with ``stream=True``."""
        for piece in self._pieces:
            if name in (None, piece.name):
                yield from self._following(piece)
                if name is not None:
                    return
        if name is not None:
            raise refuse(f"There is no variable {name!r}.")
        self._settle()

    def _following(self, piece: Piece) -> Iterator[str]:
        """Yield the text of a piece as it is written; raises what it fails with."""
        if piece.feed is not None:
            yield from piece.feed
        if piece.pending is not None and piece.kind in ("gen", "select", "join"):
            self._wait(piece.pending)
        if piece.feed is None:
            yield _shown(piece)

    async def text_async_iter(self, name: str | None = None) -> AsyncIterator[str]:
        """As ``text_iter``, asynchronously."""
        async for piece in self._pieces:
            if name is None or piece.name == name:
                if piece.feed is not None:
                    async for text in piece.feed:
                        yield text
                if piece.pending is not None and piece.kind in ("gen", "select", "join"):
                    await asyncio.wrap_future(piece.pending)
                if piece.feed is None:
                    yield _shown(piece)
                if name is not None:
                    return
        if name is not None:
            raise refuse(f"There is no variable {name!r}.")

    def end(self) -> None:
        """Nothing more will be appended; idempotent."""
        self._pieces.close()

    def kept(self) -> Kept:
        """Return a context manager that keeps this state's text cached, and computes what of it is not, while a tool works."""
        return Kept(self._run.backend, self._last)

    # Structure

    def fork(self, n: int = 1) -> Forks:
        """Return ``n`` states that go on from here, each by itself."""
        if n < 1:
            raise refuse(f"fork needs at least one branch, got {n}.")
        if self._last is not None:
            self._last.shared = True
        self._num_forks += n
        first = self._num_forks - n
        return Forks(self, [State(self._run, self._last, parent=self, index=first + i) for i in range(n)])

    def copy(self) -> State:
        """Return another state that goes on from here."""
        return self.fork(1)[0]

    @contextmanager
    def var_scope(self, name: str) -> Iterator[State]:
        """Keep the text that is appended meanwhile as a variable."""
        first, site = self._last, Site.here()
        yield self
        last = self._last
        pending = None if last is None else last.pending
        value = loop.resolved(text_of(last, first)) if pending is None else then(pending, lambda: text_of(last, first), site)
        self._set(name, Variable(value))


def _shown(piece: Piece) -> str:
    if piece.kind == "begin":
        return f"{piece.role}: "
    return "\n" if piece.kind == "end" else piece.text


def _split(text: str, marks: tuple[str, str] | None) -> tuple[str, str]:
    """Return reasoning and content of a text."""
    if marks is None:
        return "", text
    begin, end = marks
    reasoning, found, content = text.removeprefix(begin).partition(end)
    return (reasoning.strip(), content.lstrip()) if found else ("", text)
