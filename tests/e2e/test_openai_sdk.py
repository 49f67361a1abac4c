"""The official OpenAI client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count from one to ten in words."}]


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_chat_has_the_shape_the_client_types_promise(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer._request_id


def test_stream_joins_to_the_whole_and_counts_usage_on_request(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(c.usage is None for c in chunks[:-1])
    assert all(c.choices for c in client.chat.completions.create(**options, stream=True))


def test_embeddings_are_the_same_in_both_encodings(client: OpenAI) -> None:
    texts = ["abc", "abd"]
    numbers = client.embeddings.create(model="toy", input=texts, encoding_format="float")
    # What the client asks for by itself is base64.
    decoded = client.embeddings.create(model="toy", input=texts)
    assert [entry.embedding for entry in numbers.data] == [entry.embedding for entry in decoded.data]
    assert numbers.usage.prompt_tokens == numbers.usage.total_tokens == sum(map(len, texts))
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="toy", input="abc", dimensions=2)


def test_second_turn_reports_cached_tokens(client: OpenAI) -> None:
    first = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=8, temperature=0)
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    turn = [*MESSAGES, answer, {"role": "user", "content": "And now?"}]
    second = client.chat.completions.create(model="toy", messages=turn, max_tokens=4)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 0.8 * first.usage.prompt_tokens


def test_chat_logprobs_are_sorted_and_spell_the_text(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    choice = client.chat.completions.create(**options, extra_body={"ignore_eos": True}).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 6
    for entry in choice.logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(entry.logprob)
    streamed = client.chat.completions.create(**options, stream=True, extra_body={"ignore_eos": True})
    entries = [e for c in streamed for choice in c.choices if choice.logprobs for e in choice.logprobs.content or ()]
    assert [entry.bytes for entry in entries] == [entry.bytes for entry in choice.logprobs.content]


def test_choices_seeds_and_stops(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "max_tokens": 12, "seed": 5}
    both = client.chat.completions.create(**options, n=2)
    again = client.chat.completions.create(**options, n=2)
    assert [c.message.content for c in both.choices] == [c.message.content for c in again.choices]
    assert both.choices[0].message.content != both.choices[1].message.content
    text = both.choices[0].message.content or ""
    stop = text[3:5]
    cut = client.chat.completions.create(**options, stop=[stop, "\x00never"])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_completions_number_choices_over_prompts(client: OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt=["one", "two"], n=2, max_tokens=4, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 6
    alone = client.completions.create(model="toy", prompt="two", max_tokens=4, seed=1)
    assert alone.choices[0].text == answer.choices[2].text


def test_models_are_listed_and_found(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == "toy"
    assert client.models.retrieve("toy").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_errors_map_to_the_clients_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="toy", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"


async def consume(server: Any) -> str:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=8, temperature=0, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_async_client_streams(server: Any, client: OpenAI) -> None:
    import asyncio

    whole = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=8, temperature=0)
    assert asyncio.run(consume(server)) == whole.choices[0].message.content


@pytest.mark.model
def test_real_model_answers_streams_and_caches(model_server: Any) -> None:
    name = "smollm2-135m-instruct"
    with OpenAI(base_url=f"{model_server.url}/v1", api_key="none", timeout=60) as client:
        question: list[Any] = [{"role": "user", "content": "Complete the sentence: The capital of France is"}]
        first = client.chat.completions.create(model=name, messages=question, max_tokens=12, temperature=0)
        text = first.choices[0].message.content or ""
        assert "Paris" in text
        parts = client.chat.completions.create(model=name, messages=question, max_tokens=12, temperature=0, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in parts) == text
        turn = [*question, {"role": "assistant", "content": text}, {"role": "user", "content": "And of Italy?"}]
        second = client.chat.completions.create(model=name, messages=turn, max_tokens=4, temperature=0)
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 0.8 * first.usage.prompt_tokens
