"""Writers of event streams, the response that sends them, and the connection's bounds; no sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from radixrt.errors import EngineStopped
from radixrt.limits import DEFAULTS, Limits
from radixrt.server import aside, connection, sse
from radixrt.server.auth import NameAnswers
from radixrt.server.wire import ChatWriter, CompletionWriter, TokenNames, usage_object
from radixrt.text.tokenizer import load_tokenizer
from radixrt.types import Finish, FinishReason, RequestOutput, TokenLogprob, Usage

NAMES = TokenNames(load_tokenizer(None))
STOP = Finish(FinishReason.STOP, matched="x")


def output(text: str = "", index: int = 0, finish: Finish | None = None, logprobs: list[TokenLogprob] | None = None) -> RequestOutput:
    return RequestOutput(
        rid="r", index=index, text_delta=text, token_ids_delta=[], usage=Usage(3, 2, 1), finish=finish, logprobs_delta=logprobs
    )


def decoded(stream: bytes) -> list[Any]:
    frames = stream.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [frame[6:] if frame == "data: [DONE]" else json.loads(frame[6:]) for frame in frames]


def test_chat_chunks_begin_with_the_role_and_end_once() -> None:
    writer = ChatWriter("id", 1, 'a "model"', NAMES, num_choices=2, include_usage=True)
    stream = writer.start() + writer.push(0, output('he"y')) + writer.push(0, output("", 1)) + writer.push(0, output("é\n", 1, STOP))
    chunks = decoded(stream + writer.push(0, output(finish=STOP)) + writer.end())
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {("id", "chat.completion.chunk", 'a "model"')}
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["delta"] for choice in choices[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert [(choice["index"], choice["delta"], choice["finish_reason"]) for choice in choices[2:]] == [
        (0, {"content": 'he"y'}, None), (1, {"content": "é\n"}, None), (1, {}, "stop"), (0, {}, "stop"),
    ]  # fmt: skip
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}
    }  # fmt: skip


def test_unasked_usage_adds_no_chunk() -> None:
    writer = ChatWriter("id", 1, "m", NAMES, num_choices=1, include_usage=False)
    writer.push(0, output(finish=STOP))
    assert writer.end() == b""


@pytest.mark.parametrize("kind", [ChatWriter, CompletionWriter])
def test_continuous_usage_is_in_every_chunk_and_is_that_of_its_choice(kind: type[ChatWriter] | type[CompletionWriter]) -> None:
    def stream(usage: list[int] | None) -> list[Any]:
        writer = kind("id", 1, "m", NAMES, num_choices=2, include_usage=True, continuous_usage=usage)
        events = [writer.push(0, output("a", i, finish)) for finish in (None, STOP) for i in (0, 1)]
        return decoded(writer.start() + b"".join(events) + writer.end())

    *chunks, last = stream([7])
    *plain, plain_last = stream(None)
    assert [{key: value for key, value in chunk.items() if key != "usage"} for chunk in chunks] == plain
    assert last == plain_last and last["usage"]["completion_tokens"] == 4
    begun = [chunk["usage"] for chunk in chunks if chunk["choices"][0].get("delta", {}).get("role")]
    assert begun == [usage_object([(0, 0, Usage(7, 0, 0))])] * (2 if kind is ChatWriter else 0)
    assert [chunk["usage"] for chunk in chunks[len(begun) :]] == [usage_object([(0, 0, Usage(3, 2, 1))])] * (len(chunks) - len(begun))


def test_completion_chunks_echo_first_and_offsets_go_on() -> None:
    writer = CompletionWriter("id", 1, "m", NAMES, num_choices=1, include_usage=False, echoes=["one", "two"])
    entry = TokenLogprob(-0.5, ord("h"), [(-0.5, ord("h")), (-1.0, ord("i"))])
    stream = writer.start() + writer.push(1, output("h", logprobs=[entry])) + writer.push(1, output("h", finish=STOP, logprobs=[entry]))
    choices = [chunk["choices"][0] for chunk in decoded(stream)]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "one"), (1, "two"), (1, "h"), (1, "h")]
    assert [choice["logprobs"]["text_offset"] for choice in choices[2:]] == [[0], [1]]
    assert choices[2]["logprobs"]["top_logprobs"] == [{"h": -0.5, "i": -1.0}]
    assert choices[3]["finish_reason"] == "stop"


def test_tokens_that_are_no_text_have_names_of_their_own() -> None:
    lists = NAMES.completion_lists([TokenLogprob(float("-inf"), 0xF0), TokenLogprob(-1.0, 0xF1)], NAMES.text_offsets())
    assert lists["tokens"] == ["bytes:\\xf0", "bytes:\\xf1"]
    assert lists["token_logprobs"] == [-9999.0, -1.0]
    (entry,) = NAMES.chat_entries([TokenLogprob(-1.0, 0xF0)])
    assert (entry["bytes"], entry["top_logprobs"]) == ([0xF0], [])


@pytest.mark.parametrize(
    ("octets", "offsets"),
    [(b"ab", [0, 1]), ("é日x".encode(), [0, 0, 1, 1, 1, 2]), (b"\xc3a", [0, 1]), (b"\xc3\xc3\xa9a", [0, 1, 1, 2]), (b"\xa9a", [0, 1])],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_offsets_count_the_decoded_text(octets: bytes, offsets: list[int], at_once: bool) -> None:
    entries = [TokenLogprob(-1.0, octet) for octet in octets]
    pieces = [entries] if at_once else [[entry] for entry in entries]
    writer = CompletionWriter("id", 1, "m", NAMES, num_choices=1, include_usage=False)
    chunks = decoded(b"".join(writer.push(0, output(logprobs=piece)) for piece in pieces))
    assert [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]] == offsets


def test_usage_counts_a_prompt_once_and_every_completion() -> None:
    usage = usage_object([(0, 0, Usage(5, 2, 1)), (0, 1, Usage(5, 3, 4)), (1, 0, Usage(7, 1, 0))])
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (12, 6, 18)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1


class FakeStream:
    """A request stream whose events are known beforehand; a number is a pause."""

    def __init__(self, *events: RequestOutput | float | Exception, constrained: bool = False) -> None:
        self.closed = 0
        self.constrained = constrained
        self._events = self._run(events)

    async def _run(self, events: tuple[RequestOutput | float | Exception, ...]) -> AsyncIterator[RequestOutput]:
        for event in events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, RequestOutput):
                yield event
            else:
                await asyncio.sleep(event)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._events

    async def aclose(self) -> None:
        self.closed += 1


def respond(*streams: FakeStream, gone_after: float = 60.0) -> tuple[int, bytes, list[dict[str, Any]]]:
    """Run an event stream against a client that leaves after a while; return status, body and messages."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(gone_after)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        writer = CompletionWriter("id", 1, "m", NAMES, num_choices=1, include_usage=False)
        outputs = sse.Outputs(streams)  # type: ignore[arg-type]
        await asyncio.wait_for(sse.EventStream(outputs, writer)({"type": "http", "path": "/v1/completions"}, receive, send), 10)

    asyncio.run(run())
    assert all(stream.closed for stream in streams)
    status = next((message["status"] for message in sent if "status" in message), 0)
    return status, b"".join(message.get("body", b"") for message in sent), sent


