"""The grammars of an engine core: requests wait here while theirs is compiled, and the core only ever looks whether it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from radixrt.config import GrammarConfig, ModelConfig
from radixrt.engine.stream import ended_by
from radixrt.errors import GrammarError, RadixrtError
from radixrt.grammar import spec as specs
from radixrt.grammar.base import Grammar
from radixrt.grammar.compile.service import CompileService, CompileStats, Job
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.schedule.deadlines import Deadlines
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.types import Finish, FinishReason, GenerateRequest, GrammarSpec, ModelInfo, TokenOutput
from radixrt.weights.resolve import resolve_model

# How often somebody who has nothing else to do is to look whether a grammar is ready, in seconds.
LOOK_SECONDS = 0.001

# Takes a request, its grammar, and the seconds for which it has waited for that.
Queue = Callable[[GenerateRequest, Grammar | None, float], None]


class Compiler(Protocol):
    """What the desk needs of a ``CompileService``."""

    stats: CompileStats

    @property
    def vocabulary(self) -> Vocabulary: ...

    def compile(self, spec: GrammarSpec) -> Job: ...

    def release(self, job: Job) -> None: ...

    def prepare(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Waiting:
    request: GenerateRequest
    job: Job
    since: float


class GrammarDesk:
    """Hands requests to ``queue`` once their grammar is there; what cannot be compiled is refused.

    Times are seconds of one clock.  ``waiting_timeout``: how long a request waits here at most, None for as long as it takes.
    """

    def __init__(self, service: Compiler, queue: Queue, *, waiting_timeout: float | None = None) -> None:
        self._service = service
        self._queue = queue
        self._timeout = waiting_timeout
        self._waiting: dict[int, _Waiting] = {}
        self._ended: list[TokenOutput] = []
        self.wait_seconds = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def stats(self) -> CompileStats:
        return self._service.stats

    @property
    def vocabulary(self) -> Vocabulary:
        """What the grammars that are there know of the tokenizer."""
        return self._service.vocabulary

    def add(self, request: GenerateRequest, spec: GrammarSpec, now: float) -> None:
        """Queue a request at once if its grammar is known, else when it is.  Raises what ``queue`` does, and GrammarError."""
        try:
            specs.check(spec)
        except GrammarError:
            if not _may_fail(spec):
                raise
            self._queue(request, None, 0.0)
            return
        job = self._service.compile(spec)
        if job.done():
            self._service.release(job)
            self._queue(request, _result(job, spec), 0.0)
        else:
            self._waiting[request.uid] = _Waiting(request, job, now)

    def abort(self, uid: int) -> bool:
        """End a request that waits here; False when it does not."""
        if uid not in self._waiting:
            return False
        self._end(uid, Finish(FinishReason.ABORT, message="aborted"))
        return True

    def has_news(self, now: float) -> bool:
        """Whether ``tick`` has something to do."""
        return bool(self._ended) or any(waiting.job.done() or self._expired(waiting, now) for waiting in self._waiting.values())

    def tick(self, now: float) -> list[TokenOutput]:
        """Queue what is ready, and return the last outputs of requests that ended here."""
        for uid, waiting in list(self._waiting.items()):
            if waiting.job.done():
                self._admit(uid, waiting, now)
            elif self._expired(waiting, now):
                message = Deadlines(waiting=self._timeout).message(started=False)
                self._end(uid, Finish(FinishReason.ABORT, message=message, status=503))
        ended, self._ended = self._ended, []
        return ended

    def prepare(self) -> None:
        """Make, beside the caller, what the first grammar would wait for."""
        self._service.prepare()

    def close(self) -> None:
        self._service.close()

    def _admit(self, uid: int, waiting: _Waiting, now: float) -> None:
        waited = now - waiting.since
        self.wait_seconds += waited
        try:
            spec = waiting.request.sampling.grammar
            assert spec is not None
            self._queue(waiting.request, _result(waiting.job, spec), waited)
        except RadixrtError as error:
            self._end(uid, ended_by(error))
        else:
            del self._waiting[uid]
            self._service.release(waiting.job)

    def _end(self, uid: int, finish: Finish) -> None:
        self._service.release(self._waiting.pop(uid).job)
        self._ended.append(TokenOutput(uid, [], finish=finish))

    def _expired(self, waiting: _Waiting, now: float) -> bool:
        return self._timeout is not None and now - waiting.since > self._timeout


def _may_fail(spec: GrammarSpec) -> bool:
    """Whether a request goes without its constraint if that cannot be compiled: calls nobody requires, of tools that are not strict."""
    dormancy = spec.options.dormancy
    return spec.kind == "tool_calls" and dormancy is not None and bool(dormancy.trigger) and not spec.options.strict


def _result(job: Job, spec: GrammarSpec) -> Grammar | None:
    try:
        return job.result()
    except GrammarError as error:
        if _may_fail(spec):
            return None
        error.param = error.param or spec.param or None
        raise


def check_budget(grammar: Grammar, spec: GrammarSpec, max_new_tokens: int) -> None:
    """Raise GrammarError when no answer fits into the tokens there are, and it is not to be cut off."""
    shortest = grammar.min_tokens
    # Calls, and what comes after reasoning, are closed where that is possible, and cut off where it is not.
    if spec.options.truncate != "close" or spec.options.dormancy is not None or spec.kind == "tool_calls":
        return
    if shortest is not None and 0 < max_new_tokens < shortest:
        raise GrammarError(
            f"The shortest answer that the grammar allows has {shortest} tokens, and there is room for {max_new_tokens}.",
            param="max_tokens", code="max_tokens_too_small",
        )


def compile_service(model: ModelConfig, grammar: GrammarConfig, info: ModelInfo) -> CompileService:
    """Return the service for the tokenizer of a model, which is loaded with the first grammar."""

    def load() -> Vocabulary:
        files = resolve_model(
            model.model_path, tokenizer_path=model.tokenizer_path, revision=model.revision, load_format=model.load_format
        )
        return vocabulary_of(load_tokenizer(files.tokenizer), info)

    return CompileService(
        load, backend=grammar.grammar_backend, seconds=grammar.grammar_compile_timeout, cache_bytes=grammar.grammar_cache_bytes
    )


def vocabulary_of(tokenizer: Tokenizer, info: ModelInfo) -> Vocabulary:
    """What grammars know of a tokenizer, for logits of a model's width."""
    count = min(tokenizer.vocab_size, info.vocab_size)
    return Vocabulary(
        [None if tokenizer.is_special(token) else tokenizer.token_bytes(token) for token in range(count)],
        {token for token in (*info.eos_token_ids, *tokenizer.eos_token_ids) if token < info.vocab_size},
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False, allow_special=False),
        size=info.vocab_size,
    )
