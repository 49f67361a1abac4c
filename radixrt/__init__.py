"""radixrt serves language models to agents: a radix-tree KV cache, a cache-aware scheduler, an engine and a server.

Only public names; each is imported when it is first used, so that ``import radixrt`` loads neither torch nor a server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixrt.config import EngineConfig
    from radixrt.engine.async_engine import AsyncEngine
    from radixrt.engine.engine import Engine
    from radixrt.errors import (
        ConfigError,
        EngineStopped,
        GrammarError,
        InternalError,
        InvalidSampling,
        Overloaded,
        PromptTooLong,
        RadixrtError,
        RequestError,
        UnknownModel,
    )
    from radixrt.types import LogprobOptions, SamplingParams

    __version__: str

__all__ = [
    "AsyncEngine",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EngineStopped",
    "GrammarError",
    "InternalError",
    "InvalidSampling",
    "LogprobOptions",
    "Overloaded",
    "PromptTooLong",
    "RadixrtError",
    "RequestError",
    "SamplingParams",
    "UnknownModel",
    "__version__",
]

_HOMES = {
    "AsyncEngine": "radixrt.engine.async_engine",
    "Engine": "radixrt.engine.engine",
    "EngineConfig": "radixrt.config",
    "LogprobOptions": "radixrt.types",
    "SamplingParams": "radixrt.types",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'radixrt' has no attribute {name!r}")
    home = _HOMES.get(name, "radixrt.errors")
    value = _version() if name == "__version__" else getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version("radixrt")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"
