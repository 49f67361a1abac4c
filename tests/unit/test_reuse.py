"""The histogram of how long prefixes lie unused, through a prefix cache and out of /metrics."""

from __future__ import annotations

from array import array

from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.cache.reuse import BOUNDS, ReuseGaps
from radixrt.engine.metrics import Metrics
from radixrt.types import EngineStats


def make() -> tuple[PrefixCache, ReuseGaps]:
    cache = PrefixCache(tree=RadixTree(), num_slots=100, num_rows=4, max_length=100)
    cache.reuse = ReuseGaps(100)
    return cache, cache.reuse


def start(cache: PrefixCache, reuse: ReuseGaps, tokens: range, now: float) -> Lease:
    reuse.now = now
    lease = cache.admit(array("i", tokens), None)
    assert lease is not None
    cache.note_admitted(lease, array("i", tokens))
    assert cache.extend(lease, len(tokens) - lease.length)
    cache.publish(lease, array("i", tokens), len(tokens))
    return lease


def end(cache: PrefixCache, reuse: ReuseGaps, lease: Lease, tokens: range, now: float) -> None:
    reuse.now = now
    cache.release(lease, array("i", tokens), len(tokens))


def gaps(reuse: ReuseGaps) -> dict[float, int]:
    """Counts by upper bound."""
    return {bound: count for bound, count in zip((*BOUNDS, float("inf")), reuse.counts, strict=True) if count}


def test_a_gap_runs_from_the_end_of_the_last_use_to_the_next_match() -> None:
    cache, reuse = make()
    tokens = range(20)
    end(cache, reuse, start(cache, reuse, tokens, now=10.0), tokens, now=14.0)
    assert gaps(reuse) == {}
    end(cache, reuse, start(cache, reuse, tokens, now=18.0), tokens, now=19.0)
    assert (gaps(reuse), reuse.seconds) == ({5.0: 1}, 4.0)
    start(cache, reuse, range(15), now=100_000.0)  # too short to count
    start(cache, reuse, range(17), now=100_019.0)
    assert (gaps(reuse), reuse.seconds) == ({5.0: 1, float("inf"): 1}, 100_004.0)


def test_what_a_running_sequence_holds_has_no_gap() -> None:
    cache, reuse = make()
    start(cache, reuse, range(20), now=10.0)
    lease = start(cache, reuse, range(20), now=1000.0)
    assert gaps(reuse) == {0.1: 1}
    end(cache, reuse, lease, range(20), now=1010.0)
    start(cache, reuse, range(20), now=1012.0)
    start(cache, reuse, range(20), now=1100.0)
    assert gaps(reuse) == {0.1: 2, 5.0: 1}


def test_slots_that_were_evicted_carry_no_memory() -> None:
    cache, reuse = make()
    for first in (0, 1000):
        tokens = range(first, first + 90)
        end(cache, reuse, start(cache, reuse, tokens, now=10.0 + first), tokens, now=10.0 + first)
    assert gaps(reuse) == {}
    tokens = range(5000, 5090)
    start(cache, reuse, tokens, now=2000.0)  # in slots of the first two, and still running
    start(cache, reuse, tokens, now=2001.0)
    assert gaps(reuse) == {0.1: 1}


def test_metrics_show_the_histogram_and_the_waits() -> None:
    counts = [1, 0, 2] + [0] * (len(BOUNDS) - 3) + [4]
    text = Metrics("m").render(EngineStats(reuse_counts=counts, reuse_seconds=9.5, wait_seconds={"slots": 1.5, "memory": 2.0})).decode()
    for line in (
        'radixrt_reuse_gap_seconds_bucket{le="0.1",model_name="m"} 1.0', 'radixrt_reuse_gap_seconds_bucket{le="5.0",model_name="m"} 3.0',
        'radixrt_reuse_gap_seconds_bucket{le="+Inf",model_name="m"} 7.0', 'radixrt_reuse_gap_seconds_count{model_name="m"} 7.0',
        'radixrt_reuse_gap_seconds_sum{model_name="m"} 9.5', 'radixrt_wait_seconds_total{model_name="m",reason="slots"} 1.5',
    ):  # fmt: skip
        assert line in text.splitlines(), text
