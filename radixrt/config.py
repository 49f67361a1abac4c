"""Configuration: frozen dataclasses whose metadata generates the command line, and ``resolve``, which turns every
``auto`` into a value.  Flag names and defaults are SGLang's where the idea is the same.  Nothing here is read from a
global: constructors elsewhere take the values they need.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import psutil

from radixrt.errors import ConfigError
from radixrt.limits import Limits
from radixrt.options import option

SCHEDULE_POLICIES = ("lpm", "fcfs", "priority", "lof", "shortest-prefill-first", "dfs-weight", "hrrn", "routing-key", "random")
# Policies that order by what is cached, and those that can obey priorities.
CACHE_AWARE_POLICIES = ("lpm", "shortest-prefill-first", "dfs-weight", "hrrn")
PRIORITY_POLICIES = ("lpm", "fcfs", "priority", "lof", "shortest-prefill-first")

DEFAULT_MODEL = "smollm2-135m-instruct"
GRAMMAR_BACKENDS = ("fsm", "xgrammar", "llguidance")
EVICTION_POLICIES = ("lru", "lfu", "slru", "fifo", "mru", "filo", "priority", "cost")


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
    quantization: str = option(
        "auto", "how weights are kept: as in the file, in full for --dtype (none), or rounded to a type of 8 or 4 bits;"
        " auto: as in the file where the compiled kernels run",
        choices=("auto", "none", "file", "q8_0", "q4_0", "q4_1"),
    )
    context_length: int | None = option(None, "longest prompt + output; default: the model's", metavar="TOKENS")
    device: str = option("auto", "where the model runs", choices=("auto", "cpu", "cuda"))
    tool_call_parser: str = option("auto", "how the model writes tool calls: hermes, llama3, ..., or none; default: by its template")
    reasoning_parser: str = option("auto", "how the model writes reasoning: qwen3, deepseek-r1, ..., or none; default: by its template")
    attention_backend: str = option(
        "auto", "attention implementation; default: native on a CPU where it was built", choices=("auto", "native", "torch_sdpa")
    )
    random_seed: int | None = option(None, "seed for requests that bring none; default: random")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The KV pool and the radix tree."""

    max_total_tokens: int | None = option(None, "size of the KV pool; default: by memory", metavar="TOKENS")
    mem_fraction_static: float | None = option(None, "share of the memory left after loading that the KV pool may take")
    kv_cache_dtype: str = option(
        "auto", "type of stored K/V; default: that of the model, bfloat16 on compiled kernels",
        choices=("auto", "float32", "bfloat16", "float16", "int8")
    )
    disable_radix_cache: bool = option(False, "share no prefixes")
    radix_eviction_policy: str = option(
        "lru", f"what leaves a full cache first: {', '.join(EVICTION_POLICIES)}, or a class of yours as package.module:Policy"
    )
    radix_eviction_policy_config: str | None = option(None, "options of the eviction policy, as a JSON object", metavar="JSON")
    radix_tree: str = option(
        "auto", "which radix tree: the compiled one if it was built and knows the eviction policy, or the one named",
        choices=("auto", "python", "native"),
    )

    pin_budget: float = option(0.25, "share of the KV pool that pinned prefixes may hold")
    max_pin_ttl: float = option(3600.0, "longest time that a pinned prefix stays without being used", metavar="SECONDS")
    kv_events_config: str | None = option(None, "publish what happens to the cache; JSON with vLLM's and SGLang's names", metavar="JSON")

    def eviction_options(self) -> dict[str, Any]:
        """The options of the eviction policy; raises ConfigError unless they are a JSON object."""
        text = self.radix_eviction_policy_config
        try:
            options = json.loads(text) if text else {}
        except json.JSONDecodeError as error:
            raise ConfigError(f"--radix-eviction-policy-config is not JSON: {error}") from error
        if not isinstance(options, dict):
            raise ConfigError(f"--radix-eviction-policy-config must be a JSON object, got {text}")
        return options


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Which requests run, and how a step is filled."""

    schedule_policy: str = option(
        "auto", "order of the waiting requests; default: lpm, or fcfs without a prefix cache", choices=("auto", *SCHEDULE_POLICIES)
    )
    lpm_max_passes: int = option(
        64, "how often lpm may pass a request over once its turn has come by arrival, 0 for no limit", metavar="PASSES"
    )
    chunked_prefill_size: int | None = option(
        None, "most tokens computed in one step, -1 for no limit; default: by device", metavar="TOKENS"
    )
    max_prefill_tokens: int = option(
        16_384, "most prompt tokens computed in one step; a prompt that may not be cut and is longer goes alone", metavar="TOKENS"
    )
    max_running_requests: int | None = option(None, "most requests running at once; default: by device")
    max_queued_requests: int = option(4096, "most requests waiting; one more gets a 429, 0 for no limit")
    decode_share: float = option(
        0.5, "share of a step that running streams may fill with guessed tokens while prompts wait for theirs", metavar="SHARE"
    )
    schedule_conservativeness: float = option(
        1.0, "scales how much output is expected of a request before it is admitted; larger: fewer retractions", metavar="FACTOR"
    )
    enable_priority_scheduling: bool = option(False, "obey the priority of requests; larger values go first")
    schedule_low_priority_values_first: bool = option(False, "smaller priority values go first")
    priority_aging_seconds: float = option(
        10.0, "seconds of waiting that make up for one step of priority, 0 for never", metavar="SECONDS"
    )
    priority_scheduling_preemption_threshold: int = option(
        10, "a waiting request takes the place of running ones whose priority is worse by more than this", metavar="STEPS"
    )
    disable_priority_preemption: bool = option(False, "let priorities order the queue only")
    waiting_timeout: float | None = option(None, "seconds after which a request that has not started gets a 503", metavar="SECONDS")
    running_timeout: float | None = option(None, "seconds after its start at which a request is ended with a 503", metavar="SECONDS")
    enable_prefill_delayer: bool = option(False, "gather small prompts into one step while others decode")
    prefill_delayer_max_delay_passes: int = option(30, "most steps that a small prompt is held back", metavar="PASSES")
    prefill_delayer_max_delay_ms: float | None = option(None, "longest time that a small prompt is held back", metavar="MS")
    profile_steps: str | None = option(None, "write when the parts of each step ran to a file, as a Chrome trace", metavar="FILE")
    draft_token_cost: float | None = option(
        None, "share of a one-row step that computing its token takes, 0 to 1: the larger, the fewer forced tokens are drafted at once; "
        "default: by device", metavar="SHARE",
    )
    overlap_schedule: str = option(
        "auto", "do the host work of a step while the next one computes; auto: on a GPU, and on a CPU if computing leaves a core free",
        choices=("auto", "on", "off"),
    )
    disable_overlap_schedule: bool = option(False, "the same as --overlap-schedule off")


@dataclass(frozen=True, kw_only=True)
class GrammarConfig:
    """Constraints on what is generated."""

    grammar_backend: str = option(
        "auto", "engine that compiles every constraint it can serve; default: the best one for each", choices=("auto", *GRAMMAR_BACKENDS)
    )
    grammar_compile_timeout: float = option(5.0, "most processor time that one grammar may take to compile", metavar="SECONDS")
    grammar_cache_bytes: int = option(256 << 20, "memory that compiled grammars are kept in", metavar="BYTES")
    disable_jump_forward: bool = option(False, "compute every token of constrained text in a step of its own, also forced ones")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)

    @classmethod
    def of(cls, **options: Any) -> EngineConfig:
        """Build a config from flat option names (``model_path=…, schedule_policy=…``).

        Raises ConfigError, with the nearest name, for a name that no group has.
        """
        groups = {"model": ModelConfig, "cache": CacheConfig, "schedule": ScheduleConfig, "grammar": GrammarConfig}
        parts: dict[str, dict[str, Any]] = {group: {} for group in groups}
        owner = {f.name: group for group, kind in groups.items() for f in fields(kind)}
        for name, value in options.items():
            if name not in owner:
                raise ConfigError(f"unknown option {name!r}{nearest(name, owner)}")
            parts[owner[name]][name] = value
        return cls(**{group: kind(**parts[group]) for group, kind in groups.items()})


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Limits):
    """The HTTP side."""

    host: str = option("127.0.0.1", "address to listen on; anything but loopback needs --api-key")
    port: int = option(30000, "port to listen on, 0 for any free one")
    api_key: tuple[str, ...] = option((), "bearer token that requests must carry; may be repeated, any of them opens", metavar="KEY")
    api_key_file: str | None = option(None, "file with a bearer token a line, besides those of --api-key", metavar="FILE")
    admin_api_key: str | None = option(
        None, "bearer token for what concerns everybody: flushing, aborting, pausing; default: any key may", metavar="KEY"
    )
    served_model_name: tuple[str, ...] = option(
        (), "model name clients see; may be repeated, the first is the one in answers; default: --model-path", metavar="NAME"
    )
    cors_allow_origin: tuple[str, ...] = option(
        (), "origin whose pages may use the server from a browser; may be repeated, * for any; default: none", metavar="ORIGIN"
    )
    ssl_certfile: str | None = option(None, "serve HTTPS with this certificate chain (PEM)", metavar="FILE")
    ssl_keyfile: str | None = option(None, "the certificate's private key (PEM)", metavar="FILE")
    log_format: str = option("auto", "how log lines look; auto: text", choices=("auto", "text", "json"))
    log_level: str = option("info", "least severe log line shown", choices=("debug", "info", "warning", "error"))
    log_requests: bool = option(False, "log one line a request (ids, counts and times; never its text)")
    dp_size: int = option(
        1, "servers to run on this machine behind a cache-aware gateway (needs the extra gateway); memory limits are of each",
        metavar="N",
    )
    drain_timeout: float = option(30.0, "seconds that running requests get to finish when the server is told to stop", metavar="SECONDS")
    incremental_streaming_output: bool = option(False, "let streams of /generate carry only what is new, not the whole text each time")
    record_trace: str | None = option(
        None, "append a line for every request to a file, to replay it with radixrt bench: times, lengths and keyed hashes, no text",
        metavar="FILE",
    )
    otlp_traces_endpoint: str | None = option(
        None, "send spans of every request to this OpenTelemetry collector, by OTLP over HTTP (needs the extra otel); no text is in them",
        metavar="URL",
    )
    keep_volatile_prompt_lines: bool = option(
        False, "leave lines that agents change with every request where they are in system prompts, though they end shared prefixes there"
    )
    no_cache_text: bool = option(False, "show no text of prompts where the cache is looked at (/ui, /v1/cache/tree)")
    allow_remote_without_api_key: bool = option(False, "listen beyond loopback without an API key: anyone who reaches the port may use it")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the machine has: the input of ``resolve`` besides the configuration."""

    cuda: bool = False
    cuda_bf16: bool = False
    native: bool = False
    isa: str = "portable"
    num_cpus: int = 1
    compute_threads: int = 1
    memory_bytes: int = 8 << 30

    @classmethod
    def detect(cls) -> Hardware:
        """Read this machine.  Imports torch."""
        import torch

        from radixrt_kernels.ops import NATIVE, kernel_facts

        cuda = torch.cuda.is_available()
        if cuda:
            memory = torch.cuda.get_device_properties(0).total_memory
        else:
            memory = psutil.virtual_memory().available
        num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        facts = kernel_facts()
        return cls(
            cuda=cuda, cuda_bf16=cuda and torch.cuda.is_bf16_supported(), native=NATIVE, isa=facts.get("isa", "portable"),
            num_cpus=num_cpus, compute_threads=facts.get("threads", torch.get_num_threads()), memory_bytes=memory,
        )


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
    compiled = hardware.native and device == "cpu"
    quantization = model.quantization
    if quantization == "auto":
        quantization = "file" if compiled and model.dtype == "auto" and model.model_impl != "transformers" else "none"
    elif quantization != "none" and not compiled:
        raise ConfigError(f"--quantization {quantization} needs the compiled kernels, on a CPU")
    elif quantization != "none" and model.dtype not in ("auto", "float32"):
        raise ConfigError(f"--quantization {quantization} computes in float32, and --dtype asks for {model.dtype}")
    chunk = schedule.chunked_prefill_size
    if chunk is None:
        chunk = 512 if device == "cpu" else 8192
    model = replace(
        model, device=device, dtype=dtype, quantization=quantization,
        attention_backend=_attention_backend(model.attention_backend, device, native=hardware.native),
    )
    cache = replace(
        cache,
        kv_cache_dtype=_kv_cache_dtype(cache.kv_cache_dtype, model),
        mem_fraction_static=0.5 if cache.mem_fraction_static is None else cache.mem_fraction_static,
    )
    order = schedule.schedule_policy
    if order == "auto":
        order = "fcfs" if cache.disable_radix_cache else "lpm"
    overlap = _overlap(schedule, device, hardware)
    schedule = replace(
        schedule, schedule_policy=order, chunked_prefill_size=chunk,
        overlap_schedule=overlap, disable_overlap_schedule=overlap == "off",
        enable_priority_scheduling=schedule.enable_priority_scheduling or order == "priority",
        draft_token_cost=_token_cost(device, hardware) if schedule.draft_token_cost is None else schedule.draft_token_cost,
        max_running_requests=(64 if device == "cpu" else 256) if schedule.max_running_requests is None else schedule.max_running_requests,
    )
    resolved = EngineConfig(model=model, cache=cache, schedule=schedule, grammar=config.grammar)
    _check(resolved)
    return resolved


