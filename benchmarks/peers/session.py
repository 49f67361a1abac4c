"""One repetition of a workload: words of its own, lengths to scale, and every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from peers.client import Answer, Server
from peers.words import Words


@dataclass(slots=True)
class Session:
    """What a workload works with.  ``slots`` bounds how many requests, or conversations, are open at a time."""

    server: Server
    words: Words
    concurrency: int
    scale: float = 1.0
    heard: Callable[[Answer], None] = lambda answer: None
    answers: list[Answer] = field(default_factory=list)
    inexact: int = 0
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.concurrency)

    def length(self, num_tokens: int) -> int:
        """Tokens to scale, at least one."""
        return max(1, round(num_tokens * self.scale))

    def prompt(self, num_tokens: int) -> str:
        """A cold prompt of so many tokens, to scale."""
        return self.words.prompt(self.length(num_tokens))

    def more(self, num_tokens: int) -> str:
        """So many tokens, to scale, behind a prompt."""
        return self.words.more(self.length(num_tokens))

    async def complete(self, prompt: str, max_tokens: int, *, kind: str = "", exact: int | None = None) -> Answer:
        """Ask for ``max_tokens`` tokens, to scale; ``exact``: the tokens the prompt has, to scale."""
        answer = await self.server.complete(prompt, self.length(max_tokens), kind)
        if exact is not None and answer.num_prompt is not None and answer.num_prompt != self.length(exact):
            self.inexact += 1
        return self._keep(answer)

    async def chat(
        self, messages: Sequence[dict[str, str]], max_tokens: int, *, kind: str = "", schema: Any = None, to_end: bool = False
    ) -> Answer:
        """Ask for a turn of a conversation."""
        return self._keep(await self.server.chat(messages, self.length(max_tokens), kind, schema=schema, to_end=to_end))

    def _keep(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        self.heard(answer)
        return answer
