"""Calls of the embedded engine: what ``generate`` takes, spread over prompts, and its answers in SGLang's shape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import msgspec

from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.native import Collected, native_answer, parse_sampling
from radixrt.engine.sessions import SessionParams
from radixrt.engine.stream import RequestStream, failure
from radixrt.errors import RequestError
from radixrt.types import LogprobOptions, Namespace, RequestOutput, SamplingParams

T = TypeVar("T")
NativeDict = dict[str, Any]
Answers = AsyncGenerator[NativeDict, None]
Prompts = str | Sequence[str] | None
Samplings = SamplingParams | Mapping[str, Any] | Sequence[SamplingParams | Mapping[str, Any]] | None


class Options(TypedDict, total=False):
    """What a call may say besides prompts and sampling parameters; SGLang's names.

    input_ids: one prompt or a list of prompts as token ids.  rid: a name, or one a prompt.  return_logprob enables
    the other logprob options; logprob_start_len -1 reports outputs only.  cache_salt and extra_key: the cache is shared
    only between calls that agree in both.  session_params: how the prompt continues a session.  return_cache_report:
    ``meta_info["cache_report"]`` tells what the cache did.
    """

    input_ids: Sequence[int] | Sequence[Sequence[int]] | None
    rid: str | Sequence[str] | None
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: Sequence[int] | None
    return_text_in_logprobs: bool
    cache_salt: str
    extra_key: str
    priority: int
    routing_key: str
    session_params: SessionParams | Mapping[str, Any] | None
    return_cache_report: bool


@dataclass(frozen=True, slots=True)
class _Item:
    prompt: str | Sequence[int]
    param: str
    sampling: SamplingParams
    rid: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call, for one prompt or several.  ``single``: the caller gave a prompt, not a list of them."""

    items: list[_Item]
    single: bool
    logprobs: LogprobOptions | None
    text_in_logprobs: bool
    namespace: Namespace
    priority: int
    routing_key: str
    session: SessionParams | None
    want_report: bool

    @classmethod
    def of(
        cls,
        prompt: Prompts,
        sampling_params: Samplings,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        rid: str | Sequence[str] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        token_ids_logprob: Sequence[int] | None = None,
        return_text_in_logprobs: bool = False,
        cache_salt: str = "",
        extra_key: str = "",
        priority: int = 0,
        routing_key: str = "",
        session_params: SessionParams | Mapping[str, Any] | None = None,
        return_cache_report: bool = False,
    ) -> Call:
        """Check the forms of a call and spread them over its prompts.  Raises RequestError."""
        if (prompt is None) == (input_ids is None):
            raise RequestError("Give either a prompt or input_ids.", param="prompt", code="invalid_value")
        param = "prompt" if input_ids is None else "input_ids"
        given: Any = prompt if input_ids is None else input_ids
        if not isinstance(given, Iterable):
            raise RequestError(f"{param} must be one prompt or a list of them.", param=param, code="invalid_type")
        single = isinstance(given, str) or (input_ids is not None and not _is_nested(input_ids))
        prompts: list[Any] = [given] if single else list(given)
        samplings = _spread("sampling_params", sampling_params, len(prompts), one=(SamplingParams, Mapping, type(None)))
        if single and isinstance(rid, str | None):
            rids = [rid]
        else:
            rids = _spread("rid", rid if rid is not None else [None] * len(prompts), len(prompts), one=())
        logprobs = None
        if return_logprob:
            logprobs = LogprobOptions(start_len=logprob_start_len, top=top_logprobs_num, token_ids=tuple(token_ids_logprob or ()))
        return cls(
            items=[_Item(*parts) for parts in zip(prompts, [param] * len(prompts), map(parse_sampling, samplings), rids, strict=True)],
            single=single, logprobs=logprobs, text_in_logprobs=return_text_in_logprobs, namespace=Namespace("", cache_salt, extra_key),
            priority=priority, routing_key=routing_key, session=_session(session_params), want_report=return_cache_report,
        )

    async def answers(self, engine: AsyncEngine) -> NativeDict | list[NativeDict]:
        """Return all answers; one that failed raises its error, and the others are aborted."""
        groups = await _together([self._answer(engine, item) for item in self.items])
        answers = [answer for group in groups for answer in group]
        return answers[0] if self._is_one else answers

    async def events(self, engine: AsyncEngine) -> Answers:
        """Yield each answer as it grows, all of its text so far every time."""
        streams: list[RequestStream] = []
        try:
            for item in self.items:
                streams.append(await self._submit(engine, item))
            started = time.monotonic()
            firsts = [sum(item.sampling.n for item in self.items[:i]) for i in range(len(self.items))]
            collected: dict[int, Collected] = {}
            async for i, event in _merge(streams):
                index = firsts[i] + event.index
                answer = collected.setdefault(index, Collected(event.rid, event.index, started=started))
                answer.push(event)
                yield self._native(engine, answer) | ({} if self._is_one else {"index": index})
        finally:
            for stream in streams:
                await stream.aclose()

    @property
    def _is_one(self) -> bool:
        return self.single and self.items[0].sampling.n == 1

    async def _submit(self, engine: AsyncEngine, item: _Item) -> RequestStream:
        return await engine.submit(
            item.prompt, item.sampling, rid=item.rid, logprobs=self.logprobs, namespace=self.namespace, priority=self.priority,
            routing_key=self.routing_key, session=self.session, want_report=self.want_report, prompt_param=item.param,
        )

    async def _answer(self, engine: AsyncEngine, item: _Item) -> list[NativeDict]:
        started = time.monotonic()
        async with await self._submit(engine, item) as stream:
            answers = await stream.collect()
        return [self._native(engine, Collected.of(answer, stream.rid, started=started)) for answer in answers]

    def _native(self, engine: AsyncEngine, answer: Collected) -> NativeDict:
        error = failure(answer.finish)
        if error is not None:
            raise error
        token_text = engine.tokenizer.token_text if self.text_in_logprobs else None
        return native_answer(answer, logprobs=self.logprobs, token_text=token_text)


def _session(params: SessionParams | Mapping[str, Any] | None) -> SessionParams | None:
    if params is None or isinstance(params, SessionParams):
        return params
    try:
        return msgspec.convert(dict(params), SessionParams)
    except msgspec.ValidationError as error:
        raise RequestError(f"session_params: {error}.", param="session_params", code="invalid_type") from None


def _is_nested(ids: Sequence[Any]) -> bool:
    """Tell a list of prompts from one prompt; an empty one is one prompt, and refused as such."""
    return len(ids) > 0 and isinstance(ids[0], Sequence)


def _spread(name: str, value: Any, count: int, *, one: tuple[type, ...]) -> list[Any]:
    if isinstance(value, one):
        return [value] * count
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != count:
        raise RequestError(f"{name} must be a list of {count}, one for each prompt.", param=name, code="invalid_value")
    return list(value)


async def _together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results; the first error cancels the rest."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _merge(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield the events of several streams as they come."""
    waiting = {asyncio.ensure_future(anext(stream, None)): i for i, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                i = waiting.pop(task)
                event = task.result()
                if event is not None:
                    yield i, event
                    waiting[asyncio.ensure_future(anext(streams[i], None))] = i
    finally:
        for task in waiting:
            task.cancel()
