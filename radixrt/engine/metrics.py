"""The numbers an operator sees, as Prometheus text under SGLang's names.

Gauges and counters of the core are read from one snapshot, so that they agree with each other; times and requests are
counted here, as the engine front sees them.  Each engine has a registry of its own.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from radixrt.cache.reuse import BOUNDS
from radixrt.types import EngineStats, Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Throughput is taken over a window at least this long.
WINDOW_SECONDS = 1.0
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)


class _Observed:
    """A histogram of what was observed.  Not the library's, whose locks and labels cost as much as all else done for a token."""

    def __init__(self, name: str, help: str, bounds: Sequence[float] = _SECONDS) -> None:
        self._name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, labels: dict[str, str]) -> Metric:
        return _histogram(self._name, self._help, labels, self._bounds, self._counts, self._sum)


class Metrics:
    """What one engine has done and is doing."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self._first_token = _Observed("sglang:time_to_first_token_seconds", "From taking a request to its first token")
        self._next_token = _Observed("sglang:inter_token_latency_seconds", "Between two tokens of one answer")
        self._whole = _Observed("sglang:e2e_request_latency_seconds", "From taking a request to its end")
        self._queued = _Observed("sglang:queue_time_seconds", "From queueing a request to its first step, of answers that have a token")
        self._prompt = _Observed("sglang:prompt_tokens_histogram", "Prompt tokens of finished answers", _TOKENS)
        self._uncached = _Observed(
            "sglang:uncached_prompt_tokens_histogram", "Prompt tokens of finished answers that the cache did not have", _TOKENS
        )
        self._generated = _Observed("sglang:generation_tokens_histogram", "Generated tokens of finished answers", _TOKENS)
        self._requests = self._aborted = self._failed_checks = 0
        self._throughput = 0.0
        self._window_start = time.monotonic()
        self._window_tokens = 0

    def started(self, num: int) -> None:
        """Count answers that were started."""
        self._requests += num

    def tokens(self, num: int, since_start: float, since_last: float | None, queued: float) -> None:
        """Count the arrival of ``num`` tokens of one answer; ``since_last`` is None for its first ones, before which it was
        ``queued`` for so many seconds."""
        if since_last is None:
            self._first_token.observe(since_start)
            self._queued.observe(queued)
            return
        self._next_token.observe(since_last / num, num)

    def finished(self, seconds: float, usage: Usage, *, aborted: bool) -> None:
        """Count the end of one answer."""
        self._whole.observe(seconds)
        if usage.prompt_tokens:  # it has come so far that somebody has counted
            self._prompt.observe(usage.prompt_tokens)
            self._uncached.observe(usage.prompt_tokens - usage.cached_tokens)
            self._generated.observe(usage.completion_tokens)
        self._aborted += aborted

    def failed_check(self) -> None:
        """Count a finished text that breaks its schema."""
        self._failed_checks += 1

    def note(self, stats: EngineStats) -> None:
        """Keep track of the throughput; called with every snapshot."""
        now = time.monotonic()
        elapsed = now - self._window_start
        if elapsed >= WINDOW_SECONDS:
            self._throughput = max(0, stats.generated_tokens - self._window_tokens) / elapsed
            self._window_start, self._window_tokens = now, stats.generated_tokens

    def throughput(self, stats: EngineStats) -> float:
        """Generated tokens a second, lately; 0 while nothing runs."""
        idle = time.monotonic() - self._window_start > 2 * WINDOW_SECONDS and not stats.num_running
        return 0.0 if idle else self._throughput

    def render(self, stats: EngineStats, *, worker_pids: Sequence[int] = ()) -> bytes:
        """Return everything in Prometheus' text format."""
        snapshot = CollectorRegistry()
        snapshot.register(_Families(self._families(stats, worker_pids)))
        return generate_latest(snapshot)

    def _families(self, stats: EngineStats, worker_pids: Sequence[int]) -> Iterator[Metric]:
        capacity, locked = stats.capacity_tokens, stats.locked_tokens
        gauges = (
            ("sglang:num_running_reqs", "Requests being computed", stats.num_running),
            ("sglang:num_queue_reqs", "Requests waiting", stats.num_waiting),
            ("sglang:num_used_tokens", "KV slots held by running requests", locked),
            ("sglang:token_usage", "Share of the KV slots held by running requests", locked / capacity if capacity else 0.0),
            ("sglang:max_total_num_tokens", "KV slots", capacity),
            ("sglang:kv_available_tokens", "KV slots that are free", stats.free_tokens),
            ("sglang:kv_evictable_tokens", "KV slots of the cache that nobody holds", stats.cached_tokens),
            ("sglang:kv_used_tokens", "KV slots held by running requests", locked),
            ("sglang:gen_throughput", "Generated tokens a second, lately", self.throughput(stats)),
            ("sglang:cache_hit_rate", "Share of all prompt tokens that the cache had",
             stats.cached_prompt_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0),
            ("sglang:page_size", "Tokens a page of the KV pool", 1),
            ("sglang:num_pages", "Pages of the KV pool", capacity),
            ("radixrt_tree_nodes", "Nodes of the radix tree", stats.tree_nodes),
            ("radixrt_pins", "Pinned prefixes", stats.num_pins),
            ("radixrt_pinned_tokens", "Tokens of pinned prefixes", stats.pinned_tokens),
            ("radixrt_grammar_cache_bytes", "Memory of compiled grammars that are kept", stats.grammar.cached_bytes),
            ("radixrt_grammars_pending", "Grammars being compiled", stats.grammar.pending),
        )  # fmt: skip
        counters = (
            ("sglang:prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens),
            ("sglang:generation_tokens", "Generated tokens", stats.generated_tokens),
            ("sglang:cached_tokens", "Prompt tokens that the cache had", stats.cached_prompt_tokens),
            ("sglang:evicted_tokens", "KV slots evicted from the cache", stats.evicted_tokens),
            ("sglang:num_requests", "Answers started", self._requests),
            ("sglang:num_aborted_requests", "Answers aborted", self._aborted),
            ("sglang:num_retracted_requests", "Times a running request was sent back to wait", stats.num_retracted),
            ("radixrt_preempted_requests", "Times a running request made way for one of higher priority", stats.num_preempted),
            ("radixrt_timed_out_requests", "Requests ended because they waited or ran too long", stats.num_timed_out),
            ("radixrt_steps", "Steps of the engine core", stats.steps),
            ("radixrt_failed_steps", "Steps that failed", stats.failed_steps),
            ("radixrt_computed_tokens", "Tokens that went through the model", stats.computed_tokens),
            ("radixrt_grammar_compiled", "Grammars compiled", stats.grammar.compiled),
            ("radixrt_grammar_compile_seconds", "From asking for a grammar to its end, over all", stats.grammar.compile_seconds),
            ("radixrt_grammar_wait_seconds", "Time that requests waited for their grammar", stats.grammar.wait_seconds),
            ("radixrt_grammar_refused", "Grammars refused", stats.grammar.refused),
            ("radixrt_grammar_timed_out", "Grammars given up because they took too long", stats.grammar.timed_out),
            ("radixrt_grammar_cache_hits", "Grammars that were known", stats.grammar.cache_hits),
            ("radixrt_grammar_masked_positions", "Sampled positions under a grammar", stats.grammar.masked_rows),
            ("radixrt_grammar_mask_seconds", "Time spent on masks, while the step computed", stats.grammar.mask_seconds),
            ("radixrt_grammar_closed", "Texts that were closed in time for their budget", stats.grammar.closed),
            ("radixrt_grammar_failed_checks", "Finished texts that broke their schema", self._failed_checks),
            ("radixrt_drafted_tokens", "Tokens guessed or forced ahead", stats.grammar.drafted_tokens),
            ("radixrt_accepted_drafts", "Of these, confirmed", stats.grammar.accepted_drafts),
        )
        names, values = list(self._labels), list(self._labels.values())
        for name, help, value in gauges:
            gauge = GaugeMetricFamily(name, help, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, help, value in counters:
            counter = CounterMetricFamily(name, help, labels=names)
            counter.add_metric(values, value)
            yield counter
        waits = CounterMetricFamily("radixrt_wait_seconds", "Time that finished requests spent waiting", labels=[*names, "reason"])
        for reason, seconds in sorted(stats.wait_seconds.items()):
            waits.add_metric([*values, reason], seconds)
        yield waits
        pool = GaugeMetricFamily("sglang:cache_config_info", "The KV pool", labels=[*names, "page_size", "num_pages"])
        pool.add_metric([*values, "1", str(capacity)], 1)
        yield pool
        memory = GaugeMetricFamily("radixrt_process_resident_memory_bytes", "Resident memory of each process", labels=[*names, "process"])
        for role, pid in (("front", os.getpid()), *(("worker", pid) for pid in worker_pids)):
            resident = resident_bytes(pid)
            if resident is not None:
                memory.add_metric([*values, role], resident)
        yield memory
        yield _histogram(
            "radixrt_reuse_gap_seconds", "How long a cached prefix lay unused before it was matched again", self._labels,
            BOUNDS, stats.reuse_counts or [0] * (len(BOUNDS) + 1), stats.reuse_seconds,
        )
        for observed in (
            self._first_token, self._next_token, self._whole, self._queued, self._prompt, self._uncached, self._generated,
        ):  # fmt: skip
            yield observed.family(self._labels)


def _histogram(name: str, help: str, labels: dict[str, str], bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    family = HistogramMetricFamily(name, help, labels=list(labels))
    family.add_metric(list(labels.values()), [*zip([*map(str, bounds), "+Inf"], itertools.accumulate(counts), strict=True)], total)
    return family


class _Families(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._list = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._list)


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process, or None where it cannot be read."""
    if sys.platform != "linux":
        return None
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None
