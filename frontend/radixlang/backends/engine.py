"""The embedded engine as a backend: the default model in this process unless another is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from radixlang.backends.tokens import Native, OnText, TokenBackend
from radixrt import Engine


class EngineBackend(TokenBackend):
    """Runs programs on an ``Engine``: the one given, or one made of the given options (none: the default model).

    ``close`` ends an engine that was made here.
    """

    def __init__(self, engine: Engine | None = None, **options: Any) -> None:
        if engine is not None and options:
            raise TypeError("give an engine or options, not both")
        self.engine = engine or Engine(**options)
        self._owned = engine is None
        super().__init__(_EngineTransport(self.engine))

    def close(self) -> None:
        if self._owned:
            self.engine.close()


class _EngineTransport:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._engine.encode(text, add_special_tokens=add_special_tokens)

    async def encode_chat(self, messages: Sequence[dict[str, str]], *, unfinished: bool) -> list[int]:
        return self._engine.encode_chat(messages, continue_final_message=unfinished)

    async def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._engine.decode(tokens, skip_special_tokens=skip_special_tokens)

    async def generate(self, tokens: Sequence[int], params: Native, *, on_answer: OnText | None = None, **options: Any) -> list[Native]:
        if on_answer is None:
            answer = await self._engine.async_generate(None, params, input_ids=tokens, **options)
            return answer if isinstance(answer, list) else [answer]
        answers: dict[int, Native] = {}
        stream = await self._engine.async_generate(None, params, input_ids=tokens, stream=True, **options)
        ended: set[int] = set()
        try:
            async for event in stream:
                index = event.get("index", 0)
                if index in ended:
                    continue
                answers[index] = event
                if on_answer(event):
                    ended.add(index)
                    if len(ended) == params.get("n", 1):
                        break
        finally:
            await stream.aclose()
        return [answers[index] for index in sorted(answers)]

    async def start_token(self) -> int:
        bos = self._engine.encode("")
        return bos[0] if bos else self._engine.get_server_info()["model_info"]["eos_token_ids"][0]

    async def pin(self, tokens: Sequence[int], ttl: float) -> str:
        return (await asyncio.to_thread(self._engine.pin, list(tokens), ttl=ttl)).pin_id

    async def unpin(self, pin: str) -> None:
        await asyncio.to_thread(self._engine.unpin, pin)

    async def open_session(self) -> str:
        return await asyncio.to_thread(self._engine.open_session)

    async def close_session(self, session: str) -> None:
        await asyncio.to_thread(self._engine.close_session, session)
