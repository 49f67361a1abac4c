"""The answers that are being computed: who waits for each, what has come of it, and what its end sets right.

The only place that knows which requests are open.  Lives on one event loop; knows neither how tokens are computed nor
whether the core is alive.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from radixrt.engine.final_check import FinalCheck
from radixrt.engine.link import Abort, Add, Command
from radixrt.engine.loop import refusal
from radixrt.engine.metrics import Metrics
from radixrt.engine.output import OutputProcessor
from radixrt.engine.reports import report_view
from radixrt.engine.session_calls import SessionCalls
from radixrt.engine.sessions import Turn
from radixrt.engine.stream import Channel, RequestStream, failure
from radixrt.engine.trace import TraceRecorder
from radixrt.errors import EngineStopped
from radixrt.text.tokenizer import Tokenizer
from radixrt.types import Finish, FinishReason, GenerateRequest, RequestOutput, TokenOutput, Usage

if TYPE_CHECKING:
    # Needs the extra otel, and is there only where somebody asked for spans.
    from radixrt.engine.spans import AnswerSpan, SpanRecorder

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenAnswer:
    """An answer that is being computed; times are of time.monotonic()."""

    rid: str
    index: int
    prompt: list[int]
    channel: Channel
    started: float
    turn: Turn | None = None
    check: FinalCheck | None = None
    last_token: float | None = None
    span: AnswerSpan | None = None
    usage: Usage = field(default_factory=Usage)


class OpenAnswers:
    """Open answers by uid and by the request id they share.  ``submit`` passes commands to the core.

    ``load`` comes before the first ``open``.
    """

    output: OutputProcessor
    _tokenizer: Tokenizer

    def __init__(
        self, submit: Callable[[Command], None], *, metrics: Metrics, sessions: SessionCalls, recorder: TraceRecorder | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        self._submit = submit
        self._metrics = metrics
        self._sessions = sessions
        self._recorder = recorder
        self._spans = spans
        self._open: dict[int, _OpenAnswer] = {}
        self._rids: dict[str, set[int]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def load(self, tokenizer: Tokenizer) -> None:
        """Take the tokenizer that turns tokens into text."""
        self._tokenizer = tokenizer
        self.output = OutputProcessor(tokenizer)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, rid: str) -> bool:
        return rid in self._rids

    @property
    def rids(self) -> list[str]:
        return list(self._rids)

    def rid(self, uid: int) -> str | None:
        """The name of the request that an answer belongs to, None when it has ended."""
        answer = self._open.get(uid)
        return None if answer is None else answer.rid

    async def wait_idle(self) -> None:
        """Wait until nothing is open."""
        await self._idle.wait()

    def open(self, rid: str, tokens: list[int], requests: Sequence[GenerateRequest], turn: Turn | None = None) -> RequestStream:
        """Send the requests of one prompt to the core, and return the stream of their answers."""
        # Nothing here waits: the records are complete before the core knows of the request.
        channel = Channel(len(requests))
        now = time.monotonic()
        uids = [request.uid for request in requests]
        self._rids[rid] = set(uids)
        for index, request in enumerate(requests):
            check = FinalCheck.of(request.sampling.grammar, self._tokenizer.eos_token_ids)
            span = None if self._spans is None else self._spans.begin(rid, index, request)
            self._open[request.uid] = _OpenAnswer(
                rid, index, tokens, channel, now, turn, check, span=span, usage=Usage(prompt_tokens=len(tokens))
            )
            self.output.add(
                request.uid, rid=rid, index=index, num_prompt=len(tokens), sampling=request.sampling,
                want_logprobs=request.logprobs is not None,
            )
            if self._recorder is not None:
                self._recorder.start(request.uid, tokens, request.namespace, now)
        self._idle.clear()
        self._metrics.started(len(requests))
        try:
            self._submit(Add(list(requests)))
        except BaseException:
            lost = Finish(FinishReason.ABORT, message="the request could not be handed on", status=500)
            for uid in uids:
                self._forget(uid, self._open[uid], lost, now)
            raise
        constrained = any(request.sampling.grammar is not None for request in requests)
        return RequestStream(rid, tokens, channel, functools.partial(self._release, uids), constrained=constrained)

    def abort(self, rid: str) -> bool:
        """Have the core end the request of exactly this name; False when there is none."""
        uids = self._rids.get(rid)
        for uid in uids or ():
            self._submit(Abort(uid))
        return uids is not None

    def push(self, outputs: Iterable[TokenOutput]) -> None:
        """Take in what the core has computed; late outputs of a request that was released are ignored."""
        now = time.monotonic()
        for output in outputs:
            self._push(output, now)

    def _push(self, output: TokenOutput, now: float) -> None:
        answer = self._open.get(output.uid)
        if answer is None:
            return
        try:
            event, abort = self.output.push(output)
        except Exception:
            logger.exception("an output of request %d could not be turned into text", output.uid)
            finish = Finish(FinishReason.ABORT, message="internal error while the answer was turned into text", status=500)
            event, abort = RequestOutput(
                rid=answer.rid, index=answer.index, text_delta="", token_ids_delta=[], usage=Usage(), finish=finish
            ), True
        if abort:
            self._submit(Abort(output.uid))
        if output.tokens:
            if self._recorder is not None:
                self._recorder.push(output.uid, output.tokens)
            since_last = None if answer.last_token is None else now - answer.last_token
            self._metrics.tokens(len(output.tokens), now - answer.started, since_last, output.queued)
            if answer.span is not None and answer.last_token is None:
                answer.span.first_token(now, output.queued)
            answer.last_token = now
        if event is None:
            return
        answer.usage = event.usage
        if answer.check is not None and (failed := answer.check.push(event)) is not None:
            self._metrics.failed_check()
            logger.warning("the answer of request %s breaks its schema", answer.rid)
            event = msgspec.structs.replace(event, finish=failed)
        if answer.turn is not None:
            self._sessions.push(answer.turn, event.token_ids_delta, event.usage.cached_tokens)
        if output.report is not None:
            event = msgspec.structs.replace(event, report=report_view(output.report, answer.prompt, self._tokenizer))
        if event.finish is not None:
            if answer.span is not None:
                answer.span.queued = output.queued
            self._forget(output.uid, answer, event.finish, now)
        answer.channel.push(event)

    def end(self, message: str) -> None:
        """End everything that is open with EngineStopped."""
        self.push([refusal(uid, message, EngineStopped.status) for uid in self._open])

    def _release(self, uids: list[int]) -> None:
        """Abort the answers nobody waits for any more; late outputs of theirs are ignored."""
        now = time.monotonic()
        for uid in uids:
            if (answer := self._open.get(uid)) is not None:
                self._submit(Abort(uid))
                self._forget(uid, answer, None, now)

    def _forget(self, uid: int, answer: _OpenAnswer, finish: Finish | None, now: float) -> None:
        """Close the accounts of an answer; without a ``finish`` nobody waits for it."""
        del self._open[uid]
        self.output.drop(uid)
        if self._recorder is not None:
            self._recorder.end(uid)
        if answer.turn is not None:
            self._sessions.finish(answer.turn, failed=failure(finish) is not None)
        if answer.span is not None:
            answer.span.end(now, answer.usage, finish)
        self._metrics.finished(now - answer.started, answer.usage, aborted=finish is None or finish.reason is FinishReason.ABORT)
        siblings = self._rids[answer.rid]
        siblings.discard(uid)
        if not siblings:
            del self._rids[answer.rid]
        if not self._open:
            self._idle.set()
