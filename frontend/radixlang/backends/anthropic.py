"""Anthropic's Messages API as a backend."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from radixlang.backends.base import Plain, Request
from radixlang.backends.client import JsonClient
from radixlang.options import DEFAULT_MAX_TOKENS, Sampling
from radixlang.piece import Answer, messages_of
from radixrt import RequestError

VERSION = "2023-06-01"
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class AnthropicBackend(Plain):
    """Runs programs with roles on a model of Anthropic's, or a server with the same route.

    ``api_key``: default, the environment's ANTHROPIC_API_KEY.  A message that was begun is gone on with; it may not end in a space.
    """

    def __init__(
        self, model: str, *, base_url: str = "https://api.anthropic.com/v1", api_key: str | None = None, transport: Any = None
    ) -> None:
        key = api_key or os.environ.get("ANTHROPIC_API_KEY", "")
        self._client = JsonClient(base_url, {"x-api-key": key, "anthropic-version": VERSION}, transport=transport)
        self._model = model

    async def generate(self, request: Request) -> list[Answer]:
        if request.before is None or not request.before.chat:
            raise RequestError("This API takes messages: put the text of the program into roles.", code="unsupported_parameter")
        messages = messages_of(request.before)
        if not messages[-1]["content"]:
            messages.pop()
        system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
        body = {
            "model": self._model, "messages": [message for message in messages if message["role"] != "system"],
            **({"system": system} if system else {}), **_parameters(request.sampling),
        }  # fmt: skip
        calls = (self._call(body, request.on_text if i == 0 else None) for i in range(request.sampling.n or 1))
        return list(await asyncio.gather(*calls))

    async def _call(self, body: dict[str, Any], on_text: Callable[[str], None] | None) -> Answer:
        if on_text is not None:
            return await self._streamed(body, on_text)
        reply = await self._client.post("messages", body)
        text = "".join(block.get("text", "") for block in reply["content"])
        return Answer(text, meta=_meta(reply.get("stop_reason"), reply.get("stop_sequence"), reply.get("usage") or {}))

    async def _streamed(self, body: dict[str, Any], on_text: Callable[[str], None]) -> Answer:
        usage: dict[str, Any] = {}
        text, reason, matched = "", None, None
        async for event in self._client.events("messages", {**body, "stream": True}):
            delta = event.get("delta") or {}
            usage |= (event.get("message") or {}).get("usage") or event.get("usage") or {}
            reason = delta.get("stop_reason") or reason
            matched = delta.get("stop_sequence") or matched
            if delta.get("text"):
                text += delta["text"]
                on_text(delta["text"])
        return Answer(text, meta=_meta(reason, matched, usage))


def _parameters(sampling: Sampling) -> dict[str, Any]:
    given = sampling.given()
    unknown = given.keys() - {"max_tokens", "stop", "temperature", "top_p", "top_k", "n"}
    if unknown:
        raise RequestError(f"This API does not take {', '.join(sorted(unknown))}.", param=min(unknown), code="unsupported_parameter")
    body: dict[str, Any] = {name: given[name] for name in ("temperature", "top_p", "top_k") if name in given}
    body["max_tokens"] = given.get("max_tokens", DEFAULT_MAX_TOKENS)
    if sampling.stops:
        body["stop_sequences"] = list(sampling.stops)
    return body


def _meta(reason: str | None, matched: str | None, usage: dict[str, Any]) -> dict[str, Any]:
    cached = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    return {
        "finish_reason": {"type": _REASONS.get(reason or "", reason), "matched": matched},
        "prompt_tokens": (usage.get("input_tokens") or 0) + cached + written, "cached_tokens": cached,
        "completion_tokens": usage.get("output_tokens") or 0,
    }  # fmt: skip
