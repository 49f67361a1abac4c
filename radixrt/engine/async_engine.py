"""The engine front: takes text or tokens, owns the life of every request, and answers in streams of text.

Validates before anything is dispatched and splits n answers into single ones.  All of it runs on one event loop;
tokenizing and templates run in threads beside it.  Knows neither HTTP nor how tokens are computed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from radixrt.config import EngineConfig
from radixrt.engine.answers import OpenAnswers
from radixrt.engine.breakers import BreakerTable
from radixrt.engine.cache_calls import CacheCalls
from radixrt.engine.client import CoreClient, ProcessClient, ThreadClient
from radixrt.engine.life import RESTART_DELAYS, CoreLife, Status
from radixrt.engine.link import PROTOCOL, Answered, Failed, Flushed, Outputs, Progress, Ready, Report
from radixrt.engine.loop import OnProgress
from radixrt.engine.metrics import Metrics
from radixrt.engine.prompts import check_fits, check_length, check_prompt, max_tokens, text_length, token_ids
from radixrt.engine.questions import Pause, RequestsView, Resume, ViewRequests
from radixrt.engine.session_calls import SessionCalls
from radixrt.engine.sessions import SessionParams
from radixrt.engine.stream import Answer, RequestStream, failure
from radixrt.engine.tickets import Tickets
from radixrt.engine.trace import TraceRecorder
from radixrt.errors import EngineStopped, RequestError
from radixrt.grammar import spec as specs
from radixrt.text.answer_formats import AnswerFormats
from radixrt.text.chat import ChatTemplate
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.types import (
    SHARED,
    EngineStats,
    GenerateRequest,
    LogprobOptions,
    ModelInfo,
    Namespace,
    PauseMode,
    SamplingParams,
)
from radixrt.weights.resolve import resolve_model

if TYPE_CHECKING:
    from radixrt.engine.spans import SpanRecorder

logger = logging.getLogger(__name__)

__all__ = ["Answer", "AsyncEngine", "RequestStream", "failure"]

T = TypeVar("T")

NUM_TEXT_THREADS = 2
_SEEDS = 1 << 63


class AsyncEngine:
    """One engine, used from one event loop; construct, ``await start()``, and ``await close()`` at the end.

    config: which model, and how it runs.  in_process: compute in a thread of this process instead of a worker process.
    model_name: the label of its metrics.  client and tokenizer replace what would be made from the config.
    recorder: takes a line about every request, and spans makes OpenTelemetry's of it; the caller's to close.
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
        recorder: TraceRecorder | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        model = config.model
        self.config = config
        self.resolved = config  # what the core made of it, once it is ready
        self.stats = EngineStats()
        self.progress: OnProgress | None = None
        self.metrics = Metrics(model_name or model.model_path)
        self.tokenizer: Tokenizer
        self.chat: ChatTemplate
        self.formats: AnswerFormats
        self.info: ModelInfo
        self._load_tokenizer: Callable[[], Tokenizer]
        if tokenizer is None:
            files = resolve_model(
                model.model_path, tokenizer_path=model.tokenizer_path, revision=model.revision, load_format=model.load_format
            )
            self._load_tokenizer = functools.partial(load_tokenizer, files.tokenizer)
        else:
            self._load_tokenizer = lambda: tokenizer
        self._life = CoreLife(
            client or (ThreadClient() if in_process else ProcessClient()), config, on_report=self._on_report, on_lost=self._on_lost,
            # What breaks in a thread of ours (memory, a device) only a new process mends, so that is not restarted.
            restarts=() if in_process else RESTART_DELAYS,
        )
        self._client = self._life.client
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="radixrt-text")
        self._uids = itertools.count(1)
        self._tickets = Tickets(self._client.submit)
        self.cache = CacheCalls(self, self._tickets.ask, lambda: self.resolved.cache)
        self.sessions = SessionCalls(self._tickets.tell)
        self._hurry = asyncio.Event()
        self._answers = OpenAnswers(self._client.submit, metrics=self.metrics, sessions=self.sessions, recorder=recorder, spans=spans)

    @property
    def status(self) -> Status:
        return self._life.status

    async def start(self) -> None:
        """Load the tokenizer and the model; ready when it returns.

        Raises ConfigError or EngineStopped with the reason when loading fails; the engine is closed then.
        """
        if self.status != "starting" or self._life.begun:
            raise EngineStopped("an engine starts once")
        try:
            up = self._life.begin()
            self.tokenizer = await self._off_loop(self._load_tokenizer)
            self.chat = await self._off_loop(ChatTemplate, self.tokenizer, self.tokenizer.chat_template)
            self.formats = AnswerFormats.of(
                self.tokenizer, self.config.model.tool_call_parser, self.config.model.reasoning_parser, knows_tools=self.chat.knows_tools
            )
            self._answers.load(self.tokenizer)
            self._breakers = BreakerTable(self.tokenizer)
            # The token that encoding writes by itself; one that a template writes belongs to the text.
            self.sessions.bos = next(iter(self.tokenizer.encode("")), None)
            await up
            self._life.set_ready()
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
        self.sessions.stop()
        await self._life.close(functools.partial(self._drain, drain), functools.partial(self._end_open, "The engine is shutting down."))
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def num_open(self) -> int:
        """Answers that are being computed."""
        return len(self._answers)

    @property
    def max_tokens(self) -> int:
        """Tokens that prompt and output of one request may have together."""
        return max_tokens(self.info)

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self.metrics.render(self.stats, worker_pids=self._client.pids)

    async def view_requests(self, limit: int = 100) -> dict[str, Any]:
        """Return who runs and who waits, and for what: ``{"running", "waiting", "num_running", "num_waiting"}``."""
        self._life.require_ready()
        view = await self._tickets.ask(ViewRequests(limit))
        assert isinstance(view, RequestsView)
        return {
            name: [{"rid": self._answers.rid(facts.uid), **msgspec.structs.asdict(facts)} for facts in getattr(view, name)]
            for name in ("running", "waiting")
        } | {"num_running": view.num_running, "num_waiting": view.num_waiting}

    async def pause(self, mode: PauseMode = "abort") -> None:
        """Compute nothing until ``resume``, while requests are still taken: abort ends those that are open, retract sends running
        ones back to the queue, in_place lets them keep their slots.  Idempotent."""
        self._life.require_ready()
        if mode == "abort":
            await self.abort_all()
        await self._tickets.ask(Pause(mode == "retract"))

    async def resume(self) -> None:
        """End a pause.  Idempotent."""
        self._life.require_ready()
        await self._tickets.ask(Resume())

    async def encode(self, text: str, *, param: str = "prompt", add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text; PromptTooLong, without tokenizing, when it cannot possibly fit."""
        self._life.require_ready()
        check_length(len(text), self.info, param)
        return await self._off_loop(functools.partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens))

    async def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        return await self._off_loop(functools.partial(self.tokenizer.decode, tokens, skip_special_tokens=skip_special_tokens))

    async def encode_chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Return the tokens of a conversation through the model's chat template; options as ``ChatTemplate.encode``."""
        self._life.require_ready()
        check_length(text_length(messages), self.info, "messages")
        return await self._off_loop(functools.partial(self.chat.encode, messages, **options))

    async def submit(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        rid: str | None = None,
        logprobs: LogprobOptions | None = None,
        namespace: Namespace = SHARED,
        priority: int = 0,
        routing_key: str = "",
        session: SessionParams | None = None,
        want_report: bool = False,
        embed: bool = False,
        prompt_param: str = "prompt",
    ) -> RequestStream:
        """Start a request and return the stream of its ``sampling.n`` answers.

        rid: the caller's name for it, unique among open requests; made up when None.  namespace: the cache is shared
        only within it.  routing_key: what the schedule policy of that name groups by.  session: the prompt continues an
        earlier request.  want_report: the last event tells what the cache did.  embed: generate nothing; the last event
        has the mean of the prompt's hidden states.  prompt_param: what errors call the prompt.
        Raises RequestError, PromptTooLong or InvalidSampling, with nothing started, and EngineStopped.
        """
        self._life.require_ready()
        tokens = await self.encode(prompt, param=prompt_param) if isinstance(prompt, str) else self._ids(prompt, prompt_param)
        self._life.require_ready()
        vocab_size = self.info.vocab_size
        # Without the prompt, whose ids have been checked and may be many.
        asked = GenerateRequest(
            uid=0, prompt=[], sampling=sampling, namespace=namespace, logprobs=logprobs, priority=priority, routing_key=routing_key,
            want_report=want_report, embed=embed,
        ).checked()
        sampling, logprobs = asked.sampling, asked.logprobs
        sampling.validate(vocab_size)
        if sampling.grammar is not None:
            specs.check(sampling.grammar)
        breakers = None
        if sampling.chain is not None and sampling.chain.repeats:
            breakers = await self._off_loop(self._breakers.resolve, sampling.chain.dry_sequence_breakers)
            self._life.require_ready()
        added = tokens
        if session is not None:
            if sampling.n != 1:
                raise RequestError("A request of a session has one answer.", param="n", code="invalid_value")
            tokens = self.sessions.prompt(session, added)
        check_prompt(tokens, self.info, prompt_param)
        if embed:
            sampling = msgspec.structs.replace(sampling, max_new_tokens=0, min_new_tokens=0)
            # What would come next, which nothing computes: the hidden states are those that predict a token of the prompt.
            tokens = [*tokens, tokens[-1]]
            check_prompt(tokens, self.info, prompt_param)
        if logprobs is not None:
            logprobs.validate(vocab_size, len(tokens))
        if rid is None:
            rid = uuid.uuid4().hex
        if rid in self._answers:
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
                breakers=breakers,
                sampling=msgspec.structs.replace(
                    sampling, n=1, max_new_tokens=longest, min_new_tokens=min(sampling.min_new_tokens, longest),
                    stop_token_ids=(*sampling.stop_token_ids, *more_ends), seed=None if seed is None else _wrap(seed + index),
                ),
            )
            for index in range(sampling.n)
        ]
        turn = None
        if session is not None:
            turn, ended = self.sessions.add(session, rid, added, namespace)
            for other in ended:
                self._answers.abort(other)
        return self._answers.open(rid, tokens, requests, turn)

    async def abort(self, rid: str) -> bool:
        """Abort the request of exactly this name; its stream ends with what there is.  False when there is none."""
        return self._answers.abort(rid)

    async def abort_all(self) -> int:
        """Abort every open request; returns how many."""
        return sum(map(self._answers.abort, self._answers.rids))

    async def flush_cache(self) -> bool:
        """Empty the KV cache; False, with nothing done, while requests are running."""
        self._life.require_ready()
        return await self._tickets.flush()

    async def open_session(self, id: str | None = None, *, timeout: float | None = None) -> str:
        """Open a session and return its id; it ends by itself after ``timeout`` seconds without a request."""
        self._life.require_ready()
        return self.sessions.open(id, timeout=timeout)

    async def close_session(self, id: str) -> None:
        """End a session; what it alone put into the cache is dropped.  Raises RequestError when there is none of that id."""
        self._life.require_ready()
        self.sessions.close(id)

    def require_ready(self) -> None:
        """Raise EngineStopped, with the reason, unless requests are let in."""
        self._life.require_ready()

    def check_fits(self, num_tokens: int, param: str) -> None:
        """Raise PromptTooLong for a prompt of so many tokens that no answer fits."""
        check_fits(num_tokens, self.info, param)

    def _ids(self, prompt: Sequence[int], param: str) -> list[int]:
        if isinstance(prompt, Sequence):
            # First, because what comes after looks at each id.
            self.check_fits(len(prompt), param)
        return token_ids(prompt, param)

    def _on_report(self, report: Report) -> None:
        match report:
            case Outputs(outputs, stats):
                if stats is not None:
                    self._take_stats(stats)
                self._answers.push(outputs)
            case Ready(protocol, info, stats, config):
                if protocol != PROTOCOL:
                    self._life.failed(f"the worker speaks link protocol {protocol}, not {PROTOCOL}", config=False)
                    return
                self.info = info
                self.resolved = config
                self._take_stats(stats)
                self._life.came_up()
            case Flushed(ticket, ok, stats):
                self._take_stats(stats)
                self._tickets.settle(ticket, ok)
            case Answered(ticket, answer, stats):
                self._take_stats(stats)
                self._tickets.settle(ticket, answer)
            case Progress(done, total, name):
                if self.progress is not None:
                    self.progress(done, total, name)
            case Failed(message, config):
                self._life.failed(message, config=config)

    def _take_stats(self, stats: EngineStats) -> None:
        self.stats = stats
        self.metrics.note(stats)

    def _on_lost(self, message: str) -> None:
        logger.error("%s; %d open requests end with an error", message, self.num_open)
        self._end_open(message)
        self.stats = EngineStats()

    def _end_open(self, message: str) -> None:
        self._answers.end(message)
        self._tickets.fail(message)

    async def _drain(self, seconds: float) -> None:
        """Wait until nothing is open, ``seconds`` have passed, or somebody is in a hurry."""
        if seconds > 0 and self.num_open:
            waits = [asyncio.create_task(wait) for wait in (self._answers.wait_idle(), self._hurry.wait())]
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _off_loop(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(call, *arguments))


def _wrap(seed: int) -> int:
    """Bring a derived seed back into 64 bits."""
    return (seed + _SEEDS) % (2 * _SEEDS) - _SEEDS
