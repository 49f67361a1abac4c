"""Bodies of other dialects as chat bodies."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt import samplers
from radixrt.errors import RequestError
from radixrt.server.dialects import anthropic_input, ollama_input, responses_input
from radixrt.server.dialects.response_store import ResponseStore
from radixrt.server.translate import chat_plan

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
TEXT = {"type": "text", "text": "hi"}


def responses(**fields: Any) -> dict[str, Any]:
    raw = {"input": "hi", **fields}
    return responses_input.chat_body(raw, responses_input.read_body(raw), [])


def message(**fields: Any) -> dict[str, Any]:
    raw = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    return anthropic_input.chat_body(raw, anthropic_input.read_body(raw))[0]


def test_items_of_a_response_are_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Add 1."}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "web_search_call", "id": "w"},
    ]
    assert responses_input.input_messages(items) == [
        {"role": "user", "content": [{"type": "text", "text": "Add 1."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]


def test_a_response_continues_another_under_its_own_instructions() -> None:
    raw = {"input": "And?", "instructions": "Be brief."}
    history = [{"role": "developer", "content": "Old."}, {"role": "user", "content": "First."}]
    chat = responses_input.chat_body(raw, responses_input.read_body(raw), history)
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief.\n\nOld."}, {"role": "user", "content": "First."}, {"role": "user", "content": "And?"},
    ]


def test_tools_that_are_not_there_are_left_out_of_a_response() -> None:
    function = {"type": "function", "name": "add", "strict": True, "parameters": {}}
    tools = [{"type": "web_search"}, function, {"type": "namespace", "tools": []}]
    chat = responses(tools=tools, tool_choice={"type": "function", "name": "add"}, max_output_tokens=7, reasoning={"effort": "low"})
    assert chat["tools"] == [{"type": "function", "function": {"name": "add", "strict": True, "parameters": {}}}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert (chat["max_completion_tokens"], chat["reasoning_effort"]) == (7, "low")
    assert "tools" not in responses(tools=tools[:1])


def test_the_format_of_a_response_is_a_response_format() -> None:
    given = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    shape = responses(text={"format": given})["response_format"]
    assert shape == {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    assert responses(text={"format": {"type": "text"}})["response_format"] == {"type": "text"}


def test_blocks_of_a_message_are_chat_messages() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    chat = message(
        system=[TEXT, TEXT],
        messages=[
            {"role": "user", "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, TEXT, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [TEXT], "is_error": True}, TEXT]},
        ],
    )
    assert chat["messages"] == [
        {"role": "system", "content": "hi\nhi"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hi", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: hi"},
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "add"}, {"tool_choice": {"type": "function", "function": {"name": "add"}}}),
    ],
)
def test_choices_of_tools(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    tools = [{"name": "add", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}]
    chat = message(tools=tools, tool_choice=choice)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["add"]
    assert {name: chat[name] for name in expected} == expected


def test_what_changes_with_every_request_leaves_the_head_of_the_prompt() -> None:
    def system(n: int) -> str:
        return f"x-anthropic-billing-header: cc_version=1; cch={n}\nYou are an agent.\n<total_tokens>{n} tokens left</total_tokens>"

    first, second = message(system=system(1)), message(system=system(2))
    assert first["messages"][0] == second["messages"][0] == {"role": "system", "content": "You are an agent."}
    assert first["messages"][-1]["content"] == "hi\n<total_tokens>1 tokens left</total_tokens>"
    raw = {"max_tokens": 5, "messages": [], "system": system(1)}
    kept, rules = anthropic_input.chat_body(raw, anthropic_input.read_body(raw), steady=False)
    assert (kept["messages"][0]["content"], rules) == (system(1), [])
    assert anthropic_input.chat_body(raw, anthropic_input.read_body(raw))[1] == ["billing_line", "total_tokens"]
    assert message(system="About <total_tokens> in the middle.")["messages"][0]["content"] == "About <total_tokens> in the middle."


def test_a_ttl_asks_for_a_pin_of_what_comes_before_it() -> None:
    def wish(raw: dict[str, Any]) -> Any:
        body = anthropic_input.read_body(raw)
        return anthropic_input.pin(body, anthropic_input.chat_body(raw, body)[0])

    marked = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    assert wish({"max_tokens": 1, "messages": turns, "system": [{**TEXT, "cache_control": {"type": "ephemeral"}}]}) is None
    ttl, prefix = wish({"max_tokens": 1, "messages": turns, "system": [marked]})
    assert (ttl, len(prefix["messages"]), prefix["add_generation_prompt"]) == (3600.0, 1, False)
    turns[0] = {"role": "user", "content": [marked]}
    assert [m["content"] for m in wish({"max_tokens": 1, "messages": turns, "system": "s"})[1]["messages"]] == ["s", "hi"]


def test_options_of_ollama() -> None:
    body, chat = ollama_input.chat_body(
        {
            "model": "m:latest", "messages": [{"role": "user", "content": "hi"}], "format": {"type": "object"}, "stream": False,
            "options": {"num_predict": 3, "temperature": 0, "repeat_penalty": 1.1, "num_ctx": 4096}, "keep_alive": "5m", "think": False,
        }
    )
    assert body.stream is False
    assert (chat["model"], chat["max_tokens"], chat["temperature"], chat["repetition_penalty"]) == ("m", 3, 0, 1.1)
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert chat["chat_template_kwargs"] == {"enable_thinking": False}
    assert "max_tokens" not in ollama_input.chat_body({"model": "m", "messages": [], "options": {"num_predict": -1}})[1]
    calls = [{"function": {"name": "add", "arguments": {"a": 1}}}]
    made = ollama_input.chat_body({"model": "m", "messages": [{"role": "assistant", "content": "", "tool_calls": calls}]})[1]
    assert made["messages"][0]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1}'}


@pytest.mark.parametrize(
    ("read", "raw", "param"),
    [
        (responses, {"background": True}, "background"),
        (responses, {"input": None}, "input"),
        (responses, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        (responses, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (responses, {"tool_choice": "required"}, "tool_choice"),
        (responses, {"tools": [{"type": "function"}]}, "tools[0].name"),
        (responses, {"text": {"format": 3}}, "text.format"),
        (message, {"max_tokens": None}, "max_tokens"),
        (message, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (message, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        (message, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (message, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (message, {"tools": [{"name": "a"}], "tool_choice": {"type": "what"}}, "tool_choice.type"),
        (message, {"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
    ],
)
def test_what_cannot_be_taken_names_its_place(read: Any, raw: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**raw)
    assert caught.value.param == param


def test_the_store_forgets_the_oldest_and_never_grows_beyond_its_bounds() -> None:
    store = ResponseStore(max_responses=3, max_bytes=1000)
    for number in range(5):
        store.put({"id": f"r{number}"}, [{"role": "user", "content": "x"}])
    assert [store.get(f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    store.put({"id": "large"}, [{"role": "user", "content": "x" * 930}])
    assert store.get("large") is not None
    assert len(store) == 1
    store.put({"id": "too large"}, [{"role": "user", "content": "x" * 2000}])
    assert store.get("too large") is None
    assert store.drop("large")
    assert not store.drop("large")


SAMPLERS = {
    "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n"],
    "xtc_probability": 0.1, "xtc_threshold": 0.2, "typical_p": 0.9, "top_n_sigma": 1.5, "mirostat": 2, "mirostat_tau": 4.0,
    "mirostat_eta": 0.2, "dynatemp_range": 0.3, "dynatemp_exponent": 1.1, "samplers": ["top_k", "temperature"],
}  # fmt: skip


def test_every_dialect_passes_the_samplers_on() -> None:
    assert SAMPLERS.keys() == set(samplers.NAMES)
    wanted = chat_plan({"messages": [{"role": "user", "content": "hi"}], **SAMPLERS}, 100)[1].sampling.chain
    ollama = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "options": SAMPLERS}
    for chat in (responses(**SAMPLERS), message(**SAMPLERS), ollama_input.chat_body(ollama)[1]):
        assert chat_plan(chat, 100)[1].sampling.chain == wanted


@pytest.mark.parametrize(("window", "penalised"), [(None, True), (64, True), (-1, True), (0, False)])
def test_penalties_of_ollama_over_no_tokens_are_none(window: int | None, penalised: bool) -> None:
    penalties = {"repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    options = {**penalties, "temperature": 0.5, **({} if window is None else {"repeat_last_n": window})}
    chat = ollama_input.chat_body({"model": "m", "messages": [], "options": options})[1]
    given = {name: chat[name] for name in ("repetition_penalty", "presence_penalty", "frequency_penalty") if name in chat}
    assert list(given.values()) == (list(penalties.values()) if penalised else [])
    assert chat["temperature"] == 0.5