def test_streams_of_several_prompts_become_one() -> None:
    status, body, sent = respond(FakeStream(output("a"), 0.01, output("b", finish=STOP)), FakeStream(output("c"), output("d", finish=STOP)))
    events = decoded(body)
    assert status == 200
    assert events.pop() == "[DONE]"
    texts = {0: "", 1: ""}
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {0: "ab", 1: "cd"}
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


REFUSED = Finish(FinishReason.ABORT, message="no room", status=429)


@pytest.mark.parametrize("first", [output(finish=REFUSED), EngineStopped("gone")], ids=["finish", "raised"])
def test_refusal_before_the_first_event_is_an_http_error(first: RequestOutput | Exception) -> None:
    status, body, sent = respond(FakeStream(first))
    assert status == (429 if isinstance(first, RequestOutput) else 503)
    assert json.loads(body)["error"]["message"] in ("no room", "gone")
    assert (b"retry-after", b"1") in sent[0]["headers"]


@pytest.mark.parametrize("last", [output(finish=REFUSED), EngineStopped("gone")], ids=["finish", "raised"])
@pytest.mark.parametrize("others", [0, 1])
def test_error_inside_a_stream_is_one_event_and_then_done(last: RequestOutput | Exception, others: int) -> None:
    quiet = [FakeStream(60.0) for _ in range(others)]
    status, body, _ = respond(FakeStream(output("a"), last), *quiet)
    events = decoded(body)
    assert status == 200
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["message"] in ("no room", "gone")
    assert len(events) == 3


