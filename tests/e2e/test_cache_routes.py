"""Pins, sessions, cache reports and explanations over HTTP, on the toy model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq

GREEDY = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}


def post(server: Any, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = server.http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def fresh(words: int = 12) -> str:
    """A text that no other test has sent."""
    return " ".join(uuid.uuid4().hex[:6] for _ in range(words))


def generate(server: Any, status: int = 200, **body: Any) -> Any:
    return post(server, "/generate", {"sampling_params": GREEDY} | body, status)


def metric(server: Any, name: str) -> float:
    line = next(line for line in server.http.get("/metrics").text.splitlines() if line.startswith(name))
    return float(line.rpartition(" ")[2])


def test_a_pinned_prefix_that_was_not_cached_is_computed(server: Any) -> None:
    prefix = fresh()
    receipt = post(server, "/v1/cache/pin", {"prompt": prefix, "ttl": 60})
    assert receipt["tokens"] == len(prefix)
    assert metric(server, "radixrt_pinned_tokens") >= len(prefix)
    answer = generate(server, text=prefix + " and more")
    assert answer["meta_info"]["cached_tokens"] >= len(prefix)
    assert post(server, "/v1/cache/unpin", {"pin_id": receipt["pin_id"]}) == {"unpinned": True}
    assert post(server, "/v1/cache/unpin", {"pin_id": receipt["pin_id"]}) == {"unpinned": False}


def test_pins_take_messages_token_ids_names_and_namespaces(server: Any) -> None:
    messages = [{"role": "system", "content": fresh()}]
    receipt = post(server, "/v1/cache/pin", {"messages": messages, "name": "system", "cache_salt": "a"})
    asked = {"messages": [*messages, {"role": "user", "content": "Hi"}], "cache_salt": "a"}
    assert post(server, "/v1/cache/explain", asked)["matched_tokens"] == receipt["tokens"]
    assert post(server, "/v1/cache/explain", asked | {"cache_salt": "b"})["matched_tokens"] == 0
    again = post(server, "/v1/cache/pin", {"input_ids": list(range(40)), "name": "system", "cache_salt": "a"})
    assert (again["pin_id"], again["tokens"]) == (receipt["pin_id"], 40)
    other = post(server, "/v1/cache/pin", {"input_ids": list(range(40)), "name": "system", "cache_salt": "b"})
    for id in {again["pin_id"], other["pin_id"]}:
        assert post(server, "/v1/cache/unpin", {"pin_id": id}) == {"unpinned": True}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"prompt": "a", "input_ids": [1]}, {"prompt": ""}, {"prompt": ["a", "b"]}, {"input_ids": [-1]}, {"input_ids": [99999]},
        {"prompt": "a", "ttl": 0}, {"prompt": "a", "ttl": -1.5}, {"prompt": "a", "name": ""}, {"prompt": "a", "name": "n" * 200},
        {"prompt": "a" * 1_000_000}, {"prompt": "a", "model": "other"},
    ],
)  # fmt: skip
def test_bad_pins_are_refused(server: Any, body: dict[str, Any]) -> None:
    post(server, "/v1/cache/pin", body, status=404 if "model" in body else 400)


def test_explain_names_where_a_prompt_leaves_the_cache_and_runs_nothing(server: Any) -> None:
    before, after = fresh(), fresh()
    generate(server, text=f"{before} The time is 10:41. {after}")
    computed = metric(server, "radixrt_computed_tokens_total")
    asked = f"{before} The time is 10:42. {after}"
    told = post(server, "/v1/cache/explain", {"prompt": asked})
    at = asked.index("10:42") + 4
    assert (told["prompt_tokens"], told["matched_tokens"], told["diverged_at"]["token"]) == (len(asked), at, at)
    place = told["diverged_at"]
    assert place["text_before"].endswith("10:4")
    assert (place["text_here"][:2], place["text_cached"][:2]) == ("2.", "1.")
    assert metric(server, "radixrt_computed_tokens_total") == computed


def test_nothing_diverges_where_everything_or_nothing_is_cached(server: Any) -> None:
    text = fresh()
    salt = uuid.uuid4().hex
    assert post(server, "/v1/cache/explain", {"prompt": text, "cache_salt": salt})["diverged_at"] is None
    generate(server, text=text, cache_salt=salt)
    told = post(server, "/v1/cache/explain", {"prompt": text, "cache_salt": salt})
    assert (told["matched_tokens"], told["diverged_at"]) == (len(text), None)


def test_cache_report_comes_with_every_generation_route(server: Any) -> None:
    text = fresh()
    salt = {"cache_salt": uuid.uuid4().hex, "return_cache_report": True}
    cold = generate(server, text=text, **salt)["meta_info"]["cache_report"]
    assert (cold["matched"], cold["computed"], cold["diverged_at"]) == (0, len(text), None)
    assert all(milliseconds >= 0 for milliseconds in cold["waited"].values())
    warm = generate(server, text=text[:20] + "?" + text, **salt)["meta_info"]["cache_report"]
    assert (warm["matched"], warm["computed"], warm["diverged_at"]["token"]) == (20, len(text) + 1, 20)

    completion = {"prompt": text[:20] + "!", "max_tokens": 2, **salt}
    assert post(server, "/v1/completions", completion)["usage"]["radixrt"]["matched"] == 20
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 2, **salt}
    assert post(server, "/v1/chat/completions", chat)["usage"]["radixrt"]["matched"] == 0
    assert len(post(server, "/v1/completions", completion | {"n": 2})["usage"]["radixrt"]) == 2
    streamed = server.http.post("/v1/chat/completions", json=chat | {"stream": True}).text
    assert '"radixrt":{"matched":' in streamed


def test_without_being_asked_for_nothing_is_reported(server: Any) -> None:
    assert "cache_report" not in generate(server, text="plain")["meta_info"]
    assert "radixrt" not in post(server, "/v1/completions", {"prompt": "plain", "max_tokens": 1})["usage"]


def test_tree_shows_the_largest_subtrees_first_and_no_salts(server: Any) -> None:
    text = fresh(40)
    generate(server, text=text, cache_salt="the-secret")
    response = server.http.get("/v1/cache/tree", params={"depth": 1, "min_tokens": 2, "limit": 500})
    nodes = response.json()["nodes"]
    assert "the-secret" not in response.text
    node = next(node for node in nodes if node["text"] == text[:8])
    assert (node["parent"], node["locks"], node["subtree_tokens"] >= len(text)) == (None, 0, True)
    assert all(node["subtree_tokens"] >= 2 and node["parent"] is None for node in nodes)
    few = server.http.get("/v1/cache/tree", params={"limit": 1}).json()
    assert len(few["nodes"]) == 1 < few["num_nodes"]


@pytest.mark.parametrize("query", ["depth=x", "limit=0", "limit=100000", "min_tokens=-1", "depth=99999999999999999"])
def test_bad_tree_queries_are_refused(server: Any, query: str) -> None:
    assert server.http.get(f"/v1/cache/tree?{query}").status_code == 400


def open_session(server: Any, **body: Any) -> str:
    id = post(server, "/open_session", {"capacity_of_str_len": 1000} | body)
    assert isinstance(id, str)
    return id


def test_a_session_answers_as_the_whole_text_would(server: Any) -> None:
    session = open_session(server)
    tokens: list[int] = []
    rid = None
    for text in (fresh(), " second ", " third"):
        answer = generate(server, text=text, session_params={"id": session, "rid": rid}, rid=uuid.uuid4().hex)
        tokens += text.encode()
        stateless = generate(server, input_ids=tokens, cache_salt="stateless")
        assert answer["output_ids"] == stateless["output_ids"]
        assert answer["meta_info"]["prompt_tokens"] == len(tokens)
        if rid is not None:
            assert answer["meta_info"]["cached_tokens"] >= len(tokens) - len(text) - 1
        tokens += answer["output_ids"]
        rid = answer["meta_info"]["id"]
    post(server, "/close_session", {"session_id": session})


def test_sessions_work_on_the_openai_routes_and_for_streams(server: Any) -> None:
    session = open_session(server)
    options = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    first = post(server, "/v1/completions", {"prompt": "one", "session_params": {"id": session}, **options})
    assert first["usage"]["prompt_tokens"] == 3
    follow = {"session_params": {"id": session, "rid": first["id"]}, **options}
    second = post(server, "/v1/completions", {"prompt": "two", **follow})
    assert second["usage"]["prompt_tokens"] == 9
    shorter = {"session_params": {"id": session, "rid": first["id"], "drop_previous_output": True}}
    dropped = post(server, "/v1/completions", {"prompt": "two", **follow, **shorter})
    assert dropped["usage"]["prompt_tokens"] == 6
    chat = {"messages": [{"role": "user", "content": "hi"}], **follow}
    alone = post(server, "/v1/chat/completions", chat | {"session_params": None})["usage"]["prompt_tokens"]
    assert post(server, "/v1/chat/completions", chat)["usage"]["prompt_tokens"] == alone + 6
    rid = uuid.uuid4().hex
    stream = {"text": "s", "sampling_params": GREEDY, "session_params": {"id": session}, "stream": True, "rid": rid}
    assert "[DONE]" in server.http.post("/generate", json=stream).text
    assert generate(server, text="t", session_params={"id": session, "rid": rid})["meta_info"]["prompt_tokens"] == 6
    post(server, "/close_session", {"session_id": session})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat", "/api/generate"])
def test_sessions_work_in_every_dialect(server: Any, path: str) -> None:
    session, first, second = open_session(server), uuid.uuid4().hex, uuid.uuid4().hex
    started = spoken(server, path, rid=first, session_params={"id": session})
    whole = [sum(started), spoken(server, path)[0]]
    assert spoken(server, path, rid=second, session_params={"id": session, "rid": first})[0] == sum(whole)
    dropped = {"id": session, "rid": first, "drop_previous_output": True}
    assert spoken(server, path, session_params=dropped)[0] == started[0] + whole[1]
    replacing = {"id": session, "rid": first, "replace": True}
    assert spoken(server, path, session_params=replacing)[0] == sum(whole)
    post(server, path, said(path) | {"session_params": {"id": session, "rid": second}}, status=400)
    post(server, "/close_session", {"session_id": session})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat", "/api/generate"])
def test_cache_report_comes_in_every_dialect_whole_and_streamed(server: Any, path: str) -> None:
    salt = {"cache_salt": fresh()}
    assert post(server, path, said(path) | salt).get("usage", {}).get("radixrt") is None, "nobody asked"
    body = said(path) | salt | {"return_cache_report": True}
    answer = post(server, path, body)
    report = answer.get("usage", answer)["radixrt"]
    assert report["matched"] > 0 and report["computed"] == 1 and set(report) == {"matched", "computed", "waited", "diverged_at"}
    streamed = server.http.post(path, json=body | {"stream": True}).text
    assert streamed.count('"matched":' + str(report["matched"])) == 1


def said(path: str) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"model": "toy", "input": "hi", "max_output_tokens": 3, "temperature": 0, "ignore_eos": True}
    options = {"num_predict": 3, "temperature": 0}
    if path == "/api/generate":
        return {"model": "toy", "prompt": "hi", "options": options, "stream": False}
    messages = [{"role": "user", "content": "hi"}]
    if path == "/api/chat":
        return {"model": "toy", "messages": messages, "options": options, "stream": False}
    return {"model": "toy", "messages": messages, "max_tokens": 3, "temperature": 0, "ignore_eos": True}


def spoken(server: Any, path: str, **fields: Any) -> tuple[int, int]:
    """Ask; the length of the whole prompt, and of the answer."""
    answer = post(server, path, said(path) | fields)
    if "usage" not in answer:
        return answer["prompt_eval_count"], answer["eval_count"]
    usage = answer["usage"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0), usage["output_tokens"]


@pytest.mark.parametrize("params", [{"id": "nobody"}, {"rid": "nobody"}, {}, {"id": 1}, {"offset": "x"}, "text"])
def test_bad_session_params_are_refused(server: Any, params: Any) -> None:
    session = open_session(server)
    if isinstance(params, dict) and params.keys() != {"id"} and params:
        params = {"id": session} | params
    generate(server, status=400, text="a", session_params=params)
    body = {"prompt": "a", "max_tokens": 1, "session_params": params}
    post(server, "/v1/completions", body, status=400)
    post(server, "/close_session", {"session_id": session})


def test_closed_sessions_are_gone_and_their_ids_free_again(server: Any) -> None:
    id = f"mine-{uuid.uuid4().hex}"
    assert open_session(server, session_id=id) == id
    post(server, "/open_session", {"session_id": id}, status=400)
    post(server, "/close_session", {"session_id": id})
    post(server, "/close_session", {"session_id": id}, status=400)
    generate(server, status=400, text="a", session_params={"id": id})
    assert open_session(server, session_id=id) == id
    post(server, "/close_session", {"session_id": id})


def test_closing_a_session_drops_what_only_it_used(server: Any) -> None:
    shared, salt = fresh(), uuid.uuid4().hex
    generate(server, text=shared, cache_salt=salt)
    session = open_session(server)
    own = fresh()
    first = generate(server, text=shared + own, session_params={"id": session}, cache_salt=salt)
    rid = first["meta_info"]["id"]
    generate(server, text=" more", session_params={"id": session, "rid": rid}, cache_salt=salt)

    def matched() -> int:
        return post(server, "/v1/cache/explain", {"prompt": shared + own, "cache_salt": salt})["matched_tokens"]

    assert matched() == len(shared + own)
    post(server, "/close_session", {"session_id": session})
    server.wait_for(lambda: matched() == len(shared), 5)


def test_an_idle_session_ends_by_itself(server: Any) -> None:
    session = open_session(server, timeout=0.2)
    generate(server, text="a", session_params={"id": session})
    body = {"text": "a", "sampling_params": GREEDY, "session_params": {"id": session, "replace": True}}
    server.wait_for(lambda: not server.http.get("/server_info").json()["open_sessions"], 5)
    post(server, "/generate", body, status=400)


def test_kv_events_are_published_and_advertised(start_server: Callable[..., Any]) -> None:
    config = {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "topic": "kv"}
    server = start_server("--kv-events-config", json.dumps(config)).wait_ready()
    place = server.http.get("/server_info").json()["kv_events"]
    assert (place["publisher"], place["topic"], place["block_size"], place["dp_size"]) == ("zmq", "kv", 16, 1)
    assert place["endpoint"] == f"tcp://127.0.0.1:{place['endpoint_port_base']}"
    context = zmq.Context()
    try:
        events = context.socket(zmq.SUB)
        events.subscribe(b"kv")
        events.connect(place["endpoint"])
        replay = context.socket(zmq.REQ)
        replay.connect(place["replay_endpoint"])
        while not events.poll(50):  # until the subscription has arrived
            server.http.post("/generate", json={"text": "x" * 40, "sampling_params": GREEDY, "cache_salt": uuid.uuid4().hex})
        topic, number, payload = events.recv_multipart()
        assert (topic, len(number)) == (b"kv", 8)
        _, (stored, *_), rank = msgspec.msgpack.decode(payload)
        assert (stored["type"], stored["token_ids"][:16], rank) == ("BlockStored", [120] * 16, 0)
        replay.send(bytes(8))
        first = replay.recv_multipart()
        assert (first[0], msgspec.msgpack.decode(first[1])[1]) == (bytes(8), [{"type": "AllBlocksCleared"}])
    finally:
        context.destroy(linger=0)


def test_metrics_name_what_the_cache_did(server: Any) -> None:
    text = server.http.get("/metrics").text
    for name in (
        "radixrt_tree_nodes{", "radixrt_pins{", "radixrt_reuse_gap_seconds_bucket{", "radixrt_reuse_gap_seconds_count{",
        "sglang:evicted_tokens_total{", "sglang:cache_hit_rate{", "sglang:num_retracted_requests_total{", "sglang:cache_config_info{",
    ):  # fmt: skip
        assert name in text
