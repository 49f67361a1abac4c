"""The compile service: every job ends, each spec is compiled once, and nothing that explodes takes the process with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fake_engine
import psutil
import pytest

from radixrt.errors import EngineStopped, GrammarError, Overloaded
from radixrt.grammar import select
from radixrt.grammar.compile import CompileService, Job
from radixrt.grammar.compile.cache import ByteCache
from radixrt.grammar.compile.child import longest_matches
from radixrt.grammar.compile.pool import NICENESS
from radixrt.grammar.compile.service import COMMON, ENTRY_BYTES
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarOptions, GrammarSpec

WORDS = Vocabulary([b"a", b"b", b"ab", b"abc", None], [4], lambda text: [0])
WAIT = 60.0


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "ENGINES", {})
    for name in ("fsm", "llguidance", "xgrammar"):
        monkeypatch.setitem(select.ENGINES, name, "fake_engine")
    for module in ("engines", "service"):
        monkeypatch.setattr(f"radixrt.grammar.compile.{module}.ENGINES", select.ENGINES)
    fake_engine.compiled_here.clear()
    fake_engine.prepared.clear()
    monkeypatch.setenv("PYTHONPATH", str(Path(fake_engine.__file__).parent))  # for the children


@pytest.fixture
def service() -> Iterator[CompileService]:
    service = CompileService(lambda: WORDS, seconds=1.0, num_children=1, max_queued=2, max_child_bytes=512 << 20)
    yield service
    service.close()


def spec(text: str, **options: object) -> GrammarSpec:
    return GrammarSpec("regex", text, GrammarOptions(**options))  # type: ignore[arg-type]


def refusal(job: Job) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        job.wait(WAIT)
    return caught.value


def test_what_is_cheap_is_compiled_here_and_everything_else_in_a_process(service: CompileService) -> None:
    near = service.compile(spec("cheap ok")).wait(WAIT)
    far = service.compile(spec("ok")).wait(WAIT)
    assert isinstance(near, fake_engine.FakeGrammar) and isinstance(far, fake_engine.FakeGrammar)
    assert near.pid == os.getpid() and far.pid == service.pids[0] != os.getpid()
    assert far.vocabulary_size == WORDS.size


def test_a_process_is_nice(service: CompileService) -> None:
    service.compile(spec("ok")).wait(WAIT)
    assert os.getpriority(os.PRIO_PROCESS, service.pids[0]) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)


def test_a_process_that_died_between_two_specs_costs_neither(service: CompileService) -> None:
    service.compile(spec("ok")).wait(WAIT)
    died = psutil.Process(service.pids[0])
    died.kill()
    while died.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    service.compile(spec("ok also")).wait(WAIT)
    assert service.pids != [died.pid]


def test_a_spec_is_compiled_once_however_many_ask(service: CompileService) -> None:
    jobs = [service.compile(spec("cheap sleep 0.2")) for _ in range(5)]
    assert len({id(job) for job in jobs}) == 1
    first = jobs[0].wait(WAIT)
    again = service.compile(spec("cheap sleep 0.2", truncate="hard"))
    assert again.done() and again.result() is first
    assert fake_engine.compiled_here == ["cheap sleep 0.2"]
    assert service.compile(spec("cheap sleep 0.2", whitespace="compact")) is not again


def test_errors_are_remembered_with_what_they_say(service: CompileService) -> None:
    for _ in range(2):
        error = refusal(service.compile(spec("cheap error")))
        assert (error.message, error.keyword, error.pointer) == ("as asked", "type", "/a")
    far = refusal(service.compile(spec("error")))
    assert (far.message, far.keyword, far.pointer) == ("as asked", "type", "/a")
    assert service.compile(spec("error")).done()
    # Both engines that may serve the kind were asked, once.
    assert fake_engine.compiled_here == ["cheap error"] * 2


def test_what_is_malformed_is_no_other_engines_to_read(service: CompileService) -> None:
    assert refusal(service.compile(spec("cheap malformed"))).code == "malformed_grammar"
    assert fake_engine.compiled_here == ["cheap malformed"]
    assert refusal(service.compile(spec("malformed"))).code == "malformed_grammar"


def test_a_bug_of_an_engine_is_a_refusal(service: CompileService) -> None:
    assert "could not be compiled" in refusal(service.compile(spec("cheap bug"))).message
    assert "could not be compiled" in refusal(service.compile(spec("bug"))).message


@pytest.mark.parametrize("bomb", ["spin", "sleep 100", "eat", "crash"])
def test_a_bomb_costs_a_process_and_is_forgotten(service: CompileService, bomb: str) -> None:
    service.compile(spec("ok")).wait(WAIT)
    before = service.pids
    started = time.monotonic()
    error = refusal(service.compile(spec(bomb)))
    assert error.code == "grammar_too_complex" or "memory" in error.message
    assert time.monotonic() - started < 30.0
    if bomb != "eat":  # Python tells of it, and lives on
        assert service.pids == [] and not service.compile(spec(bomb)).done()
        with pytest.raises(OSError, match="No such process"):
            os.kill(before[0], 0)
    assert isinstance(service.compile(spec("ok 2")).wait(WAIT), fake_engine.FakeGrammar)


def test_a_bomb_holds_up_nothing_that_is_cheap(service: CompileService) -> None:
    bomb = service.compile(spec("sleep 100"))
    for i in range(20):
        service.compile(spec(f"cheap ok {i}")).wait(WAIT)
    assert not bomb.done()
    refusal(bomb)


def test_a_full_queue_refuses_for_now(service: CompileService) -> None:
    jobs = [service.compile(spec(f"sleep 10{i}")) for i in range(4)]
    deadline = time.monotonic() + WAIT
    while not any(job.done() for job in jobs):  # two threads ask for places, so any of the four may come too late
        assert time.monotonic() < deadline
        time.sleep(0.001)
    with pytest.raises(Overloaded):
        next(job for job in jobs if job.done()).result()
    service.close()
    for job in jobs:
        with pytest.raises((EngineStopped, GrammarError, Overloaded)):
            job.wait(WAIT)


def test_what_nobody_waits_for_is_not_begun(service: CompileService) -> None:
    first, second = service.compile(spec("sleep 0.5")), service.compile(spec("sleep 0.6"))
    service.release(second)
    first.wait(WAIT)
    with pytest.raises(EngineStopped):
        second.wait(WAIT)
    assert isinstance(service.compile(spec("sleep 0.6")).wait(WAIT), fake_engine.FakeGrammar)


def test_closing_ends_every_job_and_process(service: CompileService) -> None:
    service.compile(spec("ok")).wait(WAIT)
    (pid,) = service.pids
    jobs = [service.compile(spec("sleep 100")), service.compile(spec("sleep 101"))]
    service.close()
    for job in [*jobs, service.compile(spec("cheap new"))]:
        with pytest.raises((EngineStopped, GrammarError)):
            job.wait(WAIT)
    with pytest.raises(OSError, match="No such process"):
        os.kill(pid, 0)


def test_memory_stays_flat_over_many_specs() -> None:
    service = CompileService(lambda: WORDS, cache_bytes=50 * (fake_engine.SIZE + ENTRY_BYTES))
    try:
        for i in range(500):
            service.compile(spec(f"cheap ok {i}")).wait(WAIT)
            assert service.stats.cached_bytes <= 50 * (fake_engine.SIZE + ENTRY_BYTES)
        assert service.stats.compiled == 500 and service.stats.pending == 0
        assert service.compile(spec("cheap ok 499")).done() and not service.compile(spec("cheap ok 1")).done()
    finally:
        service.close()


def test_the_vocabulary_is_made_once_and_beside_whoever_asks() -> None:
    made: list[str] = []

    def load() -> Vocabulary:
        time.sleep(0.2)
        made.append(threading.current_thread().name)
        return WORDS

    service = CompileService(load)
    try:
        jobs = [service.compile(spec(f"cheap ok {i}")) for i in range(3)]
        assert not made
        for job in jobs:
            job.wait(WAIT)
        assert len(made) == 1 and made[0] != threading.current_thread().name
    finally:
        service.close()


def test_what_grammars_share_is_made_before_the_first_when_there_is_time(caplog: pytest.LogCaptureFixture) -> None:
    made: list[str] = []
    begin = threading.Event()

    def load() -> Vocabulary:
        begin.wait(WAIT)
        made.append(threading.current_thread().name)
        if len(made) == 1:
            raise RuntimeError("not yet")
        return WORDS

    service = CompileService(load)
    try:
        service.prepare()
        assert not made
        begin.set()
        deadline = time.monotonic() + WAIT
        while "could not be prepared" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == 1 and fake_engine.prepared == []
        service.prepare()
        while len(fake_engine.prepared) < len(COMMON) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert fake_engine.prepared == [WORDS] * len(COMMON)
        service.compile(spec("cheap ok")).wait(WAIT)
        assert len(made) == 2
    finally:
        service.close()
    service.prepare()


def test_a_byte_cache_forgets_what_was_used_longest_ago() -> None:
    cache: ByteCache[str] = ByteCache(10)
    cache.put(b"a", "a", 4)
    cache.put(b"b", "b", 4)
    assert cache.get(b"a") == "a"
    cache.put(b"c", "c", 4)
    assert (cache.get(b"a"), cache.get(b"b"), cache.get(b"c")) == ("a", None, "c")
    cache.put(b"a", "a", 9)
    assert cache.get(b"c") is None and cache.num_bytes == 9
    cache.put(b"d", "d", 11)
    assert cache.get(b"d") is None and cache.num_bytes == 9


@pytest.mark.parametrize(("text", "tokens"), [(b"abcab", [3, 2]), (b"ba", [1, 0]), (b"xa", [0]), (b"", [])])
def test_longest_matches(text: bytes, tokens: list[int]) -> None:
    assert longest_matches(WORDS, text) == tokens