def test_slow_first_token_does_not_hold_the_head_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_GRACE", 0.01)
    status, body, _ = respond(FakeStream(0.1, output(finish=REFUSED)))
    assert status == 200
    assert decoded(body)[0]["error"]["code"] == "queue_full"


def test_grammar_that_is_refused_late_is_an_http_error_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEAD_GRACE", 0.01)
    status, body, _ = respond(FakeStream(60.0), FakeStream(0.1, output(finish=REFUSED), constrained=True), gone_after=5)
    assert status == 429
    assert json.loads(body)["error"]["code"] == "queue_full"


def test_client_that_leaves_closes_the_streams() -> None:
    status, body, _ = respond(FakeStream(output("a"), 60.0), gone_after=0.05)
    assert status == 200
    assert b"[DONE]" not in body
    assert respond(FakeStream(60.0), FakeStream(60.0), gone_after=0.05)[0] in (0, 200)


def test_pieces_go_to_the_connection_and_heads_and_ends_through_what_is_around_the_app() -> None:
    through: list[Any] = []
    direct: list[Any] = []

    async def around(message: Any) -> None:
        through.append(message)

    async def connection_send(message: Any) -> None:
        direct.append(message)

    async def run(scope: dict[str, Any]) -> None:
        writer = ChatWriter("id", 1, "m", NAMES, num_choices=1, include_usage=False)
        stream = FakeStream(output("a"), 0.01, output("b"), output("c", finish=STOP))
        await sse.EventStream(sse.Outputs([stream]), writer)(scope, asyncio.Event().wait, around)  # type: ignore[list-item, arg-type]

    scope = {"type": "http", "path": "/v1/chat/completions"}
    asyncio.run(run(scope))
    whole, through[:] = list(through), []
    asyncio.run(run({**scope, "extensions": {connection.PIECES: connection_send}}))
    assert len(direct) == 3
    assert [through[0], through[1], *direct, *through[2:]] == whole
    assert [message["type"] for message in through] == ["http.response.start", *["http.response.body"] * 3]


@pytest.mark.parametrize(("size", "aside_"), [(aside.LARGE, False), (aside.LARGE + 1, True)])
def test_large_answers_are_put_together_beside_the_event_loop(size: int, aside_: bool) -> None:
    threads = []

    class Writer(CompletionWriter):
        def push(self, prompt: int, output: RequestOutput) -> bytes:
            threads.append(threading.current_thread())
            return super().push(prompt, output)

    async def run() -> None:
        writer = Writer("id", 1, "m", NAMES, num_choices=1, include_usage=False)
        stream = FakeStream(output("a", finish=STOP, logprobs=[TokenLogprob(-1.0, 97)] * size))
        await sse.EventStream(sse.Outputs([stream]), writer)({"type": "http", "path": "/v1/completions"}, asyncio.Event().wait, send)  # type: ignore[list-item, arg-type]

    async def send(message: Any) -> None:
        pass

    asyncio.run(run())
    assert [thread is not threading.main_thread() for thread in threads] == [aside_]


def test_work_ends_with_its_client() -> None:
    cancelled: list[bool] = []

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    async def gone() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def quick() -> str:
        return "done"

    assert asyncio.run(sse.while_connected(gone, work())) is None
    assert cancelled == [True]
    assert asyncio.run(sse.while_connected(gone, quick())) == "done"


