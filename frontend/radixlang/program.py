"""``@function``: programs, and the ways to run them: once, as a stream, over a batch, or to be looked at."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from radixlang import loop
from radixlang.backends.base import Backend, Program, as_backend
from radixlang.expr import Call
from radixlang.options import ALIASES, NAMES, make_sampling
from radixlang.run import Run
from radixlang.state import State
from radixlang.trace import Trace, constant_prefix, trace

Body = Callable[..., Any]

_default: Backend | None = None


def set_default_backend(backend: Any) -> None:
    """Run programs that name no backend on this one: a backend, an ``Engine``, or the URL of a radixrt server."""
    global _default
    _default = as_backend(backend)


def default_backend() -> Backend:
    """Return the default backend; the first call makes an engine with the default model if none was set."""
    global _default
    if _default is None:
        from radixlang.backends.engine import EngineBackend

        _default = EngineBackend()
    return _default


class Function:
    """A program: a function whose first parameter is the state it appends to."""

    def __init__(
        self, body: Body, *, num_api_spec_tokens: int | None = None, ephemeral: bool = False, bound: Mapping[str, Any] | None = None
    ) -> None:
        parameters = list(inspect.signature(body).parameters)
        if not parameters:
            raise TypeError(f"{body.__name__} takes no state: its first parameter must be one")
        self.body = body
        self.parameters = parameters[1:]
        self._options: dict[str, Any] = {"num_api_spec_tokens": num_api_spec_tokens, "ephemeral": ephemeral}
        self.bound = dict(bound or {})
        self.plays: Callable[..., Any] = functools.partial(body, **self.bound)
        functools.update_wrapper(self, body)

    @property
    def is_async(self) -> bool:
        """Whether the program is an ``async def``."""
        return inspect.iscoroutinefunction(self.body)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Go on with the program of the state given first; without one, return an expression to append to a state."""
        if args and isinstance(args[0], State):
            return self.plays(*args, **kwargs)
        return Call(self.plays, args, kwargs)

    def bind(self, **kwargs: Any) -> Function:
        """Return the program with some arguments given."""
        return Function(self.body, bound={**self.bound, **kwargs}, **self._options)

    def run(self, *args: Any, backend: Any = None, stream: bool = False, parent: State | None = None, **kwargs: Any) -> State:
        """Run the program and return its state.

        Keywords that the program does not take are defaults for its generations (``temperature=0``, ``max_tokens=32``, …).
        With ``stream`` the state is returned at once, to be read with ``text_iter``; otherwise everything in it is settled, and
        ProgramError raised if some of it could not be written.  ``parent``: the state of the program that this one is a part of.
        """
        state, arguments = self._state(backend, kwargs, parent=parent, streams=stream)
        if stream:
            loop.spawn(self._background(state, args, arguments))
            return state
        if self.is_async:
            return loop.run(self._play(state, args, arguments, _pool()))
        try:
            state.ret_value = self.plays(state, *args, **arguments)
            return state.sync()
        except BaseException:
            state._run.cancel()
            raise
        finally:
            state.end()
            loop.spawn(state._run.backend.end(state._run.program))

    async def arun(self, *args: Any, backend: Any = None, stream: bool = False, parent: State | None = None, **kwargs: Any) -> State:
        """As ``run``, awaited on any event loop."""
        state, arguments = self._state(backend, kwargs, parent=parent, streams=stream)
        if stream:
            loop.spawn(self._background(state, args, arguments))
            return state
        return await asyncio.wrap_future(loop.spawn(self._play(state, args, arguments, _pool())))

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        precache: bool = True,
        **defaults: Any,
    ) -> Any:
        """Run the program once for each mapping of arguments and return the states in that order.

        At most ``num_threads`` run at once.  A run that fails says so in ``state.error()`` and when it is read, and ends no
        other.  ``precache``: what the program says before the first of its arguments is cached first, and pinned until the
        batch is over.  ``generator_style``: yield the states in order as soon as they are there.
        """
        if not all(isinstance(arguments, Mapping) for arguments in batch):
            raise TypeError("run_batch takes mappings from parameter to argument")
        used = as_backend(backend) if backend is not None else default_backend()
        limit = max(96, 16 * (os.cpu_count() or 1)) if num_threads == "auto" else int(num_threads)
        states = [self._state(used, {**defaults, **arguments}) for arguments in batch]
        results = _Results(states, self, limit, precache=precache and len(batch) > 1, defaults=defaults)
        iterator = results.ordered(progress_bar=progress_bar)
        return iterator if generator_style else list(iterator)

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """Run the program without a model, on marks in place of arguments that are not given, and return what it would say."""
        return trace(self, args, kwargs)

    def cache(self, *args: Any, backend: Any = None, **kwargs: Any) -> Any:
        """Cache and pin what the program says before the first of its arguments that is not given; returns the pin, or None."""
        used = as_backend(backend) if backend is not None else default_backend()
        return loop.run(constant_prefix(self, used, args, kwargs))

    def _state(
        self, backend: Any, kwargs: Mapping[str, Any], *, parent: State | None = None, streams: bool = False
    ) -> tuple[State, dict[str, Any]]:
        """Return a new state, and the keywords that are the program's."""
        used = as_backend(backend) if backend is not None else parent._run.backend if parent is not None else default_backend()
        names = (set(NAMES) | set(ALIASES)) - set(self.parameters)
        defaults = make_sampling(**{name: value for name, value in kwargs.items() if name in names})
        arguments = {name: value for name, value in kwargs.items() if name not in names}
        program = Program(self.body.__name__, parent._run.program if parent is not None else None, **self._options)
        return State(Run(used, program, defaults, streams)), arguments

    async def _play(self, state: State, args: Sequence[Any], kwargs: Mapping[str, Any], pool: concurrent.futures.Executor) -> State:
        """Run the body, on the loop or in a thread, and wait for all it started in its own state."""
        call = functools.partial(self.plays, state, *args, **kwargs)
        try:
            state.ret_value = await call() if self.is_async else await asyncio.get_running_loop().run_in_executor(pool, call)
            return await state.settled()
        except BaseException as error:
            state.fail(error)
            state._run.cancel()
            raise
        finally:
            state.end()
            await state._run.backend.end(state._run.program)

    async def _background(self, state: State, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):  # the state tells its readers
            await self._play(state, args, kwargs, _pool())