def _attention_backend(asked: str, device: str, *, native: bool) -> str:
    if asked == "auto":
        return "native" if device == "cpu" and native else "torch_sdpa"
    if asked == "native" and device != "cpu":
        raise ConfigError(f"--attention-backend native computes on a CPU, and the device is {device}")
    if asked == "native" and not native:
        raise ConfigError("--attention-backend native: the compiled kernels were not built, or RADIXRT_NO_NATIVE is set")
    return asked


def _kv_cache_dtype(asked: str, model: ModelConfig) -> str:
    if asked != "auto":
        return asked
    # Products of quantised operands are off by more than what bfloat16 rounds away.  The toy model stores token ids as K.
    return "bfloat16" if model.quantization != "none" and model.model_path != "toy" else model.dtype


def _overlap(schedule: ScheduleConfig, device: str, hardware: Hardware) -> str:
    """Whether a step is launched before the one ahead of it is taken in: on or off."""
    if schedule.disable_overlap_schedule:
        if schedule.overlap_schedule == "on":
            raise ConfigError("--overlap-schedule on and --disable-overlap-schedule contradict each other")
        return "off"
    if schedule.overlap_schedule != "auto":
        return schedule.overlap_schedule
    # Where every core computes, host work takes one from a thread that all the others then wait for.
    return "on" if device == "cuda" or hardware.compute_threads < hardware.num_cpus else "off"


