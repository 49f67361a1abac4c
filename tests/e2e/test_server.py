"""The server as a process: life and death, streams, disconnects, aborts, the routes of operators."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

Start = Callable[..., Any]
LONG = {"prompt": "abc", "max_tokens": 8000, "ignore_eos": True, "temperature": 0}


def events(response: Any) -> list[Any]:
    """The decoded events of a finished stream; the last one is '[DONE]'."""
    found = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    return [*(json.loads(item) for item in found[:-1]), "[DONE]"]


def hang_up(server: Any, path: str, body: dict[str, Any], *, events_first: int = 0) -> float:
    """Send a request and drop the connection once it runs (and ``events_first`` events came); return when it was dropped."""
    payload = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(payload)}\r\n\r\n"
        connection.sendall(head.encode() + payload)
        server.wait_for(lambda: server.http.get("/server_info").json()["internal_states"][0]["num_running_reqs"] > 0, 10)
        seen = b""
        while seen.count(b"data:") < events_first:
            seen += connection.recv(65536)
    return time.monotonic()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "abc", "max_tokens": 24, "temperature": 0, "ignore_eos": True}),
        ("/v1/completions", {"prompt": ["abc", "xyz"], "n": 2, "max_tokens": 9, "seed": 7}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 24, "seed": 3, "n": 2}),
    ],
)
def test_joined_stream_equals_whole_answer(server: Any, path: str, body: dict[str, Any]) -> None:
    whole = server.http.post(path, json=body).json()
    *chunks, _ = events(server.http.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}}))
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            assert not (text and choice["index"] in finishes), "text after the end"
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            if choice["finish_reason"]:
                assert choice["index"] not in finishes
                finishes[choice["index"]] = choice["finish_reason"]
    for choice in whole["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert texts[choice["index"]] == text
        assert finishes[choice["index"]] == choice["finish_reason"]
    assert len(texts) == len(whole["choices"])
    assert chunks[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][name] == whole["usage"][name]
    assert not any("usage" in chunk for chunk in chunks[:-1])


def test_native_stream_carries_the_whole_text_so_far(server: Any) -> None:
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}}
    whole = server.http.post("/generate", json=body).json()
    *chunks, _ = events(server.http.post("/generate", json=body | {"stream": True}))
    assert chunks[-1]["text"] == whole["text"]
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in itertools.pairwise(chunks))
    assert [chunk["meta_info"]["finish_reason"] is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 20}
    assert (whole["meta_info"]["prompt_tokens"], whole["meta_info"]["completion_tokens"]) == (3, 20)


def test_native_batch_answers_in_order_with_logprobs(server: Any) -> None:
    body = {
        "input_ids": [[1, 2, 3], [4, 5]], "rid": ["first", "second"], "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
    }
    answers = server.http.post("/generate", json=body).json()
    assert [answer["meta_info"]["id"] for answer in answers] == ["first", "second"]
    for answer, count in zip(answers, (3, 2), strict=True):
        meta = answer["meta_info"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
        assert len(meta["input_token_logprobs"]) == count
        assert meta["input_token_logprobs"][0][0] is None
        assert all(len(top) == 2 for top in meta["output_top_logprobs"])


def test_native_ignores_what_routers_add(server: Any) -> None:
    body = {"text": "abc", "model": "unknown", "log_metrics": True, "return_hidden_states": False, "image_data": None, "background": False}
    response = server.http.post("/generate", json=body | {"sampling_params": {"max_new_tokens": 2, "regex": None, "stream_interval": 1}})
    assert response.status_code == 200
    assert response.json()["meta_info"]["completion_tokens"] <= 2


@pytest.mark.parametrize("body", [LONG, LONG | {"stream": True}], ids=["whole", "stream"])
def test_client_that_goes_away_frees_its_slots_within_a_second(server: Any, body: dict[str, Any]) -> None:
    dropped = hang_up(server, "/v1/completions", body, events_first=2 if body.get("stream") else 0)
    server.wait_for(server.is_idle, 5)
    assert time.monotonic() - dropped < 1.0


def test_abort_ends_exactly_the_named_request(server: Any) -> None:
    answers: dict[str, Any] = {}

    def ask(rid: str, count: int) -> None:
        answers[rid] = server.http.post("/v1/completions", json=LONG | {"rid": rid, "max_tokens": count}).json()

    threads = [threading.Thread(target=ask, args=item) for item in (("job-1", 8000), ("job-12", 600))]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: server.http.get("/server_info").json()["open_requests"] == 2, 10)
    assert server.http.post("/abort_request", json={"rid": "job"}).json() == {"aborted": 0}
    assert server.http.post("/abort_request", json={"rid": "job-1"}).json() == {"aborted": 1}
    for thread in threads:
        thread.join(30)
    assert answers["job-1"]["choices"][0]["finish_reason"] == "abort"
    assert answers["job-12"]["choices"][0]["finish_reason"] == "length"
    assert answers["job-12"]["usage"]["completion_tokens"] == 600
    server.wait_for(server.is_idle, 2)


def test_flush_is_refused_under_load_and_empties_an_idle_cache(server: Any) -> None:
    server.wait_for(server.is_idle, 5)
    thread = threading.Thread(target=hang_up, args=(server, "/v1/completions", LONG | {"stream": True}), kwargs={"events_first": 400})
    thread.start()
    server.wait_for(lambda: server.http.get("/server_info").json()["open_requests"] > 0, 10)
    refused = server.http.post("/flush_cache")
    thread.join(30)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "engine_busy"
    assert server.http.post("/flush_cache?timeout=5").status_code == 200
    state = server.http.get("/server_info").json()["internal_states"][0]
    assert state["kv_evictable_tokens"] == 0
    assert state["kv_available_tokens"] == state["max_total_num_tokens"]


def test_second_turn_is_cached_unless_its_salt_differs(server: Any) -> None:
    body = {"prompt": "once upon a time, once upon a time", "max_tokens": 4, "temperature": 0}

    def cached(**extra: Any) -> int:
        usage = server.http.post("/v1/completions", json=body | extra).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() == len(body["prompt"]) - 1
    assert cached(cache_salt="other") == 0
    assert cached(cache_salt="other") > 0
    assert cached(extra_key="other") == 0


def test_echo_and_logprobs_of_a_text_completion_line_up(server: Any) -> None:
    body = {"prompt": "abc", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 2, "ignore_eos": True}
    answer = server.http.post("/v1/completions", json=body).json()
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("abc")
    assert logprobs["tokens"][:3] == ["a", "b", "c"]
    assert logprobs["text_offset"][:4] == [0, 1, 2, 3]
    assert [value is None for value in logprobs["token_logprobs"]] == [True, False, False, False, False]
    assert logprobs["top_logprobs"][0] is None
    assert all(token in top for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True))
    nothing = server.http.post("/v1/completions", json=body | {"max_tokens": 0, "logprobs": None}).json()
    assert nothing["choices"][0]["text"] == "abc"
    assert nothing["usage"]["completion_tokens"] == 0


def test_metrics_agree_with_themselves_and_carry_known_names(server: Any) -> None:
    server.wait_for(server.is_idle, 5)
    response = server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in response.text.splitlines() if line and line[0] != "#"}
    total = values["sglang:max_total_num_tokens"]
    assert values["sglang:kv_available_tokens"] + values["sglang:kv_evictable_tokens"] + values["sglang:kv_used_tokens"] == total
    assert values["sglang:num_running_reqs"] == 0


@pytest.mark.parametrize("path", ["/health", "/ready", "/health_generate", "/", "/version", "/v1/models", "/v1/models/toy", "/model_info",
                                  "/get_model_info", "/server_info", "/get_server_info", "/docs"])  # fmt: skip
def test_route_answers_and_names_the_request(server: Any, path: str) -> None:
    response = server.http.get(path, headers={"x-request-id": "my-id.1"})
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "my-id.1"
    assert len(server.http.get(path, headers={"x-request-id": "no good"}).headers["x-request-id"]) > 10


def test_openapi_describes_the_bodies(server: Any) -> None:
    schema = server.http.get("/openapi.json").json()
    assert {"/generate", "/v1/chat/completions", "/v1/completions", "/abort_request"} <= schema["paths"].keys()
    assert "messages" in schema["components"]["schemas"]["ChatBody"]["properties"]
    assert "Duplicate" not in "".join(server.log)


def test_head_of_health_has_no_body(server: Any) -> None:
    assert server.http.head("/health").status_code == 200


def test_no_cross_origin_headers(server: Any) -> None:
    response = server.http.get("/v1/models", headers={"origin": "https://elsewhere.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_huge_head_is_refused_and_slow_ones_cost_nothing(server: Any) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(10)]
    for connection in silent:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n")
        connection.settimeout(5)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
    assert server.http.get("/health").status_code == 200
    for connection in silent:
        connection.close()


def test_key_is_wanted_everywhere_but_on_health(start_server: Start) -> None:
    server = start_server("--api-key", "s3cret").wait_ready()
    paths = ("/v1/models", "/server_info", "/metrics", "/docs", "/openapi.json", "/no/such/route", "/")
    for headers in ({}, {"authorization": "Bearer s3cre"}, {"authorization": "Bearer s3cret2"}, {"authorization": "Basic s3cret"}):
        for path in paths:
            response = server.http.get(path, headers=headers)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
        # A body that is not even JSON shows that it was not looked at.
        assert server.http.post("/v1/completions", headers=headers, content=b"{").status_code == 401
    assert server.http.get("/v1/models", headers={"host": "x/health?"}).status_code == 401
    assert server.http.get("/health").status_code == 200
    right = {"authorization": "Bearer s3cret"}
    assert server.http.post("/v1/completions", headers=right, json={"prompt": "a", "max_tokens": 1}).status_code == 200
    assert "s3cret" not in server.http.get("/server_info", headers=right).text


def stream_in_background(server: Any, count: int) -> tuple[threading.Thread, list[Any]]:
    """Start a stream of ``count`` tokens and return when its first event is there."""
    chunks: list[Any] = []
    begun = threading.Event()

    def read() -> None:
        with server.http.stream("POST", "/v1/completions", json=LONG | {"max_tokens": count, "stream": True}) as response:
            for line in response.iter_lines():
                if line:
                    chunks.append(line.removeprefix("data: "))
                    begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(20)
    return thread, chunks


def test_sigterm_lets_streams_finish_and_takes_nothing_new(start_server: Start) -> None:
    server = start_server().wait_ready()
    processes = server.children()
    assert processes
    thread, chunks = stream_in_background(server, 800)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for(lambda: server.http.get("/health").status_code == 503, 2)
    refused = server.http.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    thread.join(60)
    assert server.process.wait(10) == 0
    assert chunks[-1] == "[DONE]"
    assert sum(len(choice["text"]) for chunk in chunks[:-1] for choice in json.loads(chunk)["choices"]) > 0
    assert json.loads(chunks[-2])["choices"][0]["finish_reason"] == "length"
    assert not psutil.wait_procs(processes, timeout=2)[1]


def test_second_signal_ends_at_once(start_server: Start) -> None:
    server = start_server().wait_ready()
    processes = server.children()
    thread, chunks = stream_in_background(server, 8000)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for(lambda: server.http.get("/health").status_code == 503, 2)
    started = time.monotonic()
    assert server.signal_and_wait(signal.SIGINT, 10) == 0
    assert time.monotonic() - started < 3.0
    thread.join(10)
    assert json.loads(chunks[-2])["error"]["type"] == "service_unavailable"
    assert chunks[-1] == "[DONE]"
    assert not psutil.wait_procs(processes, timeout=2)[1]


def test_interrupt_ends_an_idle_server_with_code_zero(start_server: Start) -> None:
    server = start_server().wait_ready()
    processes = server.children()
    assert server.signal_and_wait(signal.SIGINT, 5) == 0
    assert not psutil.wait_procs(processes, timeout=2)[1]


def test_interrupt_while_loading_leaves_nothing_behind(start_server: Start) -> None:
    server = start_server()
    assert server.signal_and_wait(signal.SIGINT, 10) == 0
    assert "Traceback" not in "".join(server.log)


def test_health_is_503_until_the_model_is_loaded(start_server: Start) -> None:
    server = start_server()
    assert server.http.get("/health").status_code == 503
    early = server.http.post("/v1/completions", json={"prompt": "a"})
    assert early.status_code == 503
    assert early.json()["error"]["code"] == "engine_stopped"
    server.wait_ready()


def test_port_in_use_and_unknown_model_exit_with_code_two(server: Any, start_server: Start) -> None:
    taken = start_server("--port", server.url.rsplit(":", 1)[1])
    assert taken.process.wait(20) == 2
    assert "in use" in "".join(taken.log)
    missing = start_server(model="./no-such-folder-xyz")
    assert missing.process.wait(20) == 2
    lines = [line for line in "".join(missing.log).splitlines() if "error" in line]
    assert len(lines) == 1
    assert "Traceback" not in "".join(missing.log)
