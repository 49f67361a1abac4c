"""A radixrt server as a backend: everything that the embedded engine does, over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixlang.backends.client import JsonClient
from radixlang.backends.tokens import Native, OnText, TokenBackend

# A session whose program was lost ends by itself.
SESSION_SECONDS = 3600.0


class HttpBackend(TokenBackend):
    """Runs programs on a radixrt server.  ``base_url``: such as ``http://127.0.0.1:30000``.

    For other servers and providers with OpenAI's routes use ``OpenAIBackend``.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, transport: Any = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__(_HttpTransport(JsonClient(base_url, headers, transport=transport)))


class _HttpTransport:
    def __init__(self, client: JsonClient) -> None:
        self._client = client
        self._start: int | None = None

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._tokens({"prompt": text, "add_special_tokens": add_special_tokens})

    async def encode_chat(self, messages: Sequence[dict[str, str]], *, unfinished: bool) -> list[int]:
        body = {"messages": list(messages), "add_generation_prompt": not unfinished, "continue_final_message": unfinished}
        return await self._tokens(body)

    async def _tokens(self, body: Native) -> list[int]:
        tokens: list[int] = (await self._client.post("tokenize", body))["tokens"]
        return tokens

    async def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        if not tokens:
            return ""
        body = {"tokens": list(tokens), "skip_special_tokens": skip_special_tokens}
        return str((await self._client.post("detokenize", body))["text"])

    async def generate(self, tokens: Sequence[int], params: Native, *, on_answer: OnText | None = None, **options: Any) -> list[Native]:
        body = {"input_ids": list(tokens), "sampling_params": params, **options}
        if on_answer is None:
            answer = await self._client.post("generate", body)
            return answer if isinstance(answer, list) else [answer]
        answers: dict[int, Native] = {}
        ended: set[int] = set()
        events = self._client.events("generate", {**body, "stream": True})
        try:
            async for event in events:
                index = event.get("index", 0)
                if index in ended:
                    continue
                answers[index] = event
                if on_answer(event):
                    ended.add(index)
                    if len(ended) == params.get("n", 1):
                        break
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        return [answers[index] for index in sorted(answers)]

    async def start_token(self) -> int:
        if self._start is None:
            begun = await self.encode("", add_special_tokens=True)
            self._start = begun[0] if begun else (await self._client.get("model_info"))["eos_token_ids"][0]
        return self._start

    async def pin(self, tokens: Sequence[int], ttl: float) -> str:
        return str((await self._client.post("v1/cache/pin", {"input_ids": list(tokens), "ttl": ttl}))["pin_id"])

    async def unpin(self, pin: str) -> None:
        await self._client.post("v1/cache/unpin", {"pin_id": pin})

    async def open_session(self) -> str:
        return str(await self._client.post("open_session", {"timeout": SESSION_SECONDS}))

    async def close_session(self, session: str) -> None:
        await self._client.post("close_session", {"session_id": session})
