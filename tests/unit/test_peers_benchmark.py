"""The peers suite: exact and cold prompts, answers read from stamped bytes, and the shapes and order of what is asked."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import figures, report
from peers.client import Answer, Server, read_stream
from peers.exchange import BadResponse, Response, read_response
from peers.machine import MemoryProbe, Processes, Use
from peers.session import Session
from peers.suite import Plan, Progress, Result, Suite
from peers.words import Vocabulary, Words
from peers.workloads import ORDER_SCHEMA, WORKLOADS, is_order

from radixrt.errors import ConfigError
from radixrt.text.toy_tokenizer import ToyTokenizer

TOY = Vocabulary(ToyTokenizer())
ORDER = {"customer": "Ada", "city": "Lima", "quantity": 3, "priority": "low", "items": ["kettle"]}


class Recorded:
    """A server that says something of its own to each request, and keeps what it was asked and how much at a time."""

    def __init__(self, base_url: str = "http://host:1", label: str = "one") -> None:
        self.base_url, self.label = base_url, label
        self.prompts: list[str] = []
        self.lengths: list[int] = []
        self.conversations: list[list[dict[str, str]]] = []
        self.schemas: list[Any] = []
        self.open = self.most_open = 0

    async def complete(self, prompt: str, max_tokens: int, kind: str) -> Answer:
        self.prompts.append(prompt)
        return await self._answer(TOY.count(prompt), max_tokens, kind)

    async def chat(self, messages: Sequence[dict[str, str]], max_tokens: int, kind: str, *, schema: Any = None, to_end: bool) -> Answer:
        self.conversations.append([dict(message) for message in messages])
        self.schemas.append(schema)
        return await self._answer(sum(TOY.count(message["content"]) for message in messages), max_tokens, kind)

    async def _answer(self, num_prompt: int, max_tokens: int, kind: str) -> Answer:
        self.lengths.append(max_tokens)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        text = f"<{len(self.lengths)}>"
        return Answer(kind, 0.0, 2.0, [1.0, 2.0], text, num_prompt, max_tokens, 0)


def play(name: str, server: Recorded, *, scale: float = 1.0, seed: str = "0", concurrency: int | None = None) -> Session:
    workload = WORKLOADS[name]
    session = Session(server, Words(TOY, seed), concurrency or workload.concurrency, scale)  # type: ignore[arg-type]
    asyncio.run(workload.run(session))
    return session


@given(num_tokens=st.integers(1, 300), seed=st.text(max_size=5))
def test_a_prompt_has_exactly_its_tokens(num_tokens: int, seed: str) -> None:
    words = Words(TOY, seed)
    assert TOY.count(words.prompt(num_tokens)) == num_tokens
    assert TOY.count(words.fill("rules:", num_tokens)) == max(6, num_tokens)
    assert Words(TOY, seed).prompt(num_tokens) == Words(TOY, seed).prompt(num_tokens)


@pytest.mark.model
def test_prompts_are_exact_in_the_tokens_of_a_real_tokenizer() -> None:
    from radixrt.text.tokenizer import load_tokenizer
    from radixrt.weights.resolve import resolve_model

    vocabulary = Vocabulary(load_tokenizer(resolve_model("smollm2-135m-instruct").tokenizer))
    assert len(vocabulary.words) == 1500
    for num_tokens in (1, 2, 33, 2048):
        words = Words(vocabulary, str(num_tokens))
        prompt = words.prompt(num_tokens)
        assert vocabulary.count(prompt) == num_tokens
        assert vocabulary.count(prompt + words.more(7)) == num_tokens + 7
        assert vocabulary.count(words.fill("Two words:", 50)) == 50


def test_a_tokenizer_without_such_words_is_refused() -> None:
    class Pairs(ToyTokenizer):
        def encode(self, text: str, **_: bool) -> list[int]:
            return [0] * (-(-len(text) // 2))

    with pytest.raises(ConfigError, match="exact"):
        Vocabulary(Pairs())


def chunked(parts: Sequence[bytes]) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@given(
    body=st.lists(st.sampled_from([b"data: a", b"\n", b"\r\n", b"\xe2\x82\xac", b"x" * 20]), max_size=12).map(b"".join),
    chunk_cuts=st.sets(st.integers(1, 80)),
    piece_cuts=st.sets(st.integers(1, 400)),
)
def test_lines_carry_the_time_at_which_their_end_came_however_the_stream_is_cut(
    body: bytes, chunk_cuts: set[int], piece_cuts: set[int]
) -> None:
    chunks = [part for part in cut(body, chunk_cuts) if part]
    raw = chunked(chunks)
    pieces = [(float(at), part) for at, part in enumerate(cut(raw, piece_cuts))]
    response = read_response(pieces)
    assert (response.status, response.body) == (200, body)
    expected, start = [], 0
    for line in body.split(b"\n"):
        whole = next(n for n in range(len(chunks) + 1) if len(b"".join(chunks[:n])) >= start + len(line))
        bytes_needed = len(chunked(chunks[:whole])) - len(b"\r\n0\r\n\r\n")
        needed = next(n for n in range(1, len(pieces) + 1) if len(b"".join(part for _, part in pieces[:n])) >= bytes_needed)
        expected += [(needed - 1.0, line.rstrip(b"\r"))] if line else []
        start += len(line) + 1
    assert list(response.lines()) == expected


def test_each_event_has_the_time_of_its_own_piece() -> None:
    events = [b"data: one\n\n", b"data: two\n\n", b"data: three\n\n"]
    whole = chunked(events)
    head = whole.index(b"data: one") - 4
    pieces, at = [(0.0, whole[:head])], head
    for when, event in enumerate(events, 1):
        size = len(b"%x\r\n\r\n" % len(event)) + len(event)
        pieces.append((float(when), whole[at : at + size]))
        at += size
    pieces.append((9.0, whole[at:]))
    assert list(read_response(pieces).lines()) == [(1.0, b"data: one"), (2.0, b"data: two"), (3.0, b"data: three")]


def cut(data: bytes, places: set[int]) -> list[bytes]:
    ends = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def test_a_response_that_breaks_off_is_no_response() -> None:
    whole = chunked([b"data: one\n\n", b"data: [DONE]\n\n"])
    for length in range(len(whole) - 4):
        with pytest.raises(BadResponse):
            read_response([(0.0, whole[:length])])
    plain = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"
    assert read_response([(0.0, plain)]).body == b"gone"
    with pytest.raises(BadResponse, match="breaks off"):
        read_response([(0.0, plain[:-1])])


def stream(*events: Any, done: bool = True) -> Response:
    lines = [b"data: " + json.dumps(event).encode() for event in events] + ([b"data: [DONE]"] if done else [])
    body, arrivals = b"", []
    for at, line in enumerate(lines):
        body += line + b"\n\n"
        arrivals.append((len(body), float(at)))
    return Response(200, body, arrivals)


def read(response: Response) -> Answer:
    answer = Answer("", 0.0)
    read_stream(response, answer)
    return answer


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}


def test_text_times_and_usage_are_read_from_a_stream() -> None:
    role = {"choices": [{"delta": {"role": "assistant"}}]}
    completions = [{"choices": [{"text": text, "finish_reason": finish}]} for text, finish in (("ab", None), ("", None), ("c", "length"))]
    thought = {"choices": [{"delta": {"reasoning_content": "c"}, "finish_reason": "length"}]}
    chats = [{"choices": [{"delta": {"content": "ab"}}]}, role, thought]
    for events in (completions, chats):
        answer = read(stream(*events, USAGE))
        assert (answer.text, answer.finish, answer.num_prompt, answer.num_output, answer.cached) == ("abc", "length", 9, 5, 4)
        assert answer.times == [0.0, 2.0]
        assert not answer.error
    without_usage = read(stream(*completions))
    assert (without_usage.num_output, without_usage.num_prompt, without_usage.cached) == (2, None, None)
    assert read(stream(*completions, {"timings": {"cache_n": 3}})).cached == 3


def test_what_goes_wrong_in_a_stream_is_an_error_of_the_answer() -> None:
    assert read(Response(503, b"busy")).error == "503: busy"
    assert "no room" in read(stream({"error": {"message": "no room"}})).error
    assert "[DONE]" in read(stream(USAGE, done=False)).error
    with pytest.raises(BadResponse):
        read(Response(200, b"data: {\n", [(8, 0.0)]))
    with pytest.raises(BadResponse):
        read(stream({"usage": {"prompt_tokens": 1}}))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", ""])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Server(url)


def test_a_server_that_is_not_there_is_an_error_and_not_an_exception() -> None:
    server = Server("http://127.0.0.1:9", timeout=5)
    answer = asyncio.run(server.complete("a", 1, ""))
    assert answer.error and answer.ended >= answer.sent
    with pytest.raises(ConfigError, match="no model"):
        asyncio.run(server.find_model())


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("W1", 32, 256), ("W2", 2048, 1), ("W2b", 7000, 1)]
)
def test_single_requests_have_their_lengths(name: str, prompt: int, output: int) -> None:
    for scale in (1.0, 0.25):
        server = Recorded()
        session = play(name, server, scale=scale)
        assert [TOY.count(text) for text in server.prompts] == [round(prompt * scale)]
        assert server.lengths == [max(1, round(output * scale))]
        assert len(session.answers) == 1 and not session.inexact


def test_a_server_that_counts_other_tokens_is_noticed() -> None:
    class Doubled(Recorded):
        async def _answer(self, num_prompt: int, max_tokens: int, kind: str) -> Answer:
            return await super()._answer(2 * num_prompt, max_tokens, kind)

    assert play("W3", Doubled()).inexact == 64


OPEN = [("W3", 64, 16), ("W4", 128, 8), ("W5", 84, 16), ("W6", 24, 8), ("W7", 96, 8)]


@pytest.mark.parametrize(("name", "requests", "open_at_once"), OPEN)
def test_as_many_are_open_as_the_workload_says(name: str, requests: int, open_at_once: int) -> None:
    server = Recorded()
    session = play(name, server, scale=0.05)
    assert len(session.answers) == len(server.lengths) == requests
    assert server.most_open == open_at_once
    narrow = Recorded()
    play(name, narrow, scale=0.05, concurrency=3)
    assert narrow.most_open == 3


def test_streams_of_w3_have_between_112_and_144_tokens() -> None:
    server = Recorded()
    play("W3", server)
    counts = [TOY.count(prompt) for prompt in server.prompts]
    assert min(counts) >= 112 and max(counts) <= 144 and len(set(counts)) > 10
    assert set(server.lengths) == {128}


def test_agents_share_a_preamble_and_their_conversations_grow_by_what_was_said() -> None:
    server = Recorded()
    session = play("W4", server)
    systems = {conversation[0]["content"] for conversation in server.conversations}
    assert [TOY.count(system) for system in systems] == [2980]
    assert Counter(answer.kind for answer in session.answers) == {f"turn {turn}": 32 for turn in (1, 2, 3, 4)}
    assert Counter(len(conversation) for conversation in server.conversations) == {2: 32, 4: 32, 6: 32, 8: 32}
    said = {answer.text for answer in session.answers}
    for conversation in server.conversations:
        if len(conversation) > 2:
            before = next(other for other in server.conversations if other == conversation[:-2])
            assert before is not conversation
            assert conversation[-2]["role"] == "assistant" and conversation[-2]["content"] in said


def test_each_thought_goes_on_from_what_its_parent_said() -> None:
    server = Recorded()
    session = play("W5", server)
    assert Counter(answer.kind for answer in session.answers) == {"level 1": 4, "level 2": 16, "level 3": 64}
    by_length = sorted(server.prompts, key=len)
    texts = {answer.text for answer in session.answers}
    assert TOY.count(by_length[0]) == 1503
    for prompt in by_length[4:]:
        said = prompt[: prompt.rindex(">") + 1]
        parent = said[: said.rindex("<")]
        assert parent in server.prompts and said[len(parent) :] in texts
    assert len(set(server.prompts)) == 84


def test_extractions_are_the_same_with_and_without_the_schema() -> None:
    free, bound = Recorded(), Recorded()
    play("W6", bound)
    play("W6n", free)
    assert bound.conversations == free.conversations
    assert bound.schemas == [ORDER_SCHEMA] * 24 and free.schemas == [None] * 24
    assert TOY.count(bound.conversations[0][0]["content"]) == 800
    assert len({conversation[1]["content"] for conversation in bound.conversations}) == 24


def test_each_preamble_of_w7_is_asked_four_times_in_random_order() -> None:
    server = Recorded()
    play("W7", server)
    starts = [prompt[:1500] for prompt in server.prompts]
    assert set(Counter(starts).values()) == {4} and len(set(starts)) == 24
    assert starts != sorted(starts, key=starts.index)
    assert len(set(server.prompts)) == 96


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True), ({"quantity": 9999}, True), ({"items": ["a"] * 4}, True), ({"quantity": 10000}, False), ({"quantity": True}, False),
        ({"quantity": "3"}, False), ({"items": []}, False), ({"items": ["a"] * 5}, False), ({"items": "kettle"}, False),
        ({"priority": "urgent"}, False), ({"customer": "x" * 33}, False), ({"city": 1}, False), ({"more": 1}, False),
    ],
)  # fmt: skip
def test_orders_are_checked_against_the_schema(change: dict[str, Any], good: bool) -> None:
    assert is_order(json.dumps(ORDER | change)) is good
    assert not is_order(json.dumps(ORDER | change)[:-1])
    assert not is_order(json.dumps([ORDER | change]))


@given(values=st.lists(st.floats(0, 1e6), min_size=1), share=st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[float], share: int) -> None:
    found = figures.percentile(values, share)
    assert found == min(value for value in values if 100 * sum(other <= value for other in values) >= share * len(values))


def test_figures_of_a_repetition() -> None:
    answers = [
        Answer("a", 0.0, 5.0, [1.0, 2.0, 5.0], "abc", 10, 5, 4),
        Answer("b", 1.0, 4.0, [4.0], "d", 30, 1, 16),
        Answer("a", 0.0, 9.0, error="gone"),
    ]
    seen = figures.of_answers(WORKLOADS["W3"], answers, 10.0)
    assert seen.items() >= {
        "requests": 3, "errors": 1, "output_tokens": 6, "output_tokens_s": 0.6, "requests_s": 0.2, "ttft_p50_ms": 1000, "ttft_p99_ms": 3000,
        "ttft_p50_ms a": 1000, "ttft_p50_ms b": 3000, "itl_p50_ms": 1000, "itl_p99_ms": 3000, "tpot_p50_ms": 1000, "decode_tokens_s": 1.0,
        "prompt_tokens": 40, "cached_tokens": 20, "cached_percent": 50.0, "latency_p50_s": 3.0,
    }.items()  # fmt: skip
    at_once = figures.of_answers(WORKLOADS["W1"], [Answer("", 0.0, 5.0, [5.0], "abc", 10, 5)], 5.0)
    assert "decode_tokens_s" not in at_once and "cached_percent" not in at_once
    only_errors = figures.of_answers(WORKLOADS["W1"], answers[2:], 9.0)
    assert only_errors == {"seconds": 9.0, "requests": 1, "errors": 1, "inexact_prompts": 0}
    valid = figures.of_answers(WORKLOADS["W6"], [Answer("", 0, 1, [1], json.dumps(ORDER)), Answer("", 0, 1, [1], "no")], 1.0)
    assert valid["valid_percent"] == 50


def test_floor_and_noise() -> None:
    assert figures.floor_share({"decode_tokens_s": 100.0}, 100_000_000, 40.0) == {"floor_tokens_s": 400.0, "floor_percent": 25.0}
    assert figures.floor_share({}, 1, 1.0) == {}
    before, after = Use(1.0, 2.0, 10.0, 0, 0), Use(3.0, 2.5, 15.0, 2**21, 2**20)
    assert figures.of_machine(before, after, 5.0) == {
        "client_cpu_s": 0.5, "server_cpu_s": 2.0, "server_rss_mb": 2.0, "server_pss_mb": 1.0, "other_cores": 0.5,
    }  # fmt: skip
    assert "other_cores" not in figures.of_machine(before, before, 5.0)
    assert figures.medians([{"a": 1, "errors": 1}, {"a": 5, "errors": 0}, {"a": 2, "b": 7, "errors": 2}]) == {"a": 2, "b": 7, "errors": 3}


def run_suite(servers: Sequence[Recorded], progress: Progress, **plan: Any) -> Suite:
    suite = Suite(servers, TOY, Plan(**plan), progress)  # type: ignore[arg-type]
    asyncio.run(suite.run())
    return suite


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.suite.MemoryProbe", lambda: MemoryProbe(1 << 16))


def test_repetitions_take_turns_and_every_server_meets_the_same_cold_prompts() -> None:
    one, two = Recorded(), Recorded("http://host:2", "two")
    begun: list[tuple[str, str, str]] = []
    progress = Progress(lambda *what: begun.append(what))
    suite = run_suite([one, two], progress, workloads=[WORKLOADS["W1"], WORKLOADS["W2"]], repeats=2, scale=0.5, model_bytes=10**6)
    turns = [("one", "warm-up"), ("two", "warm-up"), ("one", "1/2"), ("two", "1/2"), ("one", "2/2"), ("two", "2/2")]
    assert begun == [(name, label, part) for name in ("W1", "W2") for label, part in turns]
    assert one.prompts == two.prompts and one.lengths == two.lengths
    assert [TOY.count(prompt) for prompt in one.prompts] == [2, 16, 16, 102, 1024, 1024]
    assert one.lengths == [13, 128, 128, 1, 1, 1]
    assert len({prompt[:16] for prompt in one.prompts}) == len(one.prompts)
    assert [(result.workload.name, result.label, len(result.runs)) for result in suite.results] == [
        ("W1", "one", 2), ("W1", "two", 2), ("W2", "one", 2), ("W2", "two", 2),
    ]  # fmt: skip
    first = suite.results[0].median
    assert first["floor_percent"] == pytest.approx(100 * first["decode_tokens_s"] / first["floor_tokens_s"], rel=0.3)
    assert first["memory_gb_s"] > 0


def test_a_server_given_twice_and_another_seed_are_cold_too() -> None:
    server = Recorded()
    run_suite([server, server], Progress(), workloads=[WORKLOADS["W2"]], repeats=2, warm_ups=0)
    run_suite([server], Progress(), workloads=[WORKLOADS["W2"]], repeats=2, warm_ups=0, seed="1")
    assert len({prompt[:20] for prompt in server.prompts}) == 6
    again = Recorded()
    run_suite([again], Progress(), workloads=[WORKLOADS["W2"]], repeats=2, warm_ups=0, seed="1")
    assert again.prompts == server.prompts[-2:]


def test_figures_of_what_was_done_are_there_when_the_suite_is_stopped() -> None:
    class Stopping(Recorded):
        async def complete(self, prompt: str, max_tokens: int, kind: str) -> Answer:
            if len(self.prompts) == 2:
                raise asyncio.CancelledError
            return await super().complete(prompt, max_tokens, kind)

    suite = Suite([Stopping()], TOY, Plan(workloads=[WORKLOADS["W1"]], repeats=5, warm_ups=0), Progress())  # type: ignore[list-item]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(suite.run())
    assert [len(result.runs) for result in suite.results] == [2]


@pytest.mark.parametrize("fails", [False, True])
def test_the_other_servers_stand_still_during_a_turn_and_go_on_after_it(fails: bool) -> None:
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    seen: list[tuple[bool, ...]] = []

    def stopped() -> tuple[bool, ...]:
        return tuple(psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED for sleeper in sleepers)

    class Watched(Recorded):
        async def complete(self, prompt: str, max_tokens: int, kind: str) -> Answer:
            deadline = time.monotonic() + 5  # a signal takes its time
            while not any(stopped()) and time.monotonic() < deadline:
                await asyncio.sleep(0.001)
            seen.append(stopped())
            if fails:
                raise asyncio.CancelledError
            return await super().complete(prompt, max_tokens, kind)

    servers = [Watched(), Watched("http://host:2", "two")]
    plan = Plan(workloads=[WORKLOADS["W2"]], repeats=1, one_at_a_time=True)
    suite = Suite(servers, TOY, plan, Progress(), [sleeper.pid for sleeper in sleepers])  # type: ignore[arg-type]
    try:
        with pytest.raises(asyncio.CancelledError) if fails else nullcontext():
            asyncio.run(suite.run())
        assert seen == ([(False, True)] if fails else [(False, True), (True, False)] * 2)
        deadline = time.monotonic() + 5
        while any(stopped()) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not any(stopped())
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def result(name: str, label: str, *runs: dict[str, float], error: str = "") -> Result:
    always = {"seconds": 1.0, "requests": 1, "errors": 0, "inexact_prompts": 0}
    return Result(WORKLOADS[name], label, [always | run for run in runs], error)


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (result("W1", "x", {"decode_tokens_s": 3}), None),
        (result("W1", "x", {"errors": 1}, error="503: busy"), "503: busy"),
        (result("W1", "x", {}), "does not stream"),
        (result("W2", "x", {"prompt_tokens": 2048, "cached_tokens": 500, "cached_percent": 24}), "cold"),
        (result("W4", "x", {"prompt_tokens": 2048, "cached_tokens": 500, "cached_percent": 24}), None),
        (result("W2", "x", {"inexact_prompts": 1}), "other tokens"),
        (result("W2", "x", {"other_cores": 1.5}, {"other_cores": 0.5}), "0.5 to 1.5 cores"),
    ],
)  # fmt: skip
def test_what_a_reader_must_know_is_said(of: Result, says: str | None) -> None:
    said = report.remarks([of])
    assert len(said) == (says is not None)
    assert says is None or says in said[0]


def test_a_repetition_with_failures_has_no_say_in_the_figure() -> None:
    assert result("W2", "x", {"seconds": 0.1, "errors": 1}, {"seconds": 4.0}, {"seconds": 2.0}).values == [4.0, 2.0]


def test_table_json_and_picture(tmp_path: Path) -> None:
    from peers import pictures

    results = [
        result("W1", "x", {"decode_tokens_s": 3.0, "floor_tokens_s": 9.0}, {"decode_tokens_s": 5.0, "floor_tokens_s": 9.0}),
        result("W1", "y", {"errors": 1}),
        result("W2", "x", {"seconds": 2.0}),
    ]
    assert report.table(results, "t").row_count == report.costs(results, "t").row_count == 3
    report.write_json(tmp_path / "deep" / "out.json", results, seed="7")
    read_back = json.loads((tmp_path / "deep" / "out.json").read_text())
    assert read_back["seed"] == "7" and read_back["results"] == [result.to_dict() for result in results]
    assert read_back["results"][0]["median"]["decode_tokens_s"] == 4.0
    pictures.comparison(results, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "W1 x #2" in report.line(results[0]) and "errors 1" in report.line(results[1])


def test_the_processes_of_a_server_elsewhere_are_nobodys() -> None:
    assert Processes("http://192.0.2.1:80").pid is None
    here = Processes("http://192.0.2.1:80", pid=1).use()
    assert here.all_cpu > 0