class _Results:
    """A batch that runs."""

    def __init__(
        self, states: list[tuple[State, dict[str, Any]]], function: Function, limit: int, *, precache: bool, defaults: Mapping[str, Any]
    ) -> None:
        self._states = states
        self._function = function
        self._slots = asyncio.Semaphore(limit)
        self._pool = concurrent.futures.ThreadPoolExecutor(min(limit, len(states) or 1), thread_name_prefix="radixlang-body")
        self._precache = precache
        self._defaults = {name: value for name, value in defaults.items() if name in function.parameters}
        self._pin: Any = None

    def ordered(self, *, progress_bar: bool) -> Iterator[State]:
        tasks: list[concurrent.futures.Future[None]] = []
        try:
            if self._precache:
                backend = self._states[0][0]._run.backend
                self._pin = loop.run(constant_prefix(self._function, backend, (), self._defaults))
            tasks = [loop.spawn(self._one(state, kwargs)) for state, kwargs in self._states]
            waiting: Iterator[Any] = zip(self._states, tasks, strict=True)
            if progress_bar:
                from rich.progress import track

                waiting = iter(track(list(waiting), description=self._function.body.__name__))
            for (state, _), task in waiting:
                task.result()
                yield state
        finally:
            for task in tasks:
                task.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)
            if self._pin is not None:
                loop.run(self._states[0][0]._run.backend.unpin(self._pin))

    async def _one(self, state: State, kwargs: Mapping[str, Any]) -> None:
        async with self._slots:
            with contextlib.suppress(Exception):  # the state tells its readers
                await self._function._play(state, (), kwargs, self._pool)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """Threads for the bodies of programs that are run from an event loop, or as streams."""
    return concurrent.futures.ThreadPoolExecutor(64, thread_name_prefix="radixlang-body")


@overload
def function(body: Body) -> Function: ...
@overload
def function(body: None = None, *, num_api_spec_tokens: int | None = None, ephemeral: bool = False) -> Callable[[Body], Function]: ...
def function(
    body: Body | None = None, *, num_api_spec_tokens: int | None = None, ephemeral: bool = False
) -> Function | Callable[[Body], Function]:
    """Make a program of a function ``def f(s, …)`` or ``async def f(s, …)``, whose first parameter is its state.

    ``ephemeral``: what the model writes is dropped from the cache when the program is over; the text before it stays.
    ``num_api_spec_tokens``: where every request costs a round trip, ask for so many tokens more than the program does, and
    answer its next generations with them as far as they agree with what it says in between.
    """
    if body is None:
        return functools.partial(Function, num_api_spec_tokens=num_api_spec_tokens, ephemeral=ephemeral)
    return Function(body, num_api_spec_tokens=num_api_spec_tokens, ephemeral=ephemeral)