def _token_cost(device: str, hardware: Hardware) -> float:
    """How much of a one-row step computing is: little where memory is what a step waits for."""
    if device == "cuda":
        return 0.02
    return 0.2 if hardware.isa == "avx512" else 0.6


def _check(config: EngineConfig) -> None:
    for part in (config.model, config.cache, config.schedule, config.grammar):
        for f in fields(part):
            value, choices = getattr(part, f.name), f.metadata["choices"]
            if choices and value not in choices:
                raise ConfigError(f"{flag(f.name)} {value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}")
    cache, schedule = config.cache, config.schedule
    policy = cache.radix_eviction_policy
    if policy not in EVICTION_POLICIES and ":" not in policy:
        known = f"{', '.join(EVICTION_POLICIES)}, or package.module:Policy"
        raise ConfigError(f"--radix-eviction-policy {policy!r} is not one of {known}{nearest(policy, EVICTION_POLICIES)}")
    if cache.radix_tree == "native" and ":" in policy:
        raise ConfigError(f"--radix-tree native knows no policies in Python, and --radix-eviction-policy is {policy!r}")
    cache.eviction_options()
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
    if not 0.0 <= cache.pin_budget <= 1.0:
        raise ConfigError(f"--pin-budget must be in [0, 1], got {cache.pin_budget}")
    if not cache.max_pin_ttl > 0.0:
        raise ConfigError(f"--max-pin-ttl must be above 0 seconds, got {cache.max_pin_ttl}")
    if not (math.isfinite(config.grammar.grammar_compile_timeout) and config.grammar.grammar_compile_timeout > 0):
        raise ConfigError(f"--grammar-compile-timeout must be above 0 seconds, got {config.grammar.grammar_compile_timeout}")
    if config.grammar.grammar_cache_bytes < 0:
        raise ConfigError(f"--grammar-cache-bytes must be at least 0, got {config.grammar.grammar_cache_bytes}")
    _check_schedule(schedule)
    if cache.disable_radix_cache and schedule.schedule_policy in CACHE_AWARE_POLICIES:
        raise ConfigError(
            f"--schedule-policy {schedule.schedule_policy} orders by cached prefixes, which --disable-radix-cache switches off"
        )



