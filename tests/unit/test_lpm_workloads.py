"""The benchmark's parts: programs and who may start, workloads, the best any cache could do, traces."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from radixrt.bench import offline, optimal, sweep, trace, workloads
from radixrt.bench.figures import Record, Run, figures
from radixrt.bench.optimal import Served
from radixrt.bench.program import Call, Output, Player, Program, Workload
from radixrt.config import EngineConfig, ScheduleConfig
from radixrt.engine.trace import TraceRecorder
from radixrt.errors import ConfigError


def tokens(*values: int) -> array[int]:
    return array("i", values)


# What an infinite cache finds of each workload at a tenth of its size, which only its shape decides, and the longest call.
SHAPES = {
    "mmlu": (0.79, 960),
    "hellaswag": (0.97, 1950),
    "react": (0.92, 3000),
    "generative-agents": (0.54, 800),
    "tree-of-thought": (0.95, 1800),
    "skeleton-of-thought": (0.84, 1900),
    "llm-judge": (0.74, 2100),
    "json-extraction": (0.65, 1600),
    "multi-turn-short": (0.62, 2200),
    "multi-turn-long": (0.72, 4200),
    "rag": (0.61, 1300),
    "generated-shared-prefix": (0.88, 2450),
    "bench-multiturn": (0.69, 2900),
    "agentic": (0.94, 27000),
    "cold-hot": (0.87, 1700),
    "cold-hot-crowd": (0.80, 1700),
}


def test_every_workload_has_a_row_above() -> None:
    assert set(SHAPES) == set(workloads.WORKLOADS)


@pytest.mark.parametrize("name", SHAPES)
def test_shape_decides_what_can_be_shared(name: str) -> None:
    workload = workloads.build(name, scale=0.1)
    shared, longest = SHAPES[name]
    assert optimal.hit_rate(offline.sequences(workload)) == pytest.approx(shared, abs=0.05)
    assert 0.5 * longest < workload.longest <= longest <= workload.pool


@pytest.mark.parametrize("name", ["mmlu", "agentic"])
def test_seed_decides_the_programs(name: str) -> None:
    first, again, other = (offline.sequences(workloads.build(name, seed=seed, scale=0.1), seed) for seed in (3, 3, 4))
    assert first == again
    assert first[0].tokens != other[0].tokens


def test_unknown_workload_is_named() -> None:
    with pytest.raises(ConfigError, match="mlu"):
        workloads.build("mlu")


def play(workload: Workload, seconds: float = 1.0) -> list[tuple[float, int, int, tuple[int, ...]]]:
    """Run each call at once for so long, answering (100 + its number); returns (start, program, call, prompt)."""
    player, running, seen, now = Player(workload), [], [], 0.0
    while not player.done:
        for started in player.take_due(now):
            seen.append((now, started.program, started.index, tuple(started.prompt)))
            running.append((now + seconds, started))
        times = [end for end, _ in running] + ([due] if (due := player.next_due()) is not None else [])
        now = min(times)
        for end, started in [pair for pair in running if pair[0] <= now]:
            running.remove((end, started))
            player.end(started, [100 + started.index], now)
    return seen


def test_prompt_holds_what_an_earlier_call_said_and_waits_for_it() -> None:
    calls = (
        Call((tokens(1),), 1),
        Call((tokens(1), Output(0), tokens(2)), 1, gap=0.5),
        Call((tokens(9),), 1),
        Call((Output(1), Output(2)), 1),
        Call((tokens(7),), 1, after=(0,)),
    )
    assert play(Workload("w", [Program(calls, start=2.0)], 64)) == [
        (2.0, 0, 0, (1,)),
        (2.0, 0, 2, (9,)),
        (3.0, 0, 4, (7,)),
        (3.5, 0, 1, (1, 100, 2)),
        (4.5, 0, 3, (101, 102)),
    ]


def test_no_more_programs_at_once_than_may_run_in_parallel() -> None:
    programs = [Program((Call((tokens(i),), 1),), start=start) for i, start in enumerate((5.0, 0.0, 0.0))]
    assert [(start, program) for start, program, _, _ in play(Workload("w", programs, 64, parallel=1))] == [(0.0, 1), (1.0, 2), (5.0, 0)]


def token_by_token(served: Sequence[Served], capacity: float) -> list[int]:
    """Belady's rule on single tokens, each named by the whole text up to it: the definition."""
    uses = [
        [(request.namespace, *request.tokens[: end + 1]) for end in range(len(request.tokens))] for request in served
    ]
    cached: set[tuple[object, ...]] = set()
    found = []
    for i, request in enumerate(served):
        hits = 0
        while hits < request.num_matchable and uses[i][hits] in cached:
            hits += 1
        found.append(hits)
        cached.update(uses[i])

        def next_use(name: tuple[object, ...], now: int = i) -> tuple[float, int]:
            ahead = (j for j in range(now + 1, len(served)) if name in uses[j][: served[j].num_matchable])
            return next(ahead, float("inf")), len(name)

        while len(cached) > capacity:
            cached.remove(max(cached - set(uses[i]), key=next_use))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_best_cache_is_the_one_that_evicts_what_is_used_last(seed: int) -> None:
    rng = random.Random(seed)
    served = []
    for _ in range(25):
        prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 8))]
        output = [rng.randrange(2) for _ in range(rng.randrange(4))]
        served.append(Served(tokens(*prompt, *output), len(prompt), rng.choice(("", "a"))))
    for capacity in (11, 14, 20):
        assert sum(optimal.cached_tokens(served, capacity)) == sum(token_by_token(served, capacity))
    assert optimal.cached_tokens(served) == token_by_token(served, float("inf"))


