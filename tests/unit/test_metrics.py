"""The histograms of times, against those of the Prometheus library."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from radixrt.engine import metrics as metrics_module
from radixrt.engine.metrics import Metrics
from radixrt.types import EngineStats


def test_times_of_tokens_are_counted_as_the_library_counts_them() -> None:
    registry = CollectorRegistry()
    reference = Histogram("sglang:inter_token_latency_seconds", "", ["model_name"], buckets=metrics_module._SECONDS, registry=registry)
    metrics = Metrics("m")
    metrics.tokens(1, 0.3, None, 0.1)
    for num, seconds in ((1, 0.001), (1, 0.0011), (3, 0.06), (2, 2.0), (1, 400.0)):
        metrics.tokens(num, 1.0, seconds, 0.1)
        for _ in range(num):
            reference.labels("m").observe(seconds / num)
    wanted = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#" and "_created" not in line]
    lines = metrics.render(EngineStats()).decode().splitlines()
    assert len(wanted) > 18 and set(wanted) <= set(lines)
    assert 'sglang:time_to_first_token_seconds_bucket{le="0.25",model_name="m"} 0.0' in lines
    assert 'sglang:time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 1.0' in lines
