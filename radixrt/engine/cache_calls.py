"""What callers of the engine front may do with the cache: pin and unpin prefixes, explain a prompt, look at the tree."""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from radixrt.config import CacheConfig
from radixrt.engine.questions import AnyAnswer, AnyQuestion, Done, Explain, Explained, Pinned, PinPrefix, TreeView, Unpin, ViewTree
from radixrt.engine.reports import node_view, place_view
from radixrt.engine.stream import RequestStream, failure
from radixrt.errors import RequestError
from radixrt.text.tokenizer import Tokenizer
from radixrt.types import SHARED, ModelInfo, Namespace, SamplingParams

DEFAULT_TTL = 300.0
MAX_NAME_CHARS = 128
MAX_NODES = 1000

# Computes all of a prompt: with no new token at all, K/V of the last one would not be needed.
_COMPUTE = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


class PinReceipt(msgspec.Struct, frozen=True):
    """``tokens`` are pinned until ``expires_at``, in seconds since 1970, unless a request uses them before then."""

    pin_id: str
    tokens: int
    expires_at: float


class Front(Protocol):
    """What is needed of the engine front."""

    tokenizer: Tokenizer
    info: ModelInfo

    def require_ready(self) -> None: ...

    async def submit(self, prompt: Sequence[int], sampling: SamplingParams, *, namespace: Namespace) -> RequestStream: ...


class CacheCalls:
    """The cache of one engine, as its callers see it.

    ``ask`` puts a question to the core and returns its answer; ``config`` tells the core's resolved configuration.
    """

    def __init__(self, front: Front, ask: Callable[[AnyQuestion], Awaitable[AnyAnswer]], config: Callable[[], CacheConfig]) -> None:
        self._front = front
        self._ask = ask
        self._config = config

    async def pin(
        self, prompt: Sequence[int], *, ttl: float | None = None, name: str | None = None, namespace: Namespace = SHARED
    ) -> PinReceipt:
        """Keep a prefix cached until ``ttl`` seconds after its last use; what of it is not cached yet is computed.

        ``name`` replaces what was pinned under it, in the same namespace, before.  Pins are soft: see docs/cache.md.
        Raises RequestError when the prefix is larger than the share of the pool that pins may hold.
        """
        config = self._config()
        ttl = DEFAULT_TTL if ttl is None else ttl
        if not (ttl > 0 and math.isfinite(ttl)):
            raise RequestError("ttl must be a finite number of seconds above 0.", param="ttl", code="invalid_value")
        if name is not None and not 1 <= len(name) <= MAX_NAME_CHARS:
            raise RequestError(f"name must have 1 to {MAX_NAME_CHARS} characters.", param="name", code="invalid_value")
        if config.disable_radix_cache:
            raise RequestError("The prefix cache is switched off.", code="cache_disabled")
        budget = int(self._front.info.capacity_tokens * config.pin_budget)
        if len(prompt) > budget:
            raise RequestError(f"Pins may hold {budget} tokens, the prefix has {len(prompt)}.", param="prompt", code="pin_budget")
        question = PinPrefix(_pin_id(name, namespace), list(prompt), namespace, ttl)
        pinned = await self._pinned(question)
        if pinned.tokens < len(prompt):
            async with await self._front.submit(prompt, _COMPUTE, namespace=namespace) as stream:
                (answer,) = await stream.collect()
            error = failure(answer.finish)
            if error is not None:
                raise error
            pinned = await self._pinned(question)
        return PinReceipt(question.id, pinned.tokens, time.time() + pinned.seconds)

    async def unpin(self, pin_id: str) -> bool:
        """End a pin; False when there is none of that id (any more)."""
        answer = await self._answer(Unpin(pin_id))
        assert isinstance(answer, Done)
        return answer.ok

    async def explain(self, prompt: Sequence[int], *, namespace: Namespace = SHARED) -> dict[str, Any]:
        """Say how much of a prompt is cached and where it leaves the nearest cached sequence; runs and changes nothing."""
        answer = await self._answer(Explain(list(prompt), namespace))
        assert isinstance(answer, Explained)
        found = answer.divergence
        return {
            "prompt_tokens": len(prompt), "matched_tokens": found.matched,
            "diverged_at": place_view(found, prompt, self._front.tokenizer),
        }

    async def tree(
        self, *, depth: int = 3, min_tokens: int = 1, limit: int = 100, namespace: Namespace | None = None
    ) -> dict[str, Any]:
        """Return the upper levels of the tree: ``{"nodes", "num_nodes"}``, parents before children, largest subtrees first.

        ``num_nodes`` tells how many there are of that depth and size when ``limit`` cuts the list short.
        """
        for param, value, most in (("depth", depth, 1 << 30), ("min_tokens", min_tokens, 1 << 30), ("limit", limit, MAX_NODES)):
            if not 1 <= value <= most:
                raise RequestError(f"{param} must be in [1, {most}], got {value}.", param=param, code="invalid_value")
        answer = await self._answer(ViewTree(namespace, depth, min_tokens, limit))
        assert isinstance(answer, TreeView)
        return {"nodes": [node_view(node, self._front.tokenizer) for node in answer.nodes], "num_nodes": answer.num_nodes}

    async def _answer(self, question: AnyQuestion) -> AnyAnswer:
        self._front.require_ready()
        return await self._ask(question)

    async def _pinned(self, question: PinPrefix) -> Pinned:
        answer = await self._answer(question)
        assert isinstance(answer, Pinned)
        return answer


def _pin_id(name: str | None, namespace: Namespace) -> str:
    """The same for the same name in the same namespace, and nothing that others could guess."""
    if name is None:
        return f"pin-{uuid.uuid4().hex}"
    digest = hashlib.sha256()
    for part in (*namespace, name):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"pin-{digest.hexdigest()[:32]}"