def _check_schedule(schedule: ScheduleConfig) -> None:
    for name in ("lpm_max_passes", "max_queued_requests", "priority_scheduling_preemption_threshold", "prefill_delayer_max_delay_passes"):
        if getattr(schedule, name) < 0:
            raise ConfigError(f"{flag(name)} must be at least 0, got {getattr(schedule, name)}")
    for name in (
        "waiting_timeout", "running_timeout", "prefill_delayer_max_delay_ms", "schedule_conservativeness", "priority_aging_seconds",
    ):
        value = getattr(schedule, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{flag(name)} must be a number of at least 0, got {value}")
    if schedule.draft_token_cost is not None and not 0.0 <= schedule.draft_token_cost <= 1.0:
        raise ConfigError(f"--draft-token-cost must be in [0, 1], got {schedule.draft_token_cost}")
    if schedule.max_prefill_tokens < 1:
        raise ConfigError(f"--max-prefill-tokens must be at least 1, got {schedule.max_prefill_tokens}")
    if not 0.0 < schedule.decode_share <= 1.0:
        raise ConfigError(f"--decode-share must be in (0, 1], got {schedule.decode_share}")
    if schedule.enable_priority_scheduling and schedule.schedule_policy not in ("auto", *PRIORITY_POLICIES):
        raise ConfigError(
            f"--enable-priority-scheduling: --schedule-policy {schedule.schedule_policy} knows no priorities; "
            f"these do: {', '.join(PRIORITY_POLICIES)}"
        )
    if not schedule.enable_priority_scheduling:
        for name in ("schedule_low_priority_values_first", "disable_priority_preemption"):
            if getattr(schedule, name):
                raise ConfigError(f"{flag(name)} means nothing without --enable-priority-scheduling")


def flag(name: str) -> str:
    """The command-line flag of a field name."""
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error about an unknown name, or ''."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
