"""Tool calls and reasoning through a real server, by a model that would never call anything of its own accord."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import openai
import pytest
from openai import OpenAI

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "ping": {"type": "object", "additionalProperties": False}}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "ping"}},
]
MESSAGES: Any = [{"role": "user", "content": "Weather in Paris for 3 days?"}]


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("choice", ["required", named("get_weather"), named("ping")])
def test_a_call_that_is_required_is_made_and_streams_as_it_is(client: OpenAI, choice: Any, temperature: float) -> None:
    sampling = {"temperature": temperature, "seed": 3, "max_tokens": 400}
    options: Any = {"model": "toy", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, **sampling}
    whole = client.chat.completions.create(**options).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    assert whole.message.tool_calls
    for call in whole.message.tool_calls:
        jsonschema_rs.validate(SCHEMAS[call.function.name], json.loads(call.function.arguments))
    if choice != "required":
        assert [call.function.name for call in whole.message.tool_calls] == [choice["function"]["name"]]
    assert len({call.id for call in whole.message.tool_calls}) == len(whole.message.tool_calls)

    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    finishes = []
    for chunk in client.chat.completions.create(**options, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.function is not None
            if delta.index not in names:
                assert delta.id
                names[delta.index], arguments[delta.index] = delta.function.name or "", ""
            else:
                assert delta.id is None
                assert delta.function.name is None
            arguments[delta.index] += delta.function.arguments or ""
        finishes += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    made = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert [(names[i], arguments[i]) for i in sorted(names)] == made
    assert finishes == ["tool_calls"]


def test_one_call_at_most_where_calls_are_not_to_be_parallel(client: OpenAI) -> None:
    for seed in range(5):
        answer = client.chat.completions.create(
            model="toy", messages=MESSAGES, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed, max_tokens=400
        )
        assert len(answer.choices[0].message.tool_calls or []) == 1


def test_results_of_calls_reach_the_prompt_behind_what_is_cached(client: OpenAI) -> None:
    first = client.chat.completions.create(model="toy", messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=3, max_tokens=400)
    message = first.choices[0].message.model_dump(exclude_none=True)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12 degrees"} for call in message["tool_calls"]]
    second = client.chat.completions.create(
        model="toy", messages=[*MESSAGES, message, *results], tools=TOOLS, tool_choice="none", max_tokens=4
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # The call is shown to the model as it wrote it, so its K/V is found again.
    written = first.usage.prompt_tokens + first.usage.completion_tokens
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= written - 1
    assert second.choices[0].message.tool_calls is None


def test_a_call_that_does_not_fit_is_cut_off(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=MESSAGES, tools=TOOLS, tool_choice="required", max_tokens=3)
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tool_choice": named("nobody")}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": TOOLS * 2}, "tools[2].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ],
)
def test_what_cannot_be_is_refused(client: OpenAI, changes: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": "toy", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 8, **changes})
    assert error.value.param == param


def test_schemas_that_cannot_be_enforced_are_refused_where_they_must_be(client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"pattern": "(?<=x)y"}}}}}
    options: Any = {"model": "toy", "messages": MESSAGES, "tools": [tool], "max_tokens": 8, "seed": 1}
    with pytest.raises(openai.BadRequestError, match="'f'"):
        client.chat.completions.create(**options, tool_choice="required")
    assert client.chat.completions.create(**options).choices[0].finish_reason == "length"


def test_the_answer_after_reasoning_is_constrained_and_told_apart(start_server: Callable[..., Any]) -> None:
    server = start_server("--reasoning-parser", "deepseek-r1").wait_ready()
    body = {
        "messages": MESSAGES, "temperature": 0, "max_tokens": 120,
        "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}},
    }  # fmt: skip
    message = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert len(message["reasoning_content"]) > 20
    jsonschema_rs.validate(WEATHER, json.loads(message["content"]))
    joined = server.http.post("/v1/chat/completions", json=body | {"separate_reasoning": False}).json()["choices"][0]["message"]
    assert "reasoning_content" not in joined
    thought, _, content = joined["content"].partition("</think>")
    assert (thought.strip(), content) == (message["reasoning_content"], message["content"])
    calls = {key: value for key, value in body.items() if key != "response_format"} | {"tools": TOOLS, "tool_choice": "required"}
    message = server.http.post("/v1/chat/completions", json=calls).json()["choices"][0]["message"]
    assert len(message["reasoning_content"]) > 20
    assert message["tool_calls"]
    history = [*MESSAGES, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12"}]
    assert server.http.post("/v1/chat/completions", json={"messages": history, "max_tokens": 2}).status_code == 200
