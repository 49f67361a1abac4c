"""Configuration: frozen dataclasses whose metadata generates the command line, and ``resolve``, which turns every
``auto`` into a value.  Flag names and defaults are SGLang's where the idea is the same.  Nothing here is read from a
global: constructors elsewhere take the values they need.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import psutil

from radixrt.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"


def option(default: Any, help: str, *, choices: tuple[str, ...] = (), metavar: str = "", aliases: tuple[str, ...] = ()) -> Any:
    """Declare a configuration field together with what its command-line flag needs."""
    return field(default=default, metadata={"help": help, "choices": choices, "metavar": metavar, "aliases": aliases})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is loaded."""

    model_path: str = option(
        DEFAULT_MODEL, "alias, .gguf file, Hugging Face folder, hub id, or 'toy'", aliases=("--model",)
    )
    tokenizer_path: str | None = option(None, "tokenizer folder or file, when it does not lie with the model")
    revision: str | None = option(None, "revision of a hub id")
    load_format: str = option("auto", "where the weights come from", choices=("auto", "gguf", "safetensors", "dummy"))
    model_impl: str = option(
        "auto", "radixrt's own model code, transformers' with radixrt's attention, or whichever fits",
        choices=("auto", "radixrt", "transformers"),
    )
    dtype: str = option("auto", "type of weights and activations", choices=("auto", "float32", "bfloat16", "float16"))
    context_length: int | None = option(None, "longest prompt + output; default: the model's", metavar="TOKENS")
    device: str = option("auto", "where the model runs", choices=("auto", "cpu", "cuda"))
    attention_backend: str = option("auto", "attention implementation", choices=("auto", "torch_sdpa"))
    random_seed: int | None = option(None, "seed for requests that bring none; default: random")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The KV pool and the radix tree."""

    max_total_tokens: int | None = option(None, "size of the KV pool; default: by memory", metavar="TOKENS")
    mem_fraction_static: float | None = option(None, "share of the memory left after loading that the KV pool may take")
    kv_cache_dtype: str = option("auto", "type of stored K/V", choices=("auto", "float32", "bfloat16", "float16"))
    disable_radix_cache: bool = option(False, "share no prefixes")
    radix_eviction_policy: str = option("lru", "what leaves a full cache first", choices=("lru",))


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Which requests run, and how a step is filled."""

    schedule_policy: str = option("fcfs", "order of the waiting requests", choices=("fcfs", "lpm"))
    chunked_prefill_size: int | None = option(
        None, "most tokens computed in one step, -1 for no limit; default: by device", metavar="TOKENS"
    )
    max_running_requests: int | None = option(None, "most requests running at once; default: by device")
    disable_overlap_schedule: bool = option(False, "do the host work of a step after its forward pass, not under it")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    @classmethod
    def of(cls, **options: Any) -> EngineConfig:
        """Build a config from flat option names (``model_path=…, schedule_policy=…``).

        Raises ConfigError, with the nearest name, for a name that no group has.
        """
        groups = {"model": ModelConfig, "cache": CacheConfig, "schedule": ScheduleConfig}
        parts: dict[str, dict[str, Any]] = {group: {} for group in groups}
        owner = {f.name: group for group, kind in groups.items() for f in fields(kind)}
        for name, value in options.items():
            if name not in owner:
                raise ConfigError(f"unknown option {name!r}{nearest(name, owner)}")
            parts[owner[name]][name] = value
        return cls(**{group: kind(**parts[group]) for group, kind in groups.items()})


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The HTTP side."""

    host: str = option("127.0.0.1", "address to listen on; anything but loopback needs --api-key")
    port: int = option(30000, "port to listen on, 0 for any free one")
    api_key: str | None = option(None, "bearer token that every request must carry")
    served_model_name: str | None = option(None, "model name clients see; default: --model-path")
    log_level: str = option("info", "least severe log line shown", choices=("debug", "info", "warning", "error"))
    log_requests: bool = option(False, "log one line a request (ids, counts and times; never its text)")
    max_body_bytes: int = option(8 << 20, "largest request body taken", metavar="BYTES")
    drain_timeout: float = option(30.0, "seconds that running requests get to finish when the server is told to stop", metavar="SECONDS")
    incremental_streaming_output: bool = option(False, "let streams of /generate carry only what is new, not the whole text each time")
    allow_remote_without_api_key: bool = option(False, "listen beyond loopback without an API key: anyone who reaches the port may use it")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the machine has: the input of ``resolve`` besides the configuration."""

    cuda: bool = False
    cuda_bf16: bool = False
    num_cpus: int = 1
    memory_bytes: int = 8 << 30

    @classmethod
    def detect(cls) -> Hardware:
        """Read this machine.  Imports torch."""
        import torch

        cuda = torch.cuda.is_available()
        if cuda:
            memory = torch.cuda.get_device_properties(0).total_memory
        else:
            memory = psutil.virtual_memory().available
        num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(cuda=cuda, cuda_bf16=cuda and torch.cuda.is_bf16_supported(), num_cpus=num_cpus, memory_bytes=memory)