def test_distinct_tokens_are_what_an_infinite_cache_holds() -> None:
    served = [Served(tokens(1, 2, 3), 2), Served(tokens(1, 2, 4), 3), Served(tokens(1, 2, 3), 3), Served(tokens(1), 1, "other")]
    assert optimal.distinct_tokens(served) == 5


def record(order: int, prompt: Sequence[int], *, cached: int = 0, wait: float = 0.0, kind: str = "", passes: int = 0) -> Record:
    text = tokens(*prompt, 9)
    due = 9.0 - order  # not the order of admission
    return Record(kind, due, due + wait, due + 1 + wait, len(prompt), cached, passes, 0, order, text)


def test_figures_compare_with_the_best_and_tell_cold_from_hot() -> None:
    records = [
        record(1, [1, 2, 3, 5], cached=3, wait=0.2, passes=7),
        record(0, [1, 2, 3, 4], wait=0.5),
        record(2, [1, 2, 3, 4], cached=1, wait=0.1),
    ]
    result = figures(Run("w", "lpm", "lru", 64, records, seconds=4.0))
    assert (result.saved, result.prompt_tokens) == (4, 12)
    assert result.of_infinite == result.of_belady == pytest.approx(4 / 6)
    assert result.cold is not None
    assert result.hot is not None
    assert (result.cold.count, result.cold.worst, result.hot.worst_passes) == (1, pytest.approx(0.5), 7)
    labelled = figures(Run("w", "lpm", "lru", 64, [replace(entry, kind="cold") for entry in records], seconds=4.0))
    assert labelled.hot is None
    assert labelled.kinds["cold"].count == 3


def test_best_eviction_is_for_the_order_of_admission() -> None:
    records = [record(0, [1, 2, 3, 4]), record(1, [1, 2, 3, 4]), record(2, [7, 7, 7, 7])]
    together = figures(Run("w", "lpm", "lru", 5, records, seconds=4.0))
    apart = figures(Run("w", "lpm", "lru", 5, [records[0], replace(records[1], order=3), records[2]], seconds=4.0))
    assert (together.belady, apart.belady) == (3 / 12, 0.0)
    assert together.infinite == apart.infinite == 3 / 12


@pytest.mark.parametrize(("text", "size"), [("16K", 16384), ("16k", 16000), ("300", 300), ("0.5x", 50), ("2x", 200)])
def test_pool_sizes(text: str, size: int) -> None:
    assert sweep.pool_size(text, 100) == size


@pytest.mark.parametrize("text", ["", "K", "x", "0", "-1x", "1T", "nan", "infx"])
def test_what_is_no_pool_size(text: str) -> None:
    with pytest.raises(ConfigError, match="pool"):
        sweep.pool_size(text, 100)


def test_every_combination_is_tried() -> None:
    settings = sweep.Settings(EngineConfig(), ["fcfs", "lpm"], ["lru"], ["1x", "2x"])
    configs = list(settings.configs(Workload("w", [], 100)))
    assert [(c.schedule.schedule_policy, c.cache.max_total_tokens) for c in configs] == [
        ("fcfs", 100), ("lpm", 100), ("fcfs", 200), ("lpm", 200)
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "policy", "passes"), [("fcfs", "fcfs", 64), ("lpm", "lpm", 64), ("lpm:0", "lpm", 0), ("lpm:7", "lpm", 7)])
def test_policy_may_carry_its_passes(text: str, policy: str, passes: int) -> None:
    schedule = sweep.with_policy(ScheduleConfig(), text)
    assert (schedule.schedule_policy, schedule.lpm_max_passes) == (policy, passes)
    assert sweep.policy_label(schedule) == text


