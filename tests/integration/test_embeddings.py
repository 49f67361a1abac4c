"""Embeddings: the mean of a prompt's hidden states, whatever the cache, the chunks, the batch and the pool; and their route."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from conformance_models import OURS, PROMPT, save

from radixrt.config import EngineConfig, ServerConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.models.toy import ToyModel
from radixrt.server.app import build_app
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import SamplingParams

PROMPTS = [list(range(97, 97 + 20)), [97], list(b"Embed me " * 30), list(b"Embed me " * 30)[:200]]


def toy_mean(prompt: Sequence[int]) -> list[float]:
    """The definition, on the toy model: the mean over hashes of all beginnings of the prompt."""
    tokens = torch.tensor(list(prompt))
    hashes = ((tokens + 1) * ToyModel()._weights[: len(prompt)]).cumsum(0)
    return [sum(hashes.double().tolist()) / len(prompt)]


def embedded(*, prompts: Sequence[Sequence[int]] = PROMPTS, rounds: int = 1, beside: int = 0, model: str = "toy", **options: Any) -> Any:
    """Embed prompts at once, several times over, beside requests that generate; return the rounds."""

    async def one(engine: AsyncEngine, prompt: Sequence[int]) -> list[float]:
        (answer,) = await (await engine.submit(list(prompt), SamplingParams(), embed=True)).collect()
        assert (answer.token_ids, answer.text, answer.usage.completion_tokens) == ([], "", 0)
        assert answer.embedding is not None
        return answer.embedding

    async def run() -> list[list[list[float]]]:
        config = EngineConfig.of(model_path=model, random_seed=1, **options)
        engine = AsyncEngine(config, in_process=True, tokenizer=ToyTokenizer())
        await engine.start()
        try:
            sampling = SamplingParams(max_new_tokens=80, ignore_eos=True)
            others = [await engine.submit([98 + i] * 40, sampling) for i in range(beside)]
            found = [list(await asyncio.gather(*(one(engine, prompt) for prompt in prompts))) for _ in range(rounds)]
            for other in others:
                await other.collect()
            assert engine.stats.locked_tokens == 0
            return found
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rounds": 2},
        {"beside": 3, "rounds": 2},
        {"chunked_prefill_size": 7},
        {"chunked_prefill_size": 16, "overlap_schedule": "off"},
        {"chunked_prefill_size": 16, "overlap_schedule": "on"},
        {"disable_radix_cache": True},
        {"max_running_requests": 1},
        {"max_total_tokens": 400, "beside": 3, "rounds": 2, "chunked_prefill_size": 32},
    ],
    ids=str,
)
def test_an_embedding_is_the_mean_of_the_hidden_states_however_it_is_computed(options: dict[str, Any]) -> None:
    for found in embedded(**options):
        assert found == [toy_mean(prompt) for prompt in PROMPTS]


def test_it_is_the_mean_of_the_last_hidden_states_of_the_model(tmp_path: Path) -> None:
    reference = save(OURS["llama-tied"], tmp_path)
    with torch.inference_mode():
        hidden = reference(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1][0]
    found = embedded(prompts=[PROMPT], model=str(tmp_path), dtype="float32", chunked_prefill_size=6)
    np.testing.assert_allclose(found[0][0], hidden.mean(dim=0).numpy(), atol=1e-4)


def test_the_route_gives_vectors_of_length_one_and_counts_tokens() -> None:
    async def run() -> None:
        engine = AsyncEngine(EngineConfig.of(model_path="toy"), in_process=True)
        await engine.start()
        try:
            transport = httpx.ASGITransport(build_app(engine, ServerConfig(max_prompts=4)))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

                async def ask(**body: Any) -> Any:
                    return (await client.post("/v1/embeddings", json=body)).json()

                texts = ["abc", "hello there"]
                whole = await ask(model="toy", input=texts)
                assert [(entry["object"], entry["index"]) for entry in whole["data"]] == [("embedding", 0), ("embedding", 1)]
                assert whole["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
                for text, entry in zip(texts, whole["data"], strict=True):
                    assert entry["embedding"] == np.sign(toy_mean(text.encode())).tolist()
                    alone = await ask(input=text, encoding_format="base64")
                    ids = await ask(input=list(text.encode()))
                    assert ids["data"][0]["embedding"] == entry["embedding"]
                    assert np.frombuffer(base64.b64decode(alone["data"][0]["embedding"]), "<f4").tolist() == entry["embedding"]
                    assert alone["usage"]["prompt_tokens"] == len(text)
                for wrong, param in (
                    ({}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": ["a"] * 5}, "input"),
                    ({"input": "a", "dimensions": 3}, "dimensions"), ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
                    ({"input": "a" * 10_000}, "input"), ({"input": [1, 999]}, "input"),
                ):  # fmt: skip
                    assert (await ask(**wrong))["error"]["param"] == param, wrong
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(run(), 60))
