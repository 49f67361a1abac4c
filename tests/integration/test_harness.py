"""The benchmark as a whole, small: the scheduler in virtual time reaches the figures it promises, and the commands work."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from radixrt import cli
from radixrt.bench import offline, workloads
from radixrt.bench.figures import Figures, Run, figures
from radixrt.bench.trace import write_mooncake
from radixrt.config import CacheConfig, EngineConfig, ScheduleConfig
from radixrt.errors import ConfigError

DEFAULT = EngineConfig(schedule=ScheduleConfig(schedule_policy="lpm", chunked_prefill_size=2048, max_running_requests=64))
FCFS = replace(DEFAULT, schedule=replace(DEFAULT.schedule, schedule_policy="fcfs"))
PLAIN_LPM = replace(DEFAULT, schedule=replace(DEFAULT.schedule, lpm_max_passes=0))


@functools.cache
def play(name: str, config: EngineConfig = DEFAULT, *, scale: float = 0.1, seed: int = 0) -> Run:
    return offline.run(workloads.build(name, scale=scale, seed=seed), config, seed=seed)


def played(name: str, config: EngineConfig = DEFAULT, *, scale: float = 0.1, seed: int = 0) -> Figures:
    return figures(play(name, config, scale=scale, seed=seed))


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_default_settings_find_nearly_all_that_can_be_shared(name: str) -> None:
    result = played(name)
    assert result.calls == workloads.build(name, scale=0.1).num_calls
    assert result.errors == 0
    assert 0.97 <= result.of_infinite <= 1.0
    assert result.belady is not None
    assert result.hit_rate <= result.belady <= result.infinite


def test_cold_requests_do_not_pay_for_hot_ones() -> None:
    aged, plain, fcfs = (played("cold-hot", config, scale=0.5) for config in (DEFAULT, PLAIN_LPM, FCFS))
    assert plain.cold is not None
    assert aged.cold is not None
    assert fcfs.cold is not None
    assert plain.cold.p99 > 2 * fcfs.cold.p99, "or there is nothing to cure"
    assert aged.cold.p99 <= 2 * fcfs.cold.p99
    assert aged.hit_rate >= plain.hit_rate - 0.02
    assert aged.hot is not None
    assert fcfs.hot is not None
    assert aged.hot.mean < fcfs.hot.mean


def test_order_matters_when_groups_do_not_fit_together() -> None:
    lpm, fcfs = (played("cold-hot-crowd", config, scale=0.4) for config in (DEFAULT, FCFS))
    assert lpm.hit_rate > fcfs.hit_rate + 0.04
    assert lpm.seconds < 0.9 * fcfs.seconds


def test_run_is_the_same_every_time() -> None:
    first, again = (offline.run(workloads.build("tree-of-thought", scale=0.05), DEFAULT) for _ in range(2))
    assert first == again


def test_queue_that_is_full_turns_calls_away_and_the_rest_goes_on() -> None:
    result = played("mmlu", replace(DEFAULT, schedule=replace(DEFAULT.schedule, max_queued_requests=10)))
    assert result.errors > 0
    assert result.calls + result.errors == workloads.build("mmlu", scale=0.1).num_calls


def test_pool_that_cannot_hold_a_call_is_refused() -> None:
    with pytest.raises(ConfigError, match="hold"):
        offline.run(workloads.build("agentic", scale=0.05), replace(DEFAULT, cache=CacheConfig(max_total_tokens=4096)))


def test_time_is_what_the_cost_model_says() -> None:
    run = play("json-extraction", scale=0.01)
    (first, *_) = sorted(run.records, key=lambda record: record.first_token)
    step = offline.CARD.step + offline.CARD.prefill_token * first.num_prompt
    assert step < first.first_token < 2 * offline.CARD.step + offline.CARD.prefill_token * 2048 * 2
    assert run.seconds >= run.steps * offline.CARD.step


def bench(*arguments: object) -> int:
    return cli.main(["bench", *map(str, arguments)])


def test_lpm_command_writes_figures_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "figures.json"
    flags = ("--scale", 0.02, "--policies", "fcfs,lpm", "--pools", "1x,2x", "--json", path, "--pictures", tmp_path)
    assert bench("lpm", "--workloads", "mmlu,cold-hot", *flags) == 0
    runs = json.loads(path.read_text())["runs"]
    assert [(run["workload"], run["policy"], run["pool"]) for run in runs[:4]] == [
        ("mmlu", "fcfs", 16384), ("mmlu", "lpm", 16384), ("mmlu", "fcfs", 32768), ("mmlu", "lpm", 32768)
    ]  # fmt: skip
    assert {"hit_rate", "of_infinite", "of_belady", "saved", "waits", "cold", "hot"} < set(runs[0])
    assert "mmlu" in capsys.readouterr().out
    assert {picture.name for picture in tmp_path.glob("*.png")} == {"hit_rates.png", "waits_mmlu.png", "waits_cold-hot.png"}


def test_recorded_run_can_be_replayed_and_asked_what_if(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, path = tmp_path / "trace.jsonl", tmp_path / "figures.json"
    run = play("react", scale=0.05)
    write_mooncake(trace, run.records)
    assert bench("replay", trace, "--json", path) == 0
    (again,) = json.loads(path.read_text())["runs"]
    assert again["hit_rate"] == pytest.approx(figures(run).hit_rate, abs=0.03)
    assert bench("what-if", trace, "--json", path, "--policies", "fcfs,lpm") == 0
    rates = [entry["hit_rate"] for entry in json.loads(path.read_text())["runs"] if entry["policy"] == "lpm"]
    assert len(rates) > 3
    assert rates[0] < rates[-1] == pytest.approx(again["infinite"], abs=0.01)
    assert "what if" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lpm", "--workloads", "mlu"], "unknown workload"),
        (["lpm", "--workloads", "mmlu", "--policies", "fcfs,lpn"], "lpn"),
        (["lpm", "--workloads", "agentic", "--pools", "1x,4K"], "hold"),
        (["lpm", "--workloads", "mmlu", "--profile", "nowhere.json"], "nowhere.json"),
        (["lpm", "--workloads", "mmlu", "--pools", "big"], "pool"),
        (["replay", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_mistake_is_one_line_and_code_two(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
