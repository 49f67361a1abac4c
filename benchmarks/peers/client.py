"""A server under measurement: what it is asked, and what came back when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from peers.exchange import BadResponse, Response, exchange
from radixrt.errors import ConfigError

MODELS_SECONDS = 10.0


@dataclass(slots=True)
class Answer:
    """One request; times in seconds of the monotonic clock.

    times: when each piece of text came.  num_output: tokens by the server's count, pieces where it gives none.
    cached: prompt tokens from the cache, None where the server does not say.  error: why there is no answer, or "".
    """

    kind: str
    sent: float
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    num_prompt: int | None = None
    num_output: int = 0
    cached: int | None = None
    finish: str = ""
    error: str = ""


class Server:
    """One OpenAI-compatible server."""

    def __init__(
        self, base_url: str, *, label: str = "", api_key: str | None = None, model: str | None = None, timeout: float = 900
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"no http or https URL: {base_url!r}")
        self.label = label or url.netloc
        self.timeout = timeout
        self.model = model or ""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def find_model(self) -> None:
        """Ask for the name of the model, unless it was given.  Raises ConfigError when the server cannot be reached."""
        try:
            async with httpx.AsyncClient(headers=self._headers, timeout=MODELS_SECONDS, trust_env=False) as client:
                answer = await client.get(f"{self.base_url}/v1/models")
                self.model = self.model or str(answer.raise_for_status().json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise ConfigError(f"{self.label}: no model at {self.base_url}/v1/models: {type(error).__name__} {error}") from error

    async def complete(self, prompt: str, max_tokens: int, kind: str) -> Answer:
        """Ask for ``max_tokens`` tokens behind a text."""
        return await self._ask("/v1/completions", {"prompt": prompt, "ignore_eos": True}, max_tokens, kind)

    async def chat(self, messages: Sequence[dict[str, str]], max_tokens: int, kind: str, *, schema: Any = None, to_end: bool) -> Answer:
        """Ask for a turn: all ``max_tokens`` tokens, or ``to_end`` of the answer; under a JSON schema where one is given."""
        body: dict[str, Any] = {"messages": list(messages)} | ({} if to_end else {"ignore_eos": True})
        if schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        return await self._ask("/v1/chat/completions", body, max_tokens, kind)

    async def _ask(self, path: str, fields: dict[str, Any], max_tokens: int, kind: str) -> Answer:
        body = {
            "model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        } | fields
        answer = Answer(kind, time.monotonic())
        try:
            response = await exchange(self.base_url, path, orjson.dumps(body), self._headers, self.timeout)
            answer.ended = time.monotonic()
            read_stream(response, answer)
        except (OSError, TimeoutError, BadResponse) as error:
            answer.ended = time.monotonic()
            answer.error = f"{type(error).__name__}: {error}"
        return answer


def read_stream(response: Response, answer: Answer) -> None:
    """Read the events of a stream into the answer."""
    if response.status != 200:
        answer.error = f"{response.status}: {response.body[:300].decode(errors='replace')}"
        return
    parts = []
    ended = False
    for at, line in response.lines():
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            ended = True
            continue
        try:
            event = orjson.loads(payload)
            text = _take(event, answer)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise BadResponse(f"no event of a stream: {payload[:200]!r}") from error
        if text:
            answer.times.append(at)
            parts.append(text)
    answer.text = "".join(parts)
    answer.num_output = answer.num_output or len(parts)
    if not ended and not answer.error:
        answer.error = "the stream ended without [DONE]"


def _take(event: dict[str, Any], answer: Answer) -> str:
    """Take in what an event says; returns its text."""
    if event.get("error"):
        answer.error = f"in the stream: {event['error']}"[:300]
    text = ""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text += choice.get("text") or delta.get("reasoning_content") or delta.get("content") or ""
        answer.finish = choice.get("finish_reason") or answer.finish
    if usage := event.get("usage"):
        answer.num_prompt, answer.num_output = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if answer.cached is None and "cache_n" in (timings := event.get("timings") or {}):  # llama.cpp says it here
        answer.cached = timings["cache_n"]
    return text
