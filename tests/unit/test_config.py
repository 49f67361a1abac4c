"""radixrt.config: what ``resolve`` makes of a configuration and a machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from radixrt.config import EngineConfig, Hardware, ServerConfig, flag, nearest, option, resolve
from radixrt.errors import ConfigError

CPU = Hardware(num_cpus=2, compute_threads=2)
SPARED = Hardware(num_cpus=2, compute_threads=1)
GPU = Hardware(cuda=True, cuda_bf16=True, num_cpus=16, compute_threads=16, memory_bytes=80 << 30)
BUILT = Hardware(native=True)
OLD_GPU = Hardware(cuda=True, cuda_bf16=False)


def flat(config: EngineConfig) -> dict[str, Any]:
    return {name: value for part in dataclasses.asdict(config).values() for name, value in part.items()}


@pytest.mark.parametrize(
    ("options", "hardware", "expected"),
    [
        ({}, CPU, {"device": "cpu", "dtype": "float32", "kv_cache_dtype": "float32", "attention_backend": "torch_sdpa"}),
        ({}, CPU, {"chunked_prefill_size": 512, "max_running_requests": 64, "mem_fraction_static": 0.5}),
        ({}, CPU, {"context_length": None, "max_total_tokens": None}),
        ({}, BUILT, {"attention_backend": "native", "kv_cache_dtype": "bfloat16"}),
        ({"dtype": "float32"}, BUILT, {"attention_backend": "native", "kv_cache_dtype": "float32"}),
        ({"model_path": "toy"}, BUILT, {"kv_cache_dtype": "float32"}),
        ({"attention_backend": "torch_sdpa"}, BUILT, {"attention_backend": "torch_sdpa"}),
        ({"kv_cache_dtype": "int8"}, BUILT, {"dtype": "float32", "kv_cache_dtype": "int8"}),
        ({}, GPU, {"device": "cuda", "dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}),
        ({}, GPU, {"chunked_prefill_size": 8192, "max_running_requests": 256}),
        ({}, OLD_GPU, {"device": "cuda", "dtype": "float16", "kv_cache_dtype": "float16"}),
        ({"device": "cpu"}, GPU, {"device": "cpu", "dtype": "float32", "chunked_prefill_size": 512}),
        ({"dtype": "bfloat16"}, CPU, {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}),
        ({"kv_cache_dtype": "float16"}, CPU, {"dtype": "float32", "kv_cache_dtype": "float16"}),
        ({"chunked_prefill_size": -1}, CPU, {"chunked_prefill_size": -1}),
        ({"chunked_prefill_size": 3, "max_running_requests": 1}, CPU, {"chunked_prefill_size": 3, "max_running_requests": 1}),
        ({"max_total_tokens": 40, "context_length": 30}, CPU, {"max_total_tokens": 40, "context_length": 30}),
        ({"mem_fraction_static": 1.0}, CPU, {"mem_fraction_static": 1.0}),
        ({"disable_radix_cache": True}, CPU, {"disable_radix_cache": True, "schedule_policy": "fcfs"}),
        ({"schedule_policy": "lpm", "disable_overlap_schedule": True}, CPU, {"schedule_policy": "lpm", "disable_overlap_schedule": True}),
        ({}, CPU, {"schedule_policy": "lpm", "lpm_max_passes": 64, "max_prefill_tokens": 16384, "max_queued_requests": 4096}),
        ({}, CPU, {"enable_priority_scheduling": False, "waiting_timeout": None, "running_timeout": None}),
        ({"schedule_policy": "priority"}, CPU, {"schedule_policy": "priority", "enable_priority_scheduling": True}),
        ({"enable_priority_scheduling": True}, CPU, {"schedule_policy": "lpm", "priority_scheduling_preemption_threshold": 10}),
        ({}, CPU, {"overlap_schedule": "off", "disable_overlap_schedule": True}),
        ({"overlap_schedule": "on"}, CPU, {"overlap_schedule": "on", "disable_overlap_schedule": False}),
        ({}, SPARED, {"overlap_schedule": "on", "disable_overlap_schedule": False}),
        ({"overlap_schedule": "off"}, SPARED, {"overlap_schedule": "off", "disable_overlap_schedule": True}),
        ({}, GPU, {"overlap_schedule": "on", "disable_overlap_schedule": False}),
        ({"disable_overlap_schedule": True}, GPU, {"overlap_schedule": "off", "disable_overlap_schedule": True}),
        ({"device": "cpu"}, GPU, {"overlap_schedule": "off"}),
        (
            {"enable_priority_scheduling": True, "disable_radix_cache": True, "schedule_policy": "lof"}, CPU,
            {"schedule_policy": "lof", "enable_priority_scheduling": True},
        ),
        ({"schedule_policy": "routing-key", "disable_radix_cache": True}, CPU, {"schedule_policy": "routing-key"}),
    ],
)
def test_resolve_turns_auto_into_values(options: dict[str, Any], hardware: Hardware, expected: dict[str, Any]) -> None:
    resolved = flat(resolve(EngineConfig.of(**options), hardware))
    assert {name: resolved[name] for name in expected} == expected
    assert "auto" not in (resolved["device"], resolved["dtype"], resolved["kv_cache_dtype"], resolved["attention_backend"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "cuda"}, "--device"),
        ({"device": "tpu"}, "--device"),
        ({"dtype": "float8"}, "--dtype"),
        ({"load_format": "pickle"}, "--load-format"),
        ({"schedule_policy": "lmp"}, "'lpm'"),
        ({"radix_eviction_policy": "random"}, "--radix-eviction-policy"),
        ({"attention_backend": "torch_spda"}, "'torch_sdpa'"),
        ({"attention_backend": "native"}, "not built"),
        ({"context_length": 0}, "--context-length"),
        ({"max_total_tokens": 0}, "--max-total-tokens"),
        ({"max_total_tokens": -5}, "--max-total-tokens"),
        ({"max_running_requests": -1}, "--max-running-requests"),
        ({"max_running_requests": 0}, "--max-running-requests"),
        ({"chunked_prefill_size": 0}, "--chunked-prefill-size"),
        ({"chunked_prefill_size": -2}, "--chunked-prefill-size"),
        ({"mem_fraction_static": 0.0}, "--mem-fraction-static"),
        ({"mem_fraction_static": 1.5}, "--mem-fraction-static"),
        ({"mem_fraction_static": float("nan")}, "--mem-fraction-static"),
        ({"schedule_policy": "lpm", "disable_radix_cache": True}, "--disable-radix-cache"),
        ({"schedule_policy": "dfs-weight", "disable_radix_cache": True}, "--disable-radix-cache"),
        ({"schedule_policy": "hrrn", "disable_radix_cache": True}, "--disable-radix-cache"),
        ({"schedule_policy": "shortest-prefill-first", "disable_radix_cache": True}, "--disable-radix-cache"),
        ({"schedule_policy": "random", "enable_priority_scheduling": True}, "--enable-priority-scheduling"),
        ({"schedule_policy": "dfs-weight", "enable_priority_scheduling": True}, "lpm, fcfs, priority"),
        ({"disable_priority_preemption": True}, "--enable-priority-scheduling"),
        ({"schedule_low_priority_values_first": True}, "--enable-priority-scheduling"),
        ({"lpm_max_passes": -1}, "--lpm-max-passes"),
        ({"max_prefill_tokens": 0}, "--max-prefill-tokens"),
        ({"max_queued_requests": -1}, "--max-queued-requests"),
        ({"waiting_timeout": -1.0}, "--waiting-timeout"),
        ({"running_timeout": float("nan")}, "--running-timeout"),
        ({"schedule_conservativeness": float("inf")}, "--schedule-conservativeness"),
        ({"priority_aging_seconds": -2.0}, "--priority-aging-seconds"),
        ({"priority_scheduling_preemption_threshold": -1}, "--priority-scheduling-preemption-threshold"),
        ({"prefill_delayer_max_delay_passes": -1}, "--prefill-delayer-max-delay-passes"),
        ({"prefill_delayer_max_delay_ms": -1.0}, "--prefill-delayer-max-delay-ms"),
        ({"decode_share": 0.0}, "--decode-share"),
        ({"decode_share": 1.5}, "--decode-share"),
        ({"overlap_schedule": "yes"}, "--overlap-schedule"),
        ({"overlap_schedule": "on", "disable_overlap_schedule": True}, "--disable-overlap-schedule"),
    ],
)
def test_what_cannot_work_is_refused_by_its_flag(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(EngineConfig.of(**options), CPU)


@pytest.mark.parametrize("hardware", [CPU, SPARED, GPU, OLD_GPU])
def test_resolve_is_pure_and_settled(hardware: Hardware) -> None:
    config = EngineConfig.of(chunked_prefill_size=7)
    before = dataclasses.asdict(config)
    once = resolve(config, hardware)
    assert dataclasses.asdict(config) == before
    assert resolve(once, hardware) == once


def test_flat_options_find_their_group() -> None:
    config = EngineConfig.of(model_path="toy", max_total_tokens=100, schedule_policy="lpm")
    assert (config.model.model_path, config.cache.max_total_tokens, config.schedule.schedule_policy) == ("toy", 100, "lpm")


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'schedule_policy'"):
        EngineConfig.of(schedule_polisy="lpm")


def test_option_names_are_unique_and_every_one_has_help() -> None:
    config = EngineConfig()
    parts = (config.model, config.cache, config.schedule, ServerConfig())
    every = [field for part in parts for field in dataclasses.fields(part)]
    assert len({field.name for field in every}) == len(every)
    assert all(field.metadata["help"] for field in every)


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().model.dtype = "float16"  # type: ignore[misc]


def test_flag_and_nearest() -> None:
    assert flag("max_total_tokens") == "--max-total-tokens"
    assert nearest("xyz", ["fcfs", "lpm"]) == ""
    assert option(3, "help").metadata["help"] == "help"


def test_hardware_detect_sees_this_machine() -> None:
    hardware = Hardware.detect()
    assert hardware.num_cpus >= 1
    assert hardware.memory_bytes > 0
