"""The benchmark against a real server, and a server that records what the benchmark replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixrt import cli
from radixrt.bench import online, trace, workloads
from radixrt.bench.figures import figures
from radixrt.config import EngineConfig, ServerConfig
from radixrt.errors import ConfigError, RadixrtError
from radixrt.server.lifecycle import serve

VOCAB_SIZE = 250


def test_programs_meet_a_real_server_and_what_it_recorded_is_what_was_asked(start_server: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    server = start_server("--record-trace", str(path), "--max-total-tokens", "16384").wait_ready()
    workload = workloads.build("skeleton-of-thought", scale=0.03, vocab_size=VOCAB_SIZE)
    (run,) = online.run([workload], server.url, api="generate")
    result = figures(run)
    assert (result.calls, result.errors, result.pool) == (workload.num_calls, 0, 16384)
    assert 0.97 <= result.of_infinite <= 1.0
    assert result.waits is not None
    assert 0 < result.waits.p50 < result.seconds
    recorded = trace.read(path)
    assert recorded.num_calls == workload.num_calls
    lengths = sorted((len(record.tokens) - record.num_prompt, record.num_prompt) for record in run.records)
    assert sorted((p.calls[0].num_output, sum(map(len, p.calls[0].prompt))) for p in recorded.programs) == lengths  # type: ignore[arg-type]


def test_command_measures_an_openai_server_with_text(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    where = ("--base-url", server.url, "--api", "completions", "--server-model", "toy", "--vocab-size", str(VOCAB_SIZE))
    assert cli.main(["bench", "lpm", "--workloads", "skeleton-of-thought", "--scale", "0.02", "--json", str(path), *where]) == 0
    (run,) = json.loads(path.read_text())["runs"]
    assert run["errors"] == 0
    assert run["hit_rate"] == pytest.approx(run["infinite"], abs=0.05)
    assert run["belady"] is None


def test_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--base-url", "http://127.0.0.1:9")
    assert cli.main(["bench", "lpm", "--workloads", "mmlu", "--scale", "0.01", *where]) == 2
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error
    assert error.count("\n") == 1


def test_calls_that_fail_are_told(server: Any) -> None:
    too_large = workloads.build("mmlu", scale=0.01, vocab_size=30_000)
    with pytest.raises(RadixrtError, match="every call failed"):
        online.run([too_large], server.url, api="generate")


def test_trace_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--record-trace .*No such file"):
        serve(EngineConfig.of(model_path="toy"), ServerConfig(port=0, record_trace=str(tmp_path / "nowhere" / "trace.jsonl")))
