"""Bad input costs its sender a 4xx in one shape, and nobody else anything."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"prompt": "hi", "max_tokens": 2}
NATIVE: dict[str, Any] = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
BOTH = (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT))

# Fields that both OpenAI routes take, as raw JSON, with the parameter that must be named.
COMMON = [
    ("temperature", "-1"), ("temperature", '"hot"'), ("temperature", "true"), ("top_p", "0"), ("top_p", "1.5"), ("top_k", "-7"),
    ("top_k", "0"), ("min_p", "2"), ("n", "0"), ("n", "1.5"), ("n", "17"), ("n", "1000000"), ("max_tokens", "-1"),
    ("max_tokens", '"10"'), ("max_tokens", "1.0"), ("max_tokens", "-9223372036854775809"), ("presence_penalty", "3"),
    ("frequency_penalty", '"x"'), ("repetition_penalty", "0"), ("stop", "5"), ("stop", "[1]"), ("stop", json.dumps(["x"] * 17)),
    ("stop", json.dumps("x" * 257)), ("stream", '"perhaps"'), ("logit_bias", "[1]"), ("logit_bias", '{"5": "x"}'),
    ("logit_bias", '{"abc": 1}'), ("logit_bias", '{"99999999": 1}'), ("logit_bias", '{"-3": 1}'), ("logit_bias", '{"5": 1e308}'),
    ("seed", "1e30"), ("stop_token_ids", "[-1]"), ("stop_token_ids", "[99999999]"), ("min_tokens", "3"), ("rid", '"no spaces"'),
    ("rid", json.dumps("x" * 129)), ("cache_salt", json.dumps("x" * 129)), ("model", '"no-such-model"'), ("model", "5"),
    ("response_format", '{"type": "xml"}'), ("response_format", '{"type": "json_schema"}'), ("response_format", '"json"'),
    ("regex", "5"), ("regex", '""'), ("choice", "[]"), ("choice", "[1]"), ("json_schema", '"no JSON"'), ("json_schema", "5"),
    ("structured_outputs", '{"xml": "a"}'), ("guided_json", '"[]"'), ("grammar_options", '{"truncate": "?"}'), ("lora_path", '"x"'),
    ("custom_logit_processor", '"x"'), ("session_params", '{"id": "x"}'),
]  # fmt: skip
CHAT_ONLY = [
    ("messages", "[]"), ("messages", '"hi"'), ("messages", "[5]"), ("messages", "[{}]"),
    ("messages", '[{"role": "king", "content": "x"}]'),
    ("messages", '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]'),
    ("messages", json.dumps([{"role": "user", "content": "x"}] * 1025)),
    ("messages", json.dumps([{"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}])),
    ("logprobs", "3"), ("top_logprobs", "2"),
    ("tools", '[{"type": "function", "function": {"name": ""}}]'), ("functions", '[{"name": "f"}]'),
    ("tool_choice", '{"type": "function", "function": {"name": "nope"}}'), ("modalities", '["text", "audio"]'),
    ("chat_template_kwargs", '{"bos_token": "x"}'),
]  # fmt: skip
TEXT_ONLY = [
    ("prompt", '""'), ("prompt", '[""]'), ("prompt", "[]"), ("prompt", "[[]]"), ("prompt", "[[], [1]]"), ("prompt", "5"),
    ("prompt", "[1, true]"), ("prompt", "[1, -1]"), ("prompt", "[99999999]"), ("prompt", '["a", 1]'), ("prompt", "[1.0]"),
    ("prompt", json.dumps(["a"] * 65)), ("logprobs", "-1"), ("logprobs", "21"), ("logprobs", "true"), ("suffix", '"x"'),
    ("best_of", "5"),
]  # fmt: skip
IN_SAMPLING = [
    ("temperature", "-1"), ("max_new_tokens", "-1"), ("n", "17"), ("regex", "5"), ("json_schema", '"{"'), ("max_tokens", "5"),
    ("stop", "[1]"), ("logit_bias", '{"99999999": 1}'), ("stop_token_ids", "[-1]"), ("min_new_tokens", "3"),
    ("custom_params", '{"a": 1}'),
]  # fmt: skip
NATIVE_ONLY = [
    ("text", "5"), ("text", '""'), ("text", "[]"), ("text", "[[1]]"), ("input_ids", "[1]"), ("sampling_params", "[{}, {}]"),
    ("sampling_params", "5"), ("image_data", '"x"'), ("lora_path", '"x"'), ("return_logprob", '"yes"'), ("rid", '["a", "b"]'),
    ("session_params", '{"id": 1}'), ("custom_logit_processor", '"x"'),
]  # fmt: skip


def raw(body: dict[str, Any], name: str, value: str) -> bytes:
    """The body with one field replaced by raw JSON."""
    fields = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in body.items() if key != name]
    return ("{" + ", ".join([*fields, f"{json.dumps(name)}: {value}"]) + "}").encode()


def refused(server: Any, path: str, content: bytes, status: int = 400) -> dict[str, Any]:
    response = server.http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert "/root" not in error["message"]
    assert len(response.content) < 2000
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(("path", "body"), BOTH, ids=["chat", "text"])
@pytest.mark.parametrize(("name", "value"), COMMON, ids=lambda value: value[:24])
def test_impossible_parameter_is_refused_by_name(server: Any, path: str, body: dict[str, Any], name: str, value: str) -> None:
    unknown_model = name == "model" and value.startswith('"')
    error = refused(server, path, raw(body, name, value), 404 if unknown_model else 400)
    assert re.split(r"[.\[]", error["param"] or "")[0] == name
    if unknown_model:
        assert error["code"] == "model_not_found"


@pytest.mark.parametrize(("name", "value"), CHAT_ONLY, ids=lambda value: value[:24])
def test_impossible_chat_is_refused(server: Any, name: str, value: str) -> None:
    refused(server, "/v1/chat/completions", raw(CHAT, name, value))


@pytest.mark.parametrize(("name", "value"), TEXT_ONLY, ids=lambda value: value[:24])
def test_impossible_completion_is_refused(server: Any, name: str, value: str) -> None:
    error = refused(server, "/v1/completions", raw(TEXT, name, value))
    assert error["param"] == name


@pytest.mark.parametrize(("name", "value"), NATIVE_ONLY, ids=lambda value: value[:24])
def test_impossible_generate_is_refused(server: Any, name: str, value: str) -> None:
    refused(server, "/generate", raw(NATIVE, name, value))


@pytest.mark.parametrize(("name", "value"), IN_SAMPLING, ids=lambda value: value[:24])
def test_impossible_sampling_of_generate_is_refused(server: Any, name: str, value: str) -> None:
    refused(server, "/generate", b'{"text": "hi", "sampling_params": ' + raw({"max_new_tokens": 2}, name, value) + b"}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/abort_request"])
@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[1, 2]", b'"hello"', b"{", b"{{}}", b'{"prompt": "\xff"}', b"\x00" * 10, b"{}}",
     b'{"prompt": "a", "temperature": NaN}',
     b'{"prompt": "\\ud83d"}', b"[" * 2000 + b"]" * 2000, b'{"user": ' + b'{"a":' * 20000 + b"1" + b"}" * 20001],
    ids=lambda content: str(content[:16]),
)  # fmt: skip
def test_body_that_is_no_json_object_is_refused(server: Any, path: str, content: bytes) -> None:
    assert refused(server, path, content)["code"] == "invalid_json"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "word " * 20_000}), ("/v1/completions", {"prompt": "x" * 2_000_000}),
     ("/v1/completions", {"prompt": [5] * 8192}),
     ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 20_000}]}), ("/generate", {"text": "word " * 20_000})],
    ids=["text", "long-text", "ids", "chat", "native"],
)  # fmt: skip
def test_prompt_beyond_the_context_is_refused_in_known_words(server: Any, path: str, body: dict[str, Any], stream: bool) -> None:
    error = refused(server, path, json.dumps(body | {"stream": stream}).encode())
    assert "maximum context length" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_body_over_the_limit_is_413_announced_or_not(server: Any) -> None:
    blob = b"x" * (9 << 20)
    assert refused(server, "/v1/completions", blob, 413)["code"] == "body_too_large"

    def chunks() -> Any:
        for start in range(0, len(blob), 1 << 20):
            yield blob[start : start + (1 << 20)]

    response = server.http.post("/v1/completions", content=chunks())
    assert response.status_code == 413


def test_client_that_sends_a_large_body_to_its_end_reads_why_it_was_refused(server: Any) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    size = 64 << 20
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(b"x" * size)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [("/generate", {"text": ["x" * 4000] * 64, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 4}, "return_logprob"),
     ("/v1/completions", {"prompt": "x" * 4000, "echo": True, "logprobs": 19, "n": 16}, "logprobs"),
     ("/v1/chat/completions", CHAT | {"max_tokens": 8000, "logprobs": True, "top_logprobs": 19, "n": 16}, "logprobs")],
    ids=["native", "text", "chat"],
)  # fmt: skip
def test_too_many_logprobs_are_refused_before_anything_is_computed(server: Any, path: str, body: dict[str, Any], param: str) -> None:
    error = refused(server, path, json.dumps(body).encode())
    assert (error["param"], error["code"]) == (param, "too_many_logprobs")
    assert server.is_idle()


def test_duplicate_live_rid_is_refused_and_the_first_goes_on(server: Any) -> None:
    body = {"prompt": "abc", "max_tokens": 500, "ignore_eos": True, "rid": "twice", "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data:")
        error = refused(server, "/v1/completions", json.dumps(body).encode())
        assert error["param"] == "rid"
        assert next(line for line in reversed(list(lines)) if line) == "data: [DONE]"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/no-such-endpoint", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405), ("GET", "/v1/models/no/such", 404),
     ("POST", "/v1/embeddings", 400), ("POST", "/update_weights_from_tensor", 404), ("GET", "/flush_cache?timeout=soon", 400),
     ("GET", "/flush_cache?timeout=nan", 400), ("GET", "/flush_cache?timeout=inf", 400), ("GET", "/flush_cache?timeout=-1", 400)],
)  # fmt: skip
def test_wrong_route_is_an_error_object_too(server: Any, method: str, path: str, status: int) -> None:
    response = server.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "extra",
    [{"tools": []}, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
     {"response_format": {"type": "text"}},
     {"user": {"a": 1}}, {"metadata": {"k": "v"}, "store": False}, {"x_future": {"a": 1}}, {"regex": None},
     {"temperature": None, "stop": None},
     {"model": "default"}, {"model": None}, {"stop": ["", "zz"]}, {"stop": ""}, {"logit_bias": {"5": -100}},
     {"parallel_tool_calls": True},
     {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {"max_completion_tokens": 2}],
    ids=str,
)  # fmt: skip
def test_harmless_field_is_taken(server: Any, extra: dict[str, Any]) -> None:
    response = server.http.post("/v1/chat/completions", json=CHAT | extra)
    assert response.status_code == 200, response.text


def test_bystander_is_answered_after_all_that(server: Any) -> None:
    assert server.http.post("/v1/completions", json=TEXT).status_code == 200
    server.wait_for(server.is_idle, 5)
