"""The embedded engine: ``Engine`` computes in this process, with no children, and answers in SGLang's shape.

Blocking calls may come from any thread and coroutines from any event loop, a notebook's included: the work is done on a
private event loop in a thread of its own, and in the thread of the core.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, TypeVar, Unpack

import msgspec

import radixrt
from radixrt.config import EngineConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.cache_calls import PinReceipt
from radixrt.engine.calls import Answers, Call, NativeDict, Options, Prompts, Samplings
from radixrt.engine.client import CoreClient
from radixrt.engine.native import parse_sampling
from radixrt.engine.turn import MessageReader, Turn, read_tools
from radixrt.errors import EngineStopped, RequestError
from radixrt.text.tokenizer import Tokenizer
from radixrt.types import EngineStats, Namespace, SamplingParams

T = TypeVar("T")


class Engine:
    """A language model in this process.

    Options are the names of the command line's flags (``model_path``, ``max_total_tokens``, …); or give one ``config``.
    The model is loaded when the constructor returns.  A context manager; closed at the latest when the interpreter
    exits.  ``client`` and ``tokenizer`` replace what would be made from the config.  Raises ConfigError.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        client: CoreClient | None = None,
        tokenizer: Tokenizer | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise TypeError("give a config or options, not both")
        self._engine = AsyncEngine(config or EngineConfig.of(**options), in_process=True, client=client, tokenizer=tokenizer)
        self._thread = _LoopThread()
        self._finalizer = weakref.finalize(self, _close, self._thread, self._engine)
        # Earlier than atexit does, which is only after the executors that a step needs were shut down.
        getattr(threading, "_register_atexit", atexit.register)(self._finalizer)
        try:
            self._thread.run(self._engine.start())
        except BaseException:
            self._finalizer()
            raise

    def generate(
        self, prompt: Prompts = None, sampling_params: Samplings = None, *, stream: bool = False, **options: Unpack[Options]
    ) -> Any:
        """Answer a prompt or a list of prompts, as text here or as token ids in ``input_ids``.

        Returns ``{"text", "output_ids", "meta_info"}``; a list of these for a list of prompts or ``n`` > 1; with
        ``stream`` an iterator of them, each with all of the text so far and, when there are several answers, "index".
        Raises RequestError when one of the prompts is refused; the others are aborted then.
        """
        call = Call.of(prompt, sampling_params, **options)
        return self._iterate(call) if stream else self._thread.run(call.answers(self._engine))

    async def async_generate(
        self, prompt: Prompts = None, sampling_params: Samplings = None, *, stream: bool = False, **options: Unpack[Options]
    ) -> Any:
        """As ``generate``, awaited on any event loop; with ``stream`` the result is an asynchronous iterator."""
        call = Call.of(prompt, sampling_params, **options)
        return self._iterate_async(call) if stream else await self._thread.wait(call.answers(self._engine))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Samplings = None,
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        **options: Unpack[Options],
    ) -> Any:
        """Answer a conversation, rendered by the model's chat template; otherwise as ``generate``.

        ``tools``, ``tool_choice`` and ``parallel_tool_calls`` are OpenAI's.  Each answer has a "message" too, in OpenAI's
        shape: content, reasoning_content and tool_calls.
        """
        if not isinstance(sampling_params, SamplingParams | Mapping | None):
            raise RequestError("A chat has one set of sampling parameters.", param="sampling_params", code="invalid_type")
        formats, sampling = self._engine.formats, parse_sampling(sampling_params)
        use = read_tools(formats, tools, tool_choice, parallel_tool_calls, sampling)
        prompt = self.encode_chat(
            messages, tools=use.tools or None, template_kwargs=template_kwargs, continue_final_message=continue_final_message
        )
        turn = Turn.of(formats, use, sampling, prompt)
        reader = MessageReader(turn)
        options["input_ids"] = prompt
        answers = self.generate(None, turn.sampling, stream=stream, **options)
        if stream:
            return (_with_message(reader, answer.get("index", 0), answer) for answer in answers)
        if isinstance(answers, list):
            return [_with_message(reader, index, answer) for index, answer in enumerate(answers)]
        return _with_message(reader, 0, answers)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text, with those the model wants around one unless told otherwise."""
        return self._engine.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of a conversation, rendered by the model's chat template.

        ``continue_final_message`` ends inside the last message, which is the assistant's.  Raises RequestError.
        """
        if not all(isinstance(message, Mapping) for message in messages):
            raise RequestError("messages must be a list of dicts.", param="messages", code="invalid_type")
        return self._engine.chat.encode(
            [dict(message) for message in messages], add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message, tools=tools, template_kwargs=template_kwargs,
        )

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        return self._engine.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def abort(self, rid: str) -> bool:
        """Abort the request of exactly this name; its caller gets what there is.  False when there is none."""
        return self._thread.run(self._engine.abort(rid))

    def abort_all(self) -> int:
        """Abort every request; returns how many."""
        return self._thread.run(self._engine.abort_all())

    def pin(
        self, prompt: str | Sequence[int], *, ttl: float | None = None, name: str | None = None, cache_salt: str = "", extra_key: str = ""
    ) -> PinReceipt:
        """Keep a prefix, text or token ids, cached until ``ttl`` seconds after its last use; computes what is not cached yet.

        ``name`` replaces what it named, in the same namespace, before.  Raises RequestError for more than pins may hold.
        """
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._thread.run(self._engine.cache.pin(tokens, ttl=ttl, name=name, namespace=Namespace("", cache_salt, extra_key)))

    def unpin(self, pin_id: str) -> bool:
        """End a pin; False when there is none of that id."""
        return self._thread.run(self._engine.cache.unpin(pin_id))

    def explain(self, prompt: str | Sequence[int], *, cache_salt: str = "", extra_key: str = "") -> dict[str, Any]:
        """Say how much of a prompt is cached and where it leaves the nearest cached sequence, without running it."""
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._thread.run(self._engine.cache.explain(tokens, namespace=Namespace("", cache_salt, extra_key)))

    def cache_tree(self, *, depth: int = 3, min_tokens: int = 1, limit: int = 100) -> dict[str, Any]:
        """Return the upper levels of the radix tree, largest subtrees first."""
        return self._thread.run(self._engine.cache.tree(depth=depth, min_tokens=min_tokens, limit=limit))

    def open_session(self, session_id: str | None = None, *, timeout: float | None = None) -> str:
        """Open a session, to be named in ``session_params``, and return its id."""
        return self._thread.run(self._engine.open_session(session_id, timeout=timeout))

    def close_session(self, session_id: str) -> None:
        """End a session; what it alone put into the cache is dropped."""
        self._thread.run(self._engine.close_session(session_id))

    def flush_cache(self) -> bool:
        """Empty the KV cache; False, with nothing done, while requests are running."""
        return self._thread.run(self._engine.flush_cache())

    @property
    def stats(self) -> EngineStats:
        """The last snapshot of the core."""
        return self._engine.stats

    def get_server_info(self) -> dict[str, Any]:
        """Return version, configuration, model and a snapshot of the core as plain values."""
        engine = self._engine
        return {
            "version": radixrt.__version__,
            "status": engine.status,
            **asdict(engine.resolved),
            "model_info": msgspec.to_builtins(engine.info),
            "stats": msgspec.to_builtins(engine.stats),
        }

    def close(self) -> None:
        """Abort what runs and free the model; idempotent."""
        self._finalizer()

    shutdown = close

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _iterate(self, call: Call) -> Iterator[NativeDict]:
        events = call.events(self._engine)
        try:
            while (event := self._thread.run(_next(events))) is not None:
                yield event
        finally:
            # Not awaited: a forgotten iterator may be collected on the very thread that would have to do it.
            self._thread.spawn(events.aclose())

    async def _iterate_async(self, call: Call) -> AsyncIterator[NativeDict]:
        events = call.events(self._engine)
        try:
            while (event := await self._thread.wait(_next(events))) is not None:
                yield event
        finally:
            self._thread.spawn(events.aclose())


