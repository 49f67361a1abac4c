"""An engine front over a core that echoes, and how a test waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from echo_core import EchoCore

from radixrt.config import EngineConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.engine.client import ThreadClient
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import FinishReason, SamplingParams

SLOW = "echo/0.005"
LONG = SamplingParams(max_new_tokens=None)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; nothing here takes long unless it hangs."""
    asyncio.run(asyncio.wait_for(coroutine, 20))


class Loader:
    """Loads echo cores and keeps them for inspection."""

    def __init__(self) -> None:
        self.cores: list[EchoCore] = []

    def __call__(self, config: EngineConfig, *, progress: Any = None) -> EchoCore:
        self.cores.append(EchoCore.load(config, progress=progress))
        return self.cores[-1]


def make(model: str = "echo", *, restarts: tuple[float, ...] = (), tokenizer: Any = None) -> AsyncEngine:
    loader = Loader()
    engine = AsyncEngine(
        EngineConfig.of(model_path=model), in_process=True, client=ThreadClient(loader), tokenizer=tokenizer or ToyTokenizer()
    )
    engine._life.restarts = restarts
    engine.cores = loader.cores  # type: ignore[attr-defined]
    return engine


@asynccontextmanager
async def running(model: str = "echo", **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = make(model, **options)
    await engine.start()
    try:
        yield engine
        await settled(engine)
    finally:
        await engine.close()


async def settled(engine: AsyncEngine) -> None:
    """Wait until the core is idle, then check that neither side remembers anything."""
    async with asyncio.timeout(5):
        while engine.num_open or not await engine.flush_cache():
            await asyncio.sleep(0.002)
    assert (engine._answers.rids, len(engine._tickets), len(engine._answers.output)) == ([], 0, 0)
    assert engine.stats.locked_tokens == 0


async def until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.002)


async def answer(engine: AsyncEngine, prompt: str = "abc", count: int = 6) -> str:
    (whole,) = await (await engine.submit(prompt, SamplingParams(max_new_tokens=count))).collect()
    assert whole.finish.reason is FinishReason.LENGTH
    return whole.text


def samples(engine: AsyncEngine) -> dict[str, float]:
    lines = [line for line in engine.metrics_text().decode().splitlines() if not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