def test_unexpected_error_is_a_500_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError("secret")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
    asyncio.run(NameAnswers(broken)(scope, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 500
    assert b"x-request-id" in dict(sent[0]["headers"])
    assert json.loads(sent[1]["body"])["error"]["code"] == "internal_error"
    assert b"secret" not in sent[1]["body"]
    assert "ZeroDivisionError" in caplog.text


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = self.aborted = False
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def head_of(*parts: bytes, wait: float = 0.0, limits: Limits = DEFAULTS) -> tuple[FakeTransport, int]:
    """Feed a connection; return its transport and how many requests were started."""
    started = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal started
        started += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> FakeTransport:
        transport = FakeTransport()
        protocol = connection.BoundedProtocol.within(limits)(uvicorn.Config(app, ws="none", log_config=None), ServerState(), {})
        protocol.connection_made(transport)
        for part in parts:
            protocol.data_received(part)
            await asyncio.sleep(0.01)
        await asyncio.sleep(wait)
        return transport

    return asyncio.run(run()), started


REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"


def test_head_beyond_its_bound_is_431_and_a_large_body_is_not() -> None:
    transport, started = head_of(REQUEST, b"X-A: " + b"a" * DEFAULTS.max_head_bytes)
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert (transport.closed, started) == (True, 0)
    body = b"a" * (2 * DEFAULTS.max_head_bytes)
    large = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r" % len(body)
    transport, started = head_of(large, b"\n" + body)
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert started == 1


def test_bound_counts_each_head_anew() -> None:
    request = REQUEST + b"X-A: " + b"a" * (DEFAULTS.max_head_bytes * 2 // 3) + b"\r\n\r\nabc"
    assert head_of(request, request, request)[1] == 3


def test_head_that_does_not_come_closes_the_connection() -> None:
    limits = Limits(head_timeout=0.05)
    assert head_of(REQUEST, wait=0.2, limits=limits)[0].closed
    assert head_of(wait=0.2, limits=limits)[0].closed
    assert not head_of(REQUEST + b"\r\n", wait=0.2, limits=limits)[0].closed


def test_each_server_has_bounds_of_its_own() -> None:
    request = REQUEST + b"X-A: " + b"a" * 100 + b"\r\n\r\nabc"
    assert head_of(request, limits=Limits(max_head_bytes=64))[0].written.startswith(b"HTTP/1.1 431 ")
    assert head_of(request)[0].written.startswith(b"HTTP/1.1 200 ")


def stalled(*sizes: int, then: Any = lambda protocol: None, limits: Limits = DEFAULTS) -> FakeTransport:
    """Let a transport's unsent bytes go through ``sizes``, a stall's time each, while writing is paused."""

    async def run() -> FakeTransport:
        transport = FakeTransport()
        protocol = connection.BoundedProtocol.within(limits)(uvicorn.Config(lambda *_: None, ws="none", log_config=None), ServerState(), {})  # type: ignore[arg-type]
        protocol.connection_made(transport)
        transport.unsent = sizes[0]
        protocol.pause_writing()
        then(protocol)
        for size in sizes[1:]:
            await asyncio.sleep(0.02)
            transport.unsent = size
            await asyncio.sleep(0.03)
        protocol.connection_lost(None)
        return transport

    return asyncio.run(run())


def test_client_that_takes_nothing_is_cut_off() -> None:
    limits = Limits(stall_timeout=0.05)
    step = connection.STALL_BYTES
    assert stalled(9 * step, 9 * step, 9 * step, limits=limits).aborted
    assert stalled(9 * step, 8 * step, 8 * step, 8 * step, limits=limits).aborted
    assert stalled(9 * step, 9 * step - 1, 9 * step - 2, limits=limits).aborted
    assert not stalled(9 * step, 8 * step, 7 * step, 0, 0, limits=limits).aborted


def test_end_of_the_server_waits_for_nobody_who_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.05)
    assert stalled(9000, 9000, 9000, then=lambda protocol: protocol.shutdown()).aborted
    assert not stalled(9000, 9000, 9000).aborted
    assert not stalled(0, 0, 0, then=lambda protocol: protocol.shutdown()).aborted


def test_connection_closes_after_the_whole_request_or_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.2)
    head = REQUEST + b"Connection: close\r\n\r\n"
    early, _ = head_of(head, b"a")
    assert early.written.startswith(b"HTTP/1.1 200 ")
    assert not early.closed
    assert head_of(head, b"a", b"bc")[0].closed
    assert head_of(head, wait=0.3)[0].closed
    assert head_of(head + b"abc")[0].closed


def test_upgrade_is_declined_by_a_plain_answer(caplog: pytest.LogCaptureFixture) -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    transport, started = head_of(request)
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in transport.written
    assert (transport.closed, started) == (True, 1)
    assert caplog.text == ""
