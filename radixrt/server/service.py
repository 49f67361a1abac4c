"""What every route needs: the engine, the names under which it is served, and the steps from a body to request streams."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

from radixrt.config import ServerConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.stream import RequestStream
from radixrt.errors import EngineStopped
from radixrt.server.sse import Outputs
from radixrt.server.translate import Plan, bounded
from radixrt.server.wire import TokenNames


class Service:
    """The engine as the routes see it."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.created = int(time.time())
        self.started = time.time()
        path = engine.config.model.model_path
        self.model_names = (*config.served_model_name, path)
        self.model_name = self.model_names[0]
        self.served_names = config.served_model_name or (path,)
        self._names: TokenNames | None = None

    @property
    def names(self) -> TokenNames:
        if self._names is None:
            self._names = TokenNames(self.engine.tokenizer)
        return self._names

    @property
    def vocab_size(self) -> int:
        return self.engine.info.vocab_size

    def require_ready(self) -> None:
        """Raise EngineStopped (503) unless requests are taken."""
        status = self.engine.status
        if status != "ready":
            reasons = {"starting": "The model is still loading.", "draining": "The server is shutting down."}
            raise EngineStopped(reasons.get(status, "The engine is not running."))

    @property
    def known(self) -> bool:
        """Whether the model has been loaded, so that ``engine.info`` is there."""
        return hasattr(self.engine, "info")

    def require_known(self) -> None:
        """Raise EngineStopped (503) before the model has been loaded."""
        if not self.known:
            raise EngineStopped("The model is still loading.")

    async def submit(
        self,
        prompts: Sequence[str | list[int]],
        plans: Sequence[Plan],
        rids: Sequence[str],
        *,
        param: str,
        logprobs_param: str = "logprobs",
    ) -> Outputs:
        """Submit a request a prompt, all or none; the params are the fields to name in errors."""
        tokens = [await self.engine.encode(prompt, param=param) if isinstance(prompt, str) else prompt for prompt in prompts]
        for plan, ids in zip(plans, tokens, strict=True):
            if plan.logprobs is not None:
                plan.logprobs.validate(self.vocab_size, len(ids))
        plans = bounded(plans, [len(ids) for ids in tokens], self.engine.max_tokens, logprobs_param, self.config)
        streams: list[RequestStream] = []
        try:
            for ids, plan, rid in zip(tokens, plans, rids, strict=True):
                # Checking and starting a request takes a while when it is large, and there may be many.
                await asyncio.sleep(0)
                stream = await self.engine.submit(
                    ids, plan.sampling, rid=rid, logprobs=plan.logprobs, namespace=plan.namespace, priority=plan.priority,
                    session=plan.session, want_report=plan.want_report, routing_key=plan.routing_key, prompt_param=param,
                )
                streams.append(stream)
        except BaseException:
            await Outputs(streams).aclose()
            raise
        return Outputs(streams)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def numbered(id: str, count: int) -> list[str]:
    """Request ids of several prompts under one id."""
    return [id] if count == 1 else [f"{id}_{i}" for i in range(count)]


async def wait_until(holds: Callable[[], Awaitable[bool]], timeout: float, *, interval: float = 0.05) -> bool:
    """Try until ``holds`` or the time is up; at least once."""
    deadline = time.monotonic() + timeout
    while not await holds():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(interval)
    return True
