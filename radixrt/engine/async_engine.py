"""The engine front: takes text or tokens, owns the life of every request, and answers in streams of text.

Validates before anything is dispatched, splits n answers into single ones, and is the only place that knows which
requests are open.  All of it runs on one event loop; tokenizing and templates run in threads beside it.  Knows neither
HTTP nor how tokens are computed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import operator
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from radixrt.config import EngineConfig
from radixrt.engine.client import CoreClient, ProcessClient, ThreadClient
from radixrt.engine.link import PROTOCOL, Abort, Add, Failed, Flush, Flushed, Outputs, Progress, Ready, Report
from radixrt.engine.loop import OnProgress, refusal
from radixrt.engine.metrics import Metrics
from radixrt.engine.output import OutputProcessor
from radixrt.engine.stream import Answer, Channel, RequestStream, failure
from radixrt.errors import ConfigError, EngineStopped, PromptTooLong, RadixrtError, RequestError
from radixrt.text.chat import ChatTemplate
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.types import (
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    LogprobOptions,
    ModelInfo,
    RequestOutput,
    SamplingParams,
    TokenOutput,
    Usage,
)
from radixrt.weights.resolve import resolve_model

logger = logging.getLogger(__name__)

__all__ = ["Answer", "AsyncEngine", "RequestStream", "failure"]

T = TypeVar("T")
Status = Literal["starting", "ready", "draining", "stopped"]

# A text is refused unread when it has more characters than this for every token that fits: no vocabulary has tokens
# that long on average, and tokenizing gigabytes only to count them would serve nobody.
MAX_CHARS_PER_TOKEN = 128
NUM_TEXT_THREADS = 2
# Delays before each restart of a worker that dies again and again; after the last the engine stays stopped.  A worker
# that has lived LASTING_SECONDS starts the count anew.
RESTART_DELAYS = (0.2, 1.0, 2.0, 5.0, 10.0)
LASTING_SECONDS = 60.0
_SEEDS = 1 << 63


@dataclass(slots=True)
class _OpenAnswer:
    """An answer that is being computed; times are of time.monotonic()."""

    rid: str
    index: int
    channel: Channel
    started: float
    last_token: float | None = None


class AsyncEngine:
    """One engine, used from one event loop; construct, ``await start()``, and ``await close()`` at the end.

    config: which model, and how it runs.  in_process: compute in a thread of this process instead of a worker process.
    model_name: the label of its metrics.  client and tokenizer replace what would be made from the config.
    Raises ConfigError when the model's files cannot be found.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        in_process: bool = False,
        model_name: str | None = None,
        client: CoreClient | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        model = config.model
        self.config = config
        self.resolved = config  # what the core made of it, once it is ready
        self.status: Status = "starting"
        self.stats = EngineStats()
        self.progress: OnProgress | None = None
        self.metrics = Metrics(model_name or model.model_path)
        self.tokenizer: Tokenizer
        self.chat: ChatTemplate
        self.info: ModelInfo
        self._load_tokenizer: Callable[[], Tokenizer]
        if tokenizer is None:
            files = resolve_model(
                model.model_path, tokenizer_path=model.tokenizer_path, revision=model.revision, load_format=model.load_format
            )
            self._load_tokenizer = functools.partial(load_tokenizer, files.tokenizer)
        else:
            self._load_tokenizer = lambda: tokenizer
        # What breaks in a thread of ours (memory, a device) only a new process mends, so that is not restarted.
        self._restarts = RESTART_DELAYS if not in_process else ()
        self._restarts_used = 0
        self._ready_since = 0.0
        self._client: CoreClient = client or (ThreadClient() if in_process else ProcessClient())
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="radixrt-text")
        self._output: OutputProcessor
        self._uids = itertools.count(1)
        self._open: dict[int, _OpenAnswer] = {}
        self._rids: dict[str, set[int]] = {}
        self._flushes: dict[int, asyncio.Future[bool]] = {}
        self._up: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failure = ""

    async def start(self) -> None:
        """Load the tokenizer and the model; ready when it returns.

        Raises ConfigError or EngineStopped with the reason when loading fails; the engine is closed then.
        """
        if self.status != "starting" or self._up is not None:
            raise EngineStopped("an engine starts once")
        try:
            up = self._begin()
            self.tokenizer = await self._off_loop(self._load_tokenizer)
            self.chat = await self._off_loop(ChatTemplate, self.tokenizer, self.tokenizer.chat_template)
            self._output = OutputProcessor(self.tokenizer)
            await up
            self._set_ready()
        except OSError as error:
            await self.close()
            raise EngineStopped(f"the engine could not be started: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self, *, drain: float = 0.0) -> None:
        """Stop: refuse new requests, let open ones finish for up to ``drain`` seconds, end the rest and the core.

        Idempotent.  A later call without ``drain`` cuts the draining of an earlier one short.
        """
        if drain <= 0:
            self._hurry.set()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(drain if self.status == "ready" else 0.0))
            self.status = "draining"
        await asyncio.shield(self._closing)

    @property
    def num_open(self) -> int:
        """Answers that are being computed."""
        return len(self._open)

    @property
    def max_tokens(self) -> int:
        """Tokens that prompt and output of one request may have together."""
        return min(self.info.context_length, self.info.capacity_tokens)

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self.metrics.render(self.stats, worker_pids=self._client.pids)

    async def encode(self, text: str, *, param: str = "prompt") -> list[int]:
        """Return the tokens of a text; PromptTooLong, without tokenizing, when it cannot possibly fit."""
        self._require_ready()
        self._check_length(len(text), param)
        return await self._off_loop(self.tokenizer.encode, text)

    async def encode_chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Return the tokens of a conversation through the model's chat template; options as ``ChatTemplate.encode``."""
        self._require_ready()
        self._check_length(sum(_text_length(message) for message in messages), "messages")
        return await self._off_loop(functools.partial(self.chat.encode, messages, **options))

    async def submit(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        rid: str | None = None,
        logprobs: LogprobOptions | None = None,
        namespace: tuple[str, ...] = (),
        priority: int = 0,
        prompt_param: str = "prompt",
    ) -> RequestStream:
        """Start a request and return the stream of its ``sampling.n`` answers.

        rid: the caller's name for it, unique among open requests; made up when None.  namespace: the cache is shared
        only within it.  prompt_param: what errors call the prompt.
        Raises RequestError, PromptTooLong or InvalidSampling, with nothing started, and EngineStopped.
        """
        self._require_ready()
        tokens = await self.encode(prompt, param=prompt_param) if isinstance(prompt, str) else self._ids(prompt, prompt_param)
        self._require_ready()
        vocab_size = self.info.vocab_size
        # Without the prompt, whose ids have been checked and may be many.
        asked = GenerateRequest(uid=0, prompt=[], sampling=sampling, namespace=namespace, logprobs=logprobs, priority=priority).checked()
        sampling, logprobs = asked.sampling, asked.logprobs
        sampling.validate(vocab_size)
        self._check_prompt(tokens, prompt_param)
        if logprobs is not None:
            logprobs.validate(vocab_size, len(tokens))
        if rid is None:
            rid = uuid.uuid4().hex
        if rid in self._rids:
            raise RequestError("A request with this rid is running.", param="rid", code="duplicate_rid")
        room = self.max_tokens - len(tokens)
        longest = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
        seed = sampling.seed
        # A tokenizer can know more ways to end a turn than the weights' config says.
        more_ends = {token for token in self.tokenizer.eos_token_ids if token < vocab_size} - set(self.info.eos_token_ids)
        requests = [
            msgspec.structs.replace(
                asked,
                uid=next(self._uids),
                prompt=tokens,
                sampling=msgspec.structs.replace(
                    sampling, n=1, max_new_tokens=longest, min_new_tokens=min(sampling.min_new_tokens, longest),
                    stop_token_ids=(*sampling.stop_token_ids, *more_ends), seed=None if seed is None else _wrap(seed + index),
                ),
            )
            for index in range(sampling.n)
        ]
        return self._dispatch(rid, tokens, requests)

    async def abort(self, rid: str) -> bool:
        """Abort the request of exactly this name; its stream ends with what there is.  False when there is none."""
        uids = self._rids.get(rid)
        for uid in uids or ():
            self._client.submit(Abort(uid))
        return uids is not None

    async def abort_all(self) -> int:
        """Abort every open request; returns how many."""
        rids = list(self._rids)
        for rid in rids:
            await self.abort(rid)
        return len(rids)

    async def flush_cache(self) -> bool:
        """Empty the KV cache; False, with nothing done, while requests are running."""
        self._require_ready()
        ticket = next(self._uids)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._flushes[ticket] = answer
        try:
            self._client.submit(Flush(ticket))
            return await answer
        finally:
            self._flushes.pop(ticket, None)

    def _require_ready(self) -> None:
        if self.status == "ready":
            return
        reasons = {"starting": "The engine is starting.", "draining": "The engine is shutting down."}
        raise EngineStopped(reasons.get(self.status, "The engine has stopped."))

    def _check_length(self, num_chars: int, param: str) -> None:
        if num_chars > self.max_tokens * MAX_CHARS_PER_TOKEN:
            raise PromptTooLong(
                f"This model's maximum context length is {self.max_tokens} tokens; a text of {num_chars} characters does not fit.",
                param=param,
            )

    def check_fits(self, num_tokens: int, param: str) -> None:
        """Raise PromptTooLong for a prompt of so many tokens that no answer fits."""
        limit = self.max_tokens
        if num_tokens >= limit:
            whose = "This model's" if limit == self.info.context_length else "With this KV pool the"
            raise PromptTooLong(
                f"{whose} maximum context length is {limit} tokens, output included, but the prompt has {num_tokens}.", param=param
            )

    def _ids(self, prompt: Sequence[int], param: str) -> list[int]:
        if isinstance(prompt, Sequence):
            # First, because what comes after looks at each id.
            self.check_fits(len(prompt), param)
        return token_ids(prompt, param)

    def _check_prompt(self, tokens: list[int], param: str) -> None:
        if not tokens:
            raise RequestError("The prompt is empty.", param=param, code="empty_prompt")
        self.check_fits(len(tokens), param)
        vocab_size = self.info.vocab_size
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise RequestError(f"Token ids must be in [0, {vocab_size - 1}].", param=param, code="invalid_value")

    def _dispatch(self, rid: str, tokens: list[int], requests: list[GenerateRequest]) -> RequestStream:
        # Nothing here waits: the records are complete before the core knows of the request.
        channel = Channel(len(requests))
        now = time.monotonic()
        uids = [request.uid for request in requests]
        self._rids[rid] = set(uids)
        for index, request in enumerate(requests):
            self._open[request.uid] = _OpenAnswer(rid, index, channel, now)
            self._output.add(
                request.uid, rid=rid, index=index, num_prompt=len(tokens), sampling=request.sampling,
                want_logprobs=request.logprobs is not None,
            )
        self._idle.clear()
        self.metrics.started(len(requests))
        try:
            self._client.submit(Add(requests))
        except BaseException:
            for uid in uids:
                self._forget(uid, self._open[uid])
                self.metrics.finished(0.0, aborted=True)
            raise
        return RequestStream(rid, tokens, channel, functools.partial(self._release, uids))

    def _release(self, uids: list[int]) -> None:
        """Abort the answers nobody waits for any more; late outputs of theirs are ignored."""
        now = time.monotonic()
        for uid in uids:
            if (answer := self._open.get(uid)) is not None:
                self._client.submit(Abort(uid))
                self._forget(uid, answer)
                self.metrics.finished(now - answer.started, aborted=True)

    def _forget(self, uid: int, answer: _OpenAnswer) -> None:
        del self._open[uid]
        self._output.drop(uid)
        siblings = self._rids[answer.rid]
        siblings.discard(uid)
        if not siblings:
            del self._rids[answer.rid]
        if not self._open:
            self._idle.set()

    def _begin(self) -> asyncio.Future[None]:
        self._failure = ""
        up = self._up = asyncio.get_running_loop().create_future()
        # Whoever waits for it gets the exception; when nobody does any more, that is no error.
        up.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._client.start(self.config, self._on_report)
        return up

    def _on_report(self, report: Report) -> None:
        match report:
            case Outputs(outputs, stats):
                self._take_stats(stats)
                for output in outputs:
                    self._push(output)
            case Ready(protocol, info, stats, config):
                if protocol != PROTOCOL:
                    self._fail(f"the worker speaks link protocol {protocol}, not {PROTOCOL}", config=False)
                    return
                self.info = info
                self.resolved = config
                self._take_stats(stats)
                _resolve(self._up, None)
            case Flushed(ticket, ok, stats):
                self._take_stats(stats)
                _resolve(self._flushes.get(ticket), ok)
            case Progress(done, total, name):
                if self.progress is not None:
                    self.progress(done, total, name)
            case Failed(message, config):
                self._fail(message, config=config)

    def _take_stats(self, stats: EngineStats) -> None:
        self.stats = stats
        self.metrics.note(stats)

    def _push(self, output: TokenOutput) -> None:
        answer = self._open.get(output.uid)
        if answer is None:
            return  # a late output of a request that was released
        try:
            event, abort = self._output.push(output)
        except Exception:
            logger.exception("an output of request %d could not be turned into text", output.uid)
            finish = Finish(FinishReason.ABORT, message="internal error while the answer was turned into text", status=500)
            event, abort = RequestOutput(
                rid=answer.rid, index=answer.index, text_delta="", token_ids_delta=[], usage=Usage(), finish=finish
            ), True
        if abort:
            self._client.submit(Abort(output.uid))
        now = time.monotonic()
        if output.tokens:
            self.metrics.tokens(len(output.tokens), now - answer.started, None if answer.last_token is None else now - answer.last_token)
            answer.last_token = now
        if event is None:
            return
        if event.finish is not None:
            self._forget(output.uid, answer)
            self.metrics.finished(now - answer.started, aborted=event.finish.reason is FinishReason.ABORT)
        answer.channel.push(event)

    def _set_ready(self) -> None:
        # The core may have failed again, or the engine been closed, since it reported Ready.
        if self.status != "starting" or self._failure:
            raise EngineStopped(self._failure or "the engine was closed while it was loading")
        self._ready_since = time.monotonic()
        self.status = "ready"

    def _fail(self, message: str, *, config: bool) -> None:
        self._failure = message
        if self._up is not None and not self._up.done():
            self._up.set_exception(ConfigError(message) if config else EngineStopped(message))
            return
        logger.error("%s; %d open requests end with an error", message, len(self._open))
        self._end_open(message)
        self.stats = EngineStats()
        if self.status == "ready":
            self.status = "starting"
            self._supervisor = asyncio.create_task(self._restart())

    def _end_open(self, message: str) -> None:
        for uid in list(self._open):
            self._push(refusal(uid, message, EngineStopped.status))
        for answer in self._flushes.values():
            if not answer.done():
                answer.set_exception(EngineStopped(message))

    async def _restart(self) -> None:
        if time.monotonic() - self._ready_since > LASTING_SECONDS:
            self._restarts_used = 0
        while self._restarts_used < len(self._restarts):
            delay = self._restarts[self._restarts_used]
            self._restarts_used += 1
            logger.warning("restarting the engine process in %.1f s", delay)
            await asyncio.sleep(delay)
            try:
                await self._begin()
                self._set_ready()
            except (RadixrtError, OSError) as error:
                logger.error("restarting failed: %s", error)
                continue
            logger.warning("the engine process is back")
            return
        logger.error("the engine has stopped for good")
        self.status = "stopped"

    async def _close(self, drain: float) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._up is not None and not self._up.done():
            self._up.set_exception(EngineStopped("the engine was closed while it was loading"))
        if drain > 0 and self._open:
            waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._hurry)]
            await asyncio.wait(waits, timeout=drain, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self._end_open("The engine is shutting down.")
        self.status = "stopped"
        await self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _off_loop(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(call, *arguments))


def token_ids(prompt: Sequence[Any], param: str) -> list[int]:
    """Return a prompt given as ids as a plain list; RequestError for anything that is not a whole number."""
    if not isinstance(prompt, Iterable):
        raise RequestError("A prompt is a text or a list of token ids.", param=param, code="invalid_type")
    ids = list(prompt)
    if all(type(token) is int for token in ids):
        return ids
    try:
        if any(isinstance(token, bool) for token in ids):
            raise TypeError
        return [operator.index(token) for token in ids]
    except TypeError:
        raise RequestError("A prompt is a text or a list of token ids.", param=param, code="invalid_type") from None


def _text_length(value: Any) -> int:
    """Count the characters of all strings inside a message, or a part of one."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_text_length, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_text_length, value))
    return 0


def _resolve(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _wrap(seed: int) -> int:
    """Bring a derived seed back into 64 bits."""
    return (seed + _SEEDS) % (2 * _SEEDS) - _SEEDS