def resolve(config: EngineConfig, hardware: Hardware) -> EngineConfig:
    """Return the config with every ``auto`` turned into a value; pure.

    ``context_length`` and ``max_total_tokens`` may stay None: they need the model's shape, which only loading tells.
    Raises ConfigError for values or combinations that cannot work.
    """
    model, cache, schedule = config.model, config.cache, config.schedule
    device = model.device if model.device != "auto" else "cuda" if hardware.cuda else "cpu"
    if device == "cuda" and not hardware.cuda:
        raise ConfigError("--device cuda: no usable CUDA device")
    dtype = model.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16" if hardware.cuda_bf16 else "float16"
    chunk = schedule.chunked_prefill_size
    if chunk is None:
        chunk = 512 if device == "cpu" else 8192
    model = replace(
        model, device=device, dtype=dtype,
        attention_backend="torch_sdpa" if model.attention_backend == "auto" else model.attention_backend,
    )
    cache = replace(
        cache,
        kv_cache_dtype=dtype if cache.kv_cache_dtype == "auto" else cache.kv_cache_dtype,
        mem_fraction_static=0.5 if cache.mem_fraction_static is None else cache.mem_fraction_static,
    )
    schedule = replace(
        schedule, chunked_prefill_size=chunk,
        max_running_requests=(64 if device == "cpu" else 256) if schedule.max_running_requests is None else schedule.max_running_requests,
    )
    resolved = EngineConfig(model=model, cache=cache, schedule=schedule)
    _check(resolved)
    return resolved


def _check(config: EngineConfig) -> None:
    for part in (config.model, config.cache, config.schedule):
        for f in fields(part):
            value, choices = getattr(part, f.name), f.metadata["choices"]
            if choices and value not in choices:
                raise ConfigError(f"{flag(f.name)} {value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}")
    cache, schedule = config.cache, config.schedule
    positive = (
        ("context_length", config.model.context_length),
        ("max_total_tokens", cache.max_total_tokens),
        ("max_running_requests", schedule.max_running_requests),
    )
    for name, value in positive:
        if value is not None and value < 1:
            raise ConfigError(f"{flag(name)} must be at least 1, got {value}")
    chunk = schedule.chunked_prefill_size
    if chunk is not None and chunk != -1 and chunk < 1:
        raise ConfigError(f"--chunked-prefill-size must be -1 (no limit) or at least 1, got {chunk}")
    fraction = cache.mem_fraction_static
    if fraction is not None and not 0.0 < fraction <= 1.0:
        raise ConfigError(f"--mem-fraction-static must be in (0, 1], got {fraction}")
    if cache.disable_radix_cache and schedule.schedule_policy == "lpm":
        raise ConfigError("--schedule-policy lpm orders by cached prefixes, which --disable-radix-cache switches off")


def flag(name: str) -> str:
    """The command-line flag of a field name."""
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error about an unknown name, or ''."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
