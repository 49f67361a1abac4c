"""The compile service: a spec in, a job out that will be done without anybody waiting for it.

Each spec is compiled once however many ask (single flight by key), and remembered, grammars by their bytes and errors too.
What is surely cheap is compiled in a thread here, everything else in a process that is killed when it takes too long; what
that process found out is no evidence against the spec and is forgotten.  Jobs always end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import msgspec

from radixrt.errors import EngineStopped, GrammarError, Overloaded, RadixrtError
from radixrt.grammar.base import Grammar
from radixrt.grammar.compile.cache import ByteCache
from radixrt.grammar.compile.engines import FINAL, engine, guarded, prepare
from radixrt.grammar.compile.pool import Child, ChildFailed
from radixrt.grammar.select import ENGINES, engines
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec

logger = logging.getLogger(__name__)

# What a remembered error is taken to hold.
ERROR_BYTES = 1024
# What a cache entry holds besides its grammar.
ENTRY_BYTES = 512
# The engines that most grammars go to.
COMMON = ("llguidance", "fsm")

_encode = msgspec.msgpack.Encoder().encode


class Job:
    """A grammar that is being compiled, or is ready.  ``done`` and ``result`` never wait."""

    __slots__ = ("_future", "key", "spec", "started", "wanted")

    def __init__(self, spec: GrammarSpec, key: bytes, started: float) -> None:
        self.spec = spec
        self.key = key
        self.started = started
        self.wanted = 0  # requests that wait for it
        self._future: Future[Grammar] = Future()

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Grammar:
        """Return the grammar of a job that is done; raises GrammarError, Overloaded or EngineStopped."""
        error = self._future.exception(timeout=0)
        if isinstance(error, GrammarError):  # it is kept, and must not collect the traces of all who see it
            raise GrammarError(error.message, param=error.param, code=error.code, keyword=error.keyword, pointer=error.pointer)
        if isinstance(error, RadixrtError):
            raise type(error)(error.message)
        return self._future.result(timeout=0)

    def wait(self, timeout: float | None = None) -> Grammar:
        """Wait for the grammar: for tests and tools, never for a step loop."""
        self._future.exception(timeout)
        return self.result()

    def settle(self, outcome: Grammar | RadixrtError) -> None:
        if self._future.done():
            return
        if isinstance(outcome, RadixrtError):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)


@dataclass(slots=True)
class CompileStats:
    """What a service has done; only grows but for the last two, the numbers of now."""

    compiled: int = 0
    compile_seconds: float = 0.0
    refused: int = 0
    timed_out: int = 0
    cache_hits: int = 0
    pending: int = 0
    cached_bytes: int = 0


class CompileService:
    """Compiles specs for one tokenizer.

    Args:
        vocabulary: makes the vocabulary when the first spec comes; called once, in a thread of the service.
        backend: the engine that all specs it can serve go to, or ``auto``.
        seconds: processor time after which the process that compiles a spec is killed.
        max_child_bytes: how much memory a spec may take there.
        num_children: processes at most; max_queued: specs that wait for them, one more is Overloaded.
        cache_bytes: what is remembered.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        *,
        backend: str = "auto",
        seconds: float = 5.0,
        max_child_bytes: int = 1 << 30,
        num_children: int = 2,
        max_queued: int = 16,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.stats = CompileStats()
        self._load = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._backend = backend
        self._seconds = seconds
        self._max_child_bytes = max_child_bytes
        self._max_queued = max_queued + num_children
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._jobs: dict[bytes, Job] = {}
        self._cache: ByteCache[Grammar | GrammarError] = ByteCache(cache_bytes)
        self._near = ThreadPoolExecutor(2, thread_name_prefix="radixrt-grammar")
        self._far = ThreadPoolExecutor(num_children, thread_name_prefix="radixrt-compile")
        self._num_far = 0
        self._children: list[Child] = []
        self._own = threading.local()
        self._closed = False

    def compile(self, spec: GrammarSpec) -> Job:
        """Return the job of a spec, which may be done already.  Its caller counts as one that waits until ``release``.

        Raises GrammarError when no engine may serve the spec.
        """
        key, names = self._key(spec), engines(spec, self._backend)
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = Job(spec, key, time.monotonic())
                known = self._cache.get(key)
                if known is not None:
                    self.stats.cache_hits += 1
                    self._remember(key, known)
                    job.settle(known)
                elif self._closed:
                    job.settle(EngineStopped("the engine is stopping"))
                else:
                    self._jobs[key] = job
                    self._near.submit(self._run, self._compile_near, job, names)
            job.wanted += 1
            self.stats.pending = len(self._jobs)
        return job

    def release(self, job: Job) -> None:
        """Say that one who asked for a job waits no more; a job that nobody waits for is not sent to a process."""
        with self._lock:
            job.wanted -= 1

    def prepare(self) -> None:
        """Make what the first grammar would have to wait for, in a thread of the service: the vocabulary, and what engines make of it."""
        with self._lock:
            if not self._closed:
                self._near.submit(self._prepare)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, which is there once a grammar is."""
        assert self._vocabulary is not None
        return self._vocabulary

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children if child.pid is not None]

    def close(self) -> None:
        """End all processes and all jobs; idempotent."""
        with self._lock:
            self._closed = True
            jobs, self._jobs = list(self._jobs.values()), {}
            children = list(self._children)
        for job in jobs:
            job.settle(EngineStopped("the engine is stopping"))
        for child in children:
            child.close()
        self._near.shutdown(wait=False, cancel_futures=True)
        self._far.shutdown(wait=False, cancel_futures=True)

    def _key(self, spec: GrammarSpec) -> bytes:
        # Where it holds, how a text is cut off, and what its field was called is no business of the grammar.
        options = msgspec.structs.replace(spec.options, truncate="close", strict=True, dormancy=None)
        return sha256(_encode(msgspec.structs.replace(spec, options=options, param=""))).digest()

    def _run(self, attempt: Callable[[Job, tuple[str, ...]], Grammar | None], job: Job, names: tuple[str, ...]) -> None:
        """Compile, and settle the job whatever happens, unless it was handed on (None)."""
        outcome: Grammar | RadixrtError | None
        remember = True
        try:
            outcome = attempt(job, names)
        except ChildFailed as error:
            outcome = GrammarError(f"The grammar is too complex: compiling it {error}.", code="grammar_too_complex")
            remember = False
        except RadixrtError as error:
            outcome = error
        except Exception:
            logger.exception("the compile service failed")
            outcome, remember = GrammarError("The grammar could not be compiled."), False
        if outcome is not None:
            self._settle(job, outcome, remember=remember)

    def _compile_near(self, job: Job, names: tuple[str, ...]) -> Grammar | None:
        """Try engines here while the spec is cheap for them, then hand the job on."""
        vocabulary = self._words()
        refusal: GrammarError | None = None
        for i, name in enumerate(names):
            module = engine(name)
            if not guarded(partial(module.is_cheap, job.spec)):
                self._hand_on(job, names[i:], refusal)
                return None
            try:
                return guarded(partial(module.compile, job.spec, vocabulary))
            except GrammarError as error:
                if error.code in FINAL:
                    raise
                refusal = refusal or error
        assert refusal is not None, "there is an engine for every kind"
        raise refusal

    def _hand_on(self, job: Job, names: tuple[str, ...], refusal: GrammarError | None) -> None:
        with self._lock:
            if self._num_far >= self._max_queued:
                raise Overloaded(f"{self._num_far} grammars are waiting to be compiled, which is all that may")
            self._num_far += 1

        def attempt(job: Job, names: tuple[str, ...]) -> Grammar:
            try:
                return self._compile_far(job, names, refusal)
            finally:
                with self._lock:
                    self._num_far -= 1

        self._far.submit(self._run, attempt, job, names)

    def _compile_far(self, job: Job, names: tuple[str, ...], refusal: GrammarError | None) -> Grammar:
        """Try engines in this thread's process."""
        with self._lock:
            if job.wanted <= 0:
                self._jobs.pop(job.key, None)  # whoever asks from now on starts anew
                raise EngineStopped("nobody waits for the grammar any more")
        vocabulary = self._words()
        child: Child | None = getattr(self._own, "child", None)
        if child is None:
            child = self._own.child = Child(vocabulary, seconds=self._seconds, max_bytes=self._max_child_bytes)
            with self._lock:
                self._children.append(child)
                if self._closed:
                    child.close()
        for name in names:
            try:
                data = child.compile(ENGINES[name], job.spec)
                return guarded(partial(engine(name).from_bytes, data, vocabulary))
            except GrammarError as error:
                if error.code in FINAL:
                    raise
                refusal = refusal or error
        assert refusal is not None, "there is an engine for every kind"
        raise refusal

    def _prepare(self) -> None:
        try:
            vocabulary = self._words()
            for name in COMMON:
                prepare(ENGINES[name], vocabulary)
        except Exception:
            # Grammars are the ones to be refused for it.
            logger.exception("the engines of grammars could not be prepared")

    def _words(self) -> Vocabulary:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    def _settle(self, job: Job, outcome: Grammar | RadixrtError, *, remember: bool) -> None:
        with self._lock:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            stats = self.stats
            stats.compile_seconds += time.monotonic() - job.started
            stats.compiled += not isinstance(outcome, RadixrtError)
            stats.refused += isinstance(outcome, GrammarError)
            stats.timed_out += isinstance(outcome, GrammarError) and not remember
            if remember and isinstance(outcome, GrammarError):
                self._remember(job.key, outcome.with_traceback(None))
            elif not isinstance(outcome, RadixrtError):
                self._remember(job.key, outcome)
            stats.pending = len(self._jobs)
        job.settle(outcome)

    def _remember(self, key: bytes, known: Grammar | GrammarError) -> None:
        size = len(known.message) + ERROR_BYTES if isinstance(known, GrammarError) else known.memory_bytes + ENTRY_BYTES
        self._cache.put(key, known, size)
        self.stats.cached_bytes = self._cache.num_bytes