def _with_message(reader: MessageReader, index: int, answer: NativeDict) -> NativeDict:
    ended = answer["meta_info"]["finish_reason"] is not None
    return {**answer, "message": reader.read(index, answer["text"], end=ended)}


async def _next(events: Answers) -> NativeDict | None:
    return await anext(events, None)


class _LoopThread:
    """An event loop that runs in a thread of its own until it is stopped."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="radixrt-engine", daemon=True)
        self._thread.start()

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child, where the thread does not exist."""
        return os.getpid() != self._pid

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop; the future of a stopped loop has EngineStopped."""
        reason = "The engine is closed."
        if self.is_forked:
            reason = f"The engine lives in process {self._pid}, from which this one was forked; make one here."
        else:
            with self._lock:
                if not self._stopped:
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        refused: concurrent.futures.Future[T] = concurrent.futures.Future()
        refused.set_exception(EngineStopped(reason))
        return refused

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; it is cancelled when the wait is interrupted."""
        if self.is_current:
            coroutine.close()
            raise RuntimeError("a blocking call on the engine's own event loop would wait for ever")
        future = self.spawn(coroutine)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineStopped("The engine was closed.") from None
        except BaseException:
            future.cancel()
            raise

    async def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await it from another; it is cancelled with the awaiting task."""
        return await asyncio.wrap_future(self.spawn(coroutine))

    def stop(self) -> None:
        """Cancel what is left and end the thread; idempotent."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _close(thread: _LoopThread, engine: AsyncEngine) -> None:
    if thread.is_forked:
        return
    if thread.is_current:
        # Collected on the loop's own thread, which cannot wait for itself.
        thread.spawn(engine.close()).add_done_callback(lambda _: thread.stop())
        return
    thread.spawn(engine.close()).exception()
    thread.stop()
