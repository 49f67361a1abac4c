"""What one repetition came to, and the medians of several.  Every figure is a number; one that cannot be told is absent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from peers.client import Answer
from peers.machine import Use
from peers.workloads import Workload

Figures = dict[str, float]
CLOCK_SECONDS = 0.5  # CPU times come in hundredths of a second; over less than this they say nothing


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` percent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 100)
    return ordered[max(0, int(rank) - 1)]


def of_answers(workload: Workload, answers: Sequence[Answer], seconds: float, inexact: int = 0) -> Figures:
    """Figures of one repetition that took ``seconds``.

    ttft: until the first text, or the end of an answer without any.  itl: between pieces of text, as a reader sees them.
    tpot: from the first piece to the last, a token after the first.  Milliseconds, all three.
    """
    good = [answer for answer in answers if not answer.error]
    figures: Figures = {"seconds": seconds, "requests": len(answers), "errors": len(answers) - len(good), "inexact_prompts": inexact}
    if not good:
        return figures
    output = sum(answer.num_output for answer in good)
    figures |= {
        "output_tokens": output,
        "output_tokens_s": output / seconds,
        "requests_s": len(good) / seconds,
        "latency_p50_s": percentile([answer.ended - answer.sent for answer in good], 50),
    }
    waits = {answer.kind: [1e3 * _wait(other) for other in good if other.kind == answer.kind] for answer in good}
    every_wait = [wait for some in waits.values() for wait in some]
    figures |= {"ttft_mean_ms": statistics.fmean(every_wait)} | _percentiles("ttft", every_wait)
    if len(waits) > 1:
        figures |= {f"ttft_p50_ms {kind}": percentile(some, 50) for kind, some in sorted(waits.items())}
    figures |= _percentiles("itl", [1e3 * (after - before) for answer in good for before, after in pairwise(answer.times)])
    per_token = [1e3 * took / (answer.num_output - 1) for answer in good if answer.num_output > 1 and (took := _decoding(answer)) > 0]
    if per_token:
        figures["tpot_p50_ms"] = percentile(per_token, 50)
        figures["decode_tokens_s"] = 1e3 / figures["tpot_p50_ms"]
    if all(answer.num_prompt is not None for answer in good):
        figures["prompt_tokens"] = sum(answer.num_prompt or 0 for answer in good)
        if any(answer.cached is not None for answer in good):
            figures["cached_tokens"] = sum(answer.cached or 0 for answer in good)
            figures["cached_percent"] = 100 * figures["cached_tokens"] / max(1, figures["prompt_tokens"])
    if workload.checks is not None:
        figures["valid_percent"] = 100 * sum(workload.checks(answer.text) for answer in good) / len(answers)
    return figures


def of_machine(before: Use, after: Use, seconds: float) -> Figures:
    """What was used meanwhile.  other_cores: how many the rest of the machine kept busy; well above 0, the figures are not quiet."""
    server, own, everything = after.server_cpu - before.server_cpu, after.own_cpu - before.own_cpu, after.all_cpu - before.all_cpu
    figures: Figures = {"client_cpu_s": own}
    if after.resident:  # else the server is somewhere else, or not ours to look at, and cannot be told from others
        figures |= {"server_cpu_s": server, "server_rss_mb": after.resident / 2**20, "server_pss_mb": after.unshared / 2**20}
        if seconds > CLOCK_SECONDS:
            figures["other_cores"] = max(0.0, everything - server - own) / seconds
    return figures


def floor_share(figures: Figures, model_bytes: int, bandwidth: float) -> Figures:
    """Decoding of one stream beside the rate at which memory gives the weights: once a token, at 10^9 x ``bandwidth`` bytes a second."""
    if "decode_tokens_s" not in figures:
        return {}
    floor = bandwidth * 1e9 / model_bytes
    return {"floor_tokens_s": floor, "floor_percent": 100 * figures["decode_tokens_s"] / floor}


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of each figure over the repetitions that have it; errors are added up, so that none hides."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    middle = {name: statistics.median([run[name] for run in runs if name in run]) for name in names}
    return middle | {"errors": sum(run["errors"] for run in runs)}


def _wait(answer: Answer) -> float:
    return (answer.times[0] if answer.times else answer.ended) - answer.sent


def _decoding(answer: Answer) -> float:
    """Seconds from the first piece to the last; 0 where all came in one."""
    return answer.times[-1] - answer.times[0] if answer.times else 0.0


def _percentiles(name: str, values: Sequence[float]) -> Figures:
    return {f"{name}_p{share}_ms": percentile(values, share) for share in (50, 90, 99)} if values else {}