@pytest.mark.parametrize("text", ["lpm:", "lpm:x", "lpm:-1", "fcfs:3"])
def test_what_is_no_policy(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        sweep.with_policy(ScheduleConfig(), text)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_recorded_trace_has_ids_and_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with TraceRecorder(path, block_size=4) as recorder:
        recorder.add(0.0, range(1000, 1009), [1009, 1010, 1011, 2000])
        recorder.add(0.25, range(1000, 1012), [], ("tenant",))
        recorder.add(1.5, range(1000, 1012), [7])
    first, tenant, second = lines(path)
    assert (first["timestamp"], first["input_length"], first["output_length"], tenant["timestamp"]) == (0, 9, 4, 250)
    assert [len(first[name]) for name in ("hash_ids", "output_hash_ids")] == [3, 2]  # type: ignore[arg-type]
    assert second["hash_ids"] == first["hash_ids"][:2] + first["output_hash_ids"][:1]  # type: ignore[index]
    assert not set(tenant["hash_ids"]) & set(first["hash_ids"])  # type: ignore[call-overload]
    assert not set(map(str, range(1000, 1012))) & set(path.read_text().replace("[", ",").replace("]", ",").split(","))
    with TraceRecorder(path, block_size=4) as recorder:
        recorder.add(0.0, range(1000, 1009), [])
    assert lines(path)[3]["hash_ids"] != first["hash_ids"], "another key gives other ids, or a guess could be tested"


def test_requests_are_recorded_from_start_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.jsonl"
    recorder = TraceRecorder(path)
    recorder.start(1, range(20), (), now=100.0)
    recorder.start(2, range(5), (), now=100.5)
    recorder.push(2, [7, 8])
    recorder.push(1, [7])
    recorder.push(2, [9])
    recorder.end(2)
    recorder.end(1)
    assert [(line["timestamp"], line["input_length"], line["output_length"]) for line in lines(path)] == [(500, 5, 3), (0, 20, 1)]
    assert [program.start for program in trace.read(path).programs] == [0.0, 0.5], "in order of arrival again"
    recorder.start(3, range(5), (), now=101.0)
    recorder.close()
    recorder.end(3)
    assert len(lines(path)) == 2
    assert not caplog.records


@pytest.mark.parametrize("block_size", [4, 16])
def test_mooncake_trace_keeps_what_was_shared(tmp_path: Path, block_size: int) -> None:
    workload = workloads.build("react", scale=0.03)
    served = offline.sequences(workload)
    records = [
        Record("", float(i), float(i), float(i), request.num_prompt, 0, 0, 0, i, request.tokens) for i, request in enumerate(served)
    ]
    trace.write_mooncake(tmp_path / "t.jsonl", records, block_size=block_size)
    again = trace.read(tmp_path / "t.jsonl")
    assert [program.start for program in again.programs] == [float(i) for i in range(len(served))]
    found = offline.sequences(again)
    assert [(len(request.tokens), request.num_prompt) for request in found] == [(len(r.tokens), r.num_prompt) for r in served]
    lost = sum(optimal.cached_tokens(served)) - sum(optimal.cached_tokens(found))
    assert 0 <= lost <= (block_size - 1) * len(served)


def test_agentic_trace_keeps_conversations(tmp_path: Path) -> None:
    workload = workloads.build("multi-turn-short", scale=0.05)
    trace.write_agentic(tmp_path / "t.json", workload)
    again = trace.read(tmp_path / "t.json")
    shape = [[(call.gap, [p if isinstance(p, Output) else len(p) for p in call.prompt]) for call in p.calls] for p in again.programs]
    assert [len(program.calls) for program in again.programs] == [4] * len(workload.programs)
    assert shape[0][1][1][1] == Output(0)
    first = again.programs[0].calls[0].prompt[0]
    assert first == sum(workload.programs[0].calls[0].prompt, tokens())  # type: ignore[arg-type]


def test_agentic_trace_is_for_conversations_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no conversation"):
        trace.write_agentic(tmp_path / "t.json", workloads.build("hellaswag", scale=0.01))


def test_traces_of_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
        '{"timestamp": 29000, "input_length": 1030, "output_length": 26, "hash_ids": [46, 47, 3]}\n'
    )
    first, second = trace.read(path, slowdown=2.0).programs
    assert (first.start, second.start, second.calls[0].num_output) == (0.0, 4.0, 26)
    a, b = first.calls[0].prompt[0], second.calls[0].prompt[0]
    assert isinstance(a, array)
    assert isinstance(b, array)
    assert (len(a), len(b)) == (1100, 1030)
    assert a[:1024] == b[:1024]
    assert a[1024:1030] != b[1024:]
    path.write_text('{"input_tokens": [5, 6], "output_tokens": [7], "ts": 3.5}\n{"input_tokens": [5], "num_output_tokens": 4, "ts": 4.0}\n')
    first, second = trace.read(path).programs
    assert (first.calls[0].output, second.start, second.calls[0].num_output) == (tokens(7), 0.5, 4)
    path.write_text(json.dumps([{"messages": [{"role": "user", "content": "read the file"}], "prompt_tokens": 5}] * 2))
    (program,) = trace.read(path).programs
    assert [call.num_output for call in program.calls] == [trace.AGENTIC_OUTPUT] * 2
    assert program.calls[1].prompt[2] == program.calls[0].prompt[0], "equal text is equal tokens"


NO_TRACES = ("", "nonsense", "{}", "[1]", '{"timestamp": 0}', '{"conversations": [[{}]]}', '"x"', '{"input_tokens": 3}')


@pytest.mark.parametrize("text", NO_TRACES)
def test_file_that_is_no_trace_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        trace.read(tmp_path / "t.jsonl")
    with pytest.raises(ConfigError, match="missing"):
        trace.read(tmp_path / "missing")
