"""Tokens and loads over HTTP."""

from __future__ import annotations

from typing import Any


def test_what_is_tokenized_comes_back(server: Any) -> None:
    cut = server.http.post("/tokenize", json={"prompt": "héllo wörld", "return_token_strs": True}).json()
    assert cut["count"] == len(cut["tokens"]) == len(cut["token_strs"])
    assert cut["max_model_len"] > 0
    whole = server.http.post("/detokenize", json={"tokens": cut["tokens"]}).json()
    assert whole == {"text": "héllo wörld", "prompt": "héllo wörld"}


def test_several_texts_are_cut_at_once(server: Any) -> None:
    texts = ["one", "", "three"]
    cut = server.http.post("/v1/tokenize", json={"prompt": texts}).json()
    assert cut["count"] == [len(tokens) for tokens in cut["tokens"]]
    assert server.http.post("/v1/detokenize", json={"tokens": cut["tokens"]}).json()["text"] == texts


def test_messages_are_cut_as_a_chat_is(server: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    count = server.http.post("/tokenize", json={"messages": messages}).json()["count"]
    chat = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert count == chat["usage"]["prompt_tokens"]


def test_bad_bodies_are_the_callers_fault(server: Any) -> None:
    for path, body in (
        ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": []}), ("/tokenize", {"prompt": ["a"] * 65}),
        ("/tokenize", {"prompt": "a" * 8_000_000}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [1 << 40]}),
        ("/detokenize", {"tokens": [[1]] * 65}), ("/detokenize", {"tokens": [1, [2]]}), ("/detokenize", {}),
    ):
        response = server.http.post(path, json=body)
        assert response.status_code == 400, (path, str(body)[:80])
        assert response.json()["error"]["message"]
    assert server.http.post("/tokenize", json={"prompt": "a", "model": "no-such"}).status_code == 404


def test_the_tokenizer_is_described(server: Any) -> None:
    found = server.http.get("/tokenizer_info").json()
    assert {"eos_token", "bos_token", "chat_template", "vocab_size"} <= set(found)


def test_loads_name_what_routers_read(server: Any) -> None:
    (load,) = server.http.get("/v1/loads?include=core,disagg,queues,memory").json()["loads"]
    assert load["max_total_num_tokens"] > 0
    assert load["num_running_reqs"] == load["num_waiting_reqs"] == 0
    assert server.http.get("/get_load").json()["loads"][0].keys() == load.keys()


def test_a_paused_server_takes_requests_and_answers_them_later(server: Any) -> None:
    assert server.http.post("/pause_generation", json={"mode": "in_place"}).status_code == 200
    try:
        body = {"prompt": "abc", "max_tokens": 3, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            server.wait_for(lambda: server.http.get("/v1/requests").json()["num_waiting"] == 1, 5)
            assert server.http.post("/continue_generation").status_code == 200
            assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"
        assert server.http.post("/pause_generation", json={"mode": "later"}).status_code == 400
    finally:
        server.http.post("/continue_generation")
