"""Responses, messages and Ollama's routes: whole answers and streams say the same, in the form their clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest

TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SCHEMA = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"], "additionalProperties": False}
USER = [{"role": "user", "content": "Write about the sea."}]


def events(server: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of a stream; where there are event lines, they name the type of what follows."""
    found, name = [], None
    with server.http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                found.append(json.loads(line[6:]))
                assert name == found[-1]["type"]
    return found


def post(server: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_streamed_response_ends_as_the_whole_one_is(server: Any) -> None:
    body = {"model": "toy", "input": "Hi", "max_output_tokens": 8, "temperature": 0}
    whole, stream = post(server, "/v1/responses", body), events(server, "/v1/responses", body | {"stream": True})
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    kinds = [event["type"] for event in stream]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    ended = [kind for kind in kinds if kind != "response.output_text.delta"][4:]
    assert ended == ["response.output_text.done", "response.content_part.done", "response.output_item.done", kinds[-1]]
    last = stream[-1]["response"]
    assert last["status"] == whole["status"] == kinds[-1].removeprefix("response.")
    text = "".join(event["delta"] for event in stream if event["type"] == "response.output_text.delta")
    assert text == last["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"]
    assert whole["usage"]["output_tokens"] == last["usage"]["output_tokens"]


def test_a_response_is_remembered_until_it_is_deleted(server: Any) -> None:
    first = post(server, "/v1/responses", {"input": "One.", "instructions": "Obey.", "max_output_tokens": 4})
    second = post(server, "/v1/responses", {"input": "Two.", "previous_response_id": first["id"], "max_output_tokens": 4})
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert server.http.get(f"/v1/responses/{first['id']}").json() == first
    assert len(server.http.get(f"/v1/responses/{second['id']}/input_items").json()["data"]) == 4
    assert server.http.delete(f"/v1/responses/{first['id']}").json()["deleted"]
    assert server.http.get(f"/v1/responses/{first['id']}").status_code == 404
    assert server.http.post("/v1/responses", json={"input": "x", "previous_response_id": first["id"]}).status_code == 404
    unkept = post(server, "/v1/responses", {"input": "One.", "store": False, "max_output_tokens": 2})
    assert server.http.get(f"/v1/responses/{unkept['id']}").status_code == 404


def test_functions_of_a_response_are_called(server: Any) -> None:
    body = {
        "input": "Add.", "tools": [{"type": "function", "name": "add", "parameters": TOOL}], "tool_choice": "required",
        "parallel_tool_calls": False, "max_output_tokens": 200,
    }
    call = next(item for item in post(server, "/v1/responses", body)["output"] if item["type"] == "function_call")
    assert call["name"] == "add"
    assert set(json.loads(call["arguments"])) == {"a"}
    stream = events(server, "/v1/responses", body | {"stream": True})
    arguments = "".join(event["delta"] for event in stream if event["type"] == "response.function_call_arguments.delta")
    done = next(event for event in stream if event["type"] == "response.function_call_arguments.done")
    assert arguments == done["arguments"]
    back = [USER[0], call, {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}]
    assert post(server, "/v1/responses", {"input": back, "max_output_tokens": 4})["output"]


def test_a_streamed_message_ends_as_the_whole_one_is(server: Any) -> None:
    body = {"model": "toy", "messages": USER, "max_tokens": 8, "temperature": 0}
    whole, stream = post(server, "/v1/messages?beta=true", body), events(server, "/v1/messages", body | {"stream": True})
    kinds = [event["type"] for event in stream]
    assert kinds[:3] == ["message_start", "content_block_start", "ping"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    text = "".join(event["delta"]["text"] for event in stream if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert stream[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert stream[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_what_came_from_the_cache_is_counted_apart(server: Any) -> None:
    body = {"model": "toy", "system": "A system prompt of its own, said once.", "messages": USER, "max_tokens": 2}
    count = post(server, "/v1/messages/count_tokens", body)["input_tokens"]
    first, second = (post(server, "/v1/messages", body)["usage"] for _ in range(2))
    for usage in (first, second):
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    assert second["cache_read_input_tokens"] > first["cache_read_input_tokens"]


def test_a_system_prompt_that_changes_with_every_request_stays_cached(server: Any) -> None:
    def body(number: int) -> dict[str, Any]:
        system = f"x-anthropic-billing-header: cch={number}\n" + "Be a careful keeper of notes. " * 4
        return {"model": "toy", "system": system, "messages": USER, "max_tokens": 2}

    post(server, "/v1/messages", body(1))
    usage = post(server, "/v1/messages", body(2))["usage"]
    assert usage["input_tokens"] == 1
    assert usage["radixrt"] == {"steady_prefix": ["billing_line"]}


def test_a_ttl_pins_the_prefix(start_server: Any) -> None:
    server = start_server().wait_ready()
    block = {"type": "text", "text": "Worth keeping for an hour.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    post(server, "/v1/messages", {"model": "toy", "system": [block], "messages": USER, "max_tokens": 2})
    assert server.http.get("/server_info").json()["stats"]["num_pins"] == 1


def test_tools_of_a_message_are_used(server: Any) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    body = {"messages": USER, "max_tokens": 200, "tools": [{"name": "add", "input_schema": TOOL}], "tool_choice": choice}
    answer = post(server, "/v1/messages", body)
    assert answer["stop_reason"] == "tool_use"
    (use,) = (block for block in answer["content"] if block["type"] == "tool_use")
    assert set(use["input"]) == {"a"}
    stream = events(server, "/v1/messages", body | {"stream": True})
    start = next(event for event in stream if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use")
    assert start["content_block"]["input"] == {}
    deltas = [event for event in stream if event["type"] == "content_block_delta" and event["index"] == start["index"]]
    assert set(json.loads("".join(event["delta"]["partial_json"] for event in deltas))) == {"a"}


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_speaks_in_lines(server: Any, stream: bool) -> None:
    options = {"num_predict": 6, "temperature": 0}
    for path, body, field in (
        ("/api/chat", {"messages": USER}, "message"), ("/api/generate", {"prompt": "Sea"}, "response"),
        ("/api/generate", {"prompt": "Sea", "raw": True}, "response"),
    ):
        response = server.http.post(path, json={"model": "toy:latest", "stream": stream, "options": options, **body})
        assert response.status_code == 200
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        assert (len(lines) > 1) == stream
        assert all(field in line for line in lines)
        assert lines[-1]["eval_count"] == 6
        assert lines[-1]["done_reason"] == "length"


def test_ollama_obeys_schemas_and_describes_the_model(server: Any) -> None:
    body = {"model": "toy", "messages": USER, "stream": False, "format": SCHEMA, "options": {"num_predict": 100}}
    assert json.loads(post(server, "/api/chat", body)["message"]["content"])["mood"] in ("good", "bad")
    assert server.http.get("/api/tags").json()["models"][0]["name"] == "toy"
    assert server.http.get("/api/ps").json()["models"]
    assert post(server, "/api/show", {"model": "toy"})["capabilities"]
    assert server.http.get("/api/version").json()["version"]
    assert post(server, "/api/chat", {"model": "toy", "messages": []})["done_reason"] == "load"


def test_errors_have_the_shape_of_their_dialect(server: Any) -> None:
    anthropic = server.http.post("/v1/messages", json={"messages": USER})
    assert (anthropic.status_code, anthropic.json()["type"], anthropic.json()["error"]["type"]) == (400, "error", "invalid_request_error")
    unknown = server.http.post("/v1/messages", json={"model": "no", "messages": USER, "max_tokens": 1})
    assert unknown.json()["error"]["type"] == "not_found_error"
    ollama = server.http.post("/api/chat", json={"model": "no", "messages": USER})
    assert (ollama.status_code, type(ollama.json()["error"])) == (404, str)
    response = server.http.post("/v1/responses", json={"input": [], "background": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "background")
    for path in ("/v1/messages", "/api/chat", "/v1/responses"):
        assert server.http.post(path, content=b"{").status_code == 400


def test_an_answer_without_room_is_cut_off_as_openai_does_it_and_refused_elsewhere(server: Any) -> None:
    body = {"messages": USER, "max_tokens": 3}
    shape = {"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA}}
    answer = post(server, "/v1/chat/completions", body | {"response_format": shape})["choices"][0]
    assert answer["finish_reason"] == "length"
    for closing in ({"json_schema": SCHEMA}, {"response_format": shape | {"truncate": "close"}}):
        refused = server.http.post("/v1/chat/completions", json=body | closing)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "max_tokens_too_small")
