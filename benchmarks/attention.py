"""Speed of attention and sampling on this machine's CPU, against torch in the same run: no model, no HTTP.

    python benchmarks/attention.py [--rounds 5] [--json FILE]

Decodes and prefills of SmolLM2-135M's heads (9 over 3, of 64 dimensions) in every type of stored K/V, in turns with
``torch_sdpa``; rows that share a preamble beside rows that do not; and sampling from a vocabulary of 49,152, in turns with the
definition in torch.  Beside them what the machine reads a second and what its matrix product does, measured in the same
minute.  Figures are the best of the rounds; a decode's bytes are those of the K/V it has to read, each once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radixrt.attention import select_backend
from radixrt.attention.base import ForwardContext
from radixrt.batch import Batch, SamplingBatch
from radixrt.cache.kv_pool import KVPool
from radixrt.runner import sampler
from radixrt_kernels.ops import NATIVE

HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 9, 3, 64, 49_152
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
NONE = torch.empty(0, dtype=torch.int64)
# Name, starts, counts, positions whose slots all rows share.
STEPS: list[tuple[str, list[int], list[int], int]] = [
    ("decode 1 x 4,096", [4095], [1], 0),
    ("decode 16 x 2,048", [2047] * 16, [1] * 16, 0),
    ("decode 16 x 3,072, 3,000 shared", [3071] * 16, [1] * 16, 3000),
    ("prefill 512 at 0", [0], [512], 0),
    ("prefill 512 at 1,536", [1536], [512], 0),
]


def best(rounds: int, *calls: Callable[[], object]) -> list[float]:
    """Least seconds of each call, taken in turns."""
    times = [[] for _ in calls]  # type: list[list[float]]
    for _ in range(rounds + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [min(taken[1:]) for taken in times]


def measure_machine(rounds: int) -> dict[str, float]:
    numbers, matrix = torch.randn(40_000_000), torch.randn(1024, 1024)
    read, product = best(rounds, numbers.sum, lambda: matrix @ matrix)
    return {"read_gb_s": numbers.nbytes / read / 1e9, "float32_gflop_s": 2 * 1024**3 / product / 1e9}


def ragged(starts: Sequence[int], counts: Sequence[int], shared: int) -> tuple[Batch[torch.Tensor], int]:
    """A step whose rows' slots lie behind each other after the shared ones; and how many slots it reads."""
    ends = np.add(starts, counts)
    pages = np.zeros((len(starts), ends.max()), dtype=np.int32)
    at = shared
    for row, end in enumerate(ends):
        pages[row, :end] = [*range(shared), *range(at, at + end - shared)]
        at += end - shared
    tokens = torch.zeros(sum(counts), dtype=torch.int64)
    batch = Batch(
        input_ids=tokens, positions=tokens, slots=tokens, page_table=torch.from_numpy(pages), starts=np.array(starts),
        counts=np.array(counts), device_index=NONE, device_rows=NONE, sample_index=NONE, last_index=NONE, last_rows=NONE,
    )  # fmt: skip
    return batch, int(at)


def measure_attention(name: str, starts: list[int], counts: list[int], shared: int, kind: str, rounds: int) -> dict[str, Any]:
    batch, num_slots = ragged(starts, counts, shared)
    pool = KVPool(
        num_layers=1, num_slots=num_slots, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=TYPES[kind], device="cpu"
    )
    pool.store(0, torch.arange(num_slots), *(torch.randn(num_slots, KV_HEADS, HEAD_DIM) for _ in range(2)))
    q = torch.randn(sum(counts), HEADS, HEAD_DIM)
    contexts = [ForwardContext.of(batch, pool, select_backend(backend)) for backend in ("native", "torch_sdpa")]
    calls = [lambda c=c: c.backend.forward(c.plan, pool, 0, q, scale=0.125) for c in contexts]
    native, sdpa = best(rounds, *calls)
    pairs = sum(count * start + count * (count + 1) / 2 for start, count in zip(starts, counts, strict=True))
    num_bytes = num_slots * KVPool.bytes_per_slot(num_layers=1, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=TYPES[kind])
    return {
        "step": name, "kv": kind, "native_ms": native * 1e3, "sdpa_ms": sdpa * 1e3, "times": sdpa / native,
        "native_gb_s": num_bytes / native / 1e9, "native_gflop_s": 4 * HEADS * HEAD_DIM * pairs / native / 1e9,
        "sdpa_gflop_s": 4 * HEADS * HEAD_DIM * pairs / sdpa / 1e9,
    }  # fmt: skip


def measure_sampling(name: str, rounds: int, *, greedy: bool = False, top_k: int = VOCABULARY, top_p: float = 1.0) -> dict[str, Any]:
    rows = 16
    logits = torch.randn(rows, VOCABULARY) * 3
    sampling = SamplingBatch(
        all_greedy=greedy, greedy=torch.full((rows,), greedy), temperature=torch.full((rows,), 0.8),
        top_k=torch.full((rows,), top_k), top_p=torch.full((rows,), top_p), min_p=torch.zeros(rows),
        uniform=torch.rand(rows, dtype=torch.float64),
    )  # fmt: skip

    def draw(*, compiled: bool) -> None:
        sampler.COMPILED = compiled
        sampler.sample(logits, sampling)

    native, in_torch = best(rounds, lambda: draw(compiled=True), lambda: draw(compiled=False))
    return {"sampling": name, "native_us_a_row": native / rows * 1e6, "torch_us_a_row": in_torch / rows * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not NATIVE:
        parser.error("the compiled kernels were not built")
    figures: list[dict[str, Any]] = []

    def show(figure: dict[str, Any]) -> None:
        figures.append(figure)
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value:<10}" for key, value in figure.items()), flush=True)

    with torch.inference_mode():
        show({"machine": "", **measure_machine(options.rounds)})
        for step in STEPS:
            for kind in TYPES:
                show(measure_attention(*step, kind, options.rounds))
        show(measure_sampling("greedy", options.rounds, greedy=True))
        show(measure_sampling("plain", options.rounds))
        show(measure_sampling("top-p 0.95", options.rounds, top_p=0.95))
        show(measure_sampling("top-k 40", options.rounds, top_k=40))
        show({"machine": "", **measure_machine(options.rounds)})
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
