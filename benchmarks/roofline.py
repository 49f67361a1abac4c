"""Every op of the kernels beside what this machine can do: bytes and operations a second, and the share of the nearer roof.

    python benchmarks/roofline.py [--busy] [--seconds 0.3] [--json FILE]

Shapes are those of the default model.  A call moves the bytes and does the operations that its result needs, however it goes
about it; the best of many calls is taken.  The memory roof is how fast all cores read memory in this run.  The compute roof is
the best product that was seen in this run, torch's in float32 or one of the kernels' own: a quantised product counts its int8
multiplications.  On a machine that others use too a call is interrupted; ``--busy`` measures one thread in its own CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from peers.machine import READ_BYTES, MemoryProbe
from rich import box
from rich.console import Console
from rich.table import Table

from radixrt.cache.kv_pool import KVPool
from radixrt_kernels import _native, ops

HIDDEN, INTERMEDIATE, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 576, 1536, 49152, 9, 3, 64
FORMATS = ("q4_1", "q4_0", "q8_0", "bf16", "f32")
ROWS = (1, 16, 512)
NUM_SLOTS = 1 << 16
COLD_BYTES = 48 << 20  # of weights between two uses of the same


@dataclass
class Measured:
    """Microseconds of the best call, and what it moved and did at least."""

    name: str
    micros: float
    num_bytes: int
    num_ops: int

    @property
    def gigabytes_s(self) -> float:
        return self.num_bytes / self.micros / 1e3

    @property
    def gigaops_s(self) -> float:
        return self.num_ops / self.micros / 1e3


@dataclass
class Watch:
    """How calls are timed: on a clock, for so many of its seconds."""

    clock: Callable[[], float]
    seconds: float

    def best(self, call: Callable[[], object]) -> float:
        """Microseconds of the fastest of the calls that fit in, and of three at least."""
        call()
        times: list[float] = []
        begin = self.clock()
        while len(times) < 3 or self.clock() - begin < self.seconds:
            start = self.clock()
            call()
            times.append(self.clock() - start)
        return 1e6 * min(times)


def products(watch: Watch) -> Iterator[Measured]:
    """The head and a layer's three shapes, for a step of one row, of a few, and of a chunk of a prompt.

    One row is multiplied with many matrices in turn, so that weights come from memory, as they do in a model.
    """
    for kind in FORMATS:
        for rows in ROWS:
            for name, outputs, inputs in (("qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN), ("gate and up", 2 * INTERMEDIATE, HIDDEN),
                                          ("down", HIDDEN, INTERMEDIATE), ("head", VOCAB, HIDDEN)):  # fmt: skip
                if name == "head" and (rows == ROWS[-1] or kind == "f32"):
                    continue  # only the last position of a prompt needs it
                matrix = ops.packed_matrix(kind, outputs, inputs)
                others = COLD_BYTES // matrix.nbytes if rows == 1 else 0
                copies = [matrix, *(ops.packed_matrix(kind, outputs, inputs) for _ in range(others))]
                values = torch.randn(outputs * inputs)
                for copy in copies:
                    copy.pack_floats(0, values)
                matrices = cycle(copies)
                x, y = torch.randn(rows, inputs), torch.empty(rows, outputs)
                micros = watch.best(lambda x=x, matrices=matrices, y=y: _native.linear(x, next(matrices), y))  # type: ignore[misc]
                yield Measured(f"{kind} {name}, {rows} rows", micros, matrix.nbytes + x.nbytes + y.nbytes, 2 * rows * outputs * inputs)


def attention(watch: Watch) -> Iterator[Measured]:
    """One layer's attention, decoding and extending, K/V in bfloat16 and int8."""
    for dtype in (torch.bfloat16, torch.int8):
        pool = KVPool(num_layers=1, num_slots=NUM_SLOTS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=dtype, device="cpu")
        slots = torch.randperm(NUM_SLOTS)
        pool.store(0, torch.arange(NUM_SLOTS), *(torch.randn(NUM_SLOTS, KV_HEADS, HEAD_DIM) for _ in range(2)))
        for batch, start, count in ((1, 1024, 1), (16, 1024, 1), (1, 0, 512), (1, 4096, 512)):
            table = slots[: batch * (start + count)].reshape(batch, start + count).to(torch.int32)
            plan = ops.attention_plan(
                table.numpy(), np.full(batch, start), np.full(batch, count), HEADS, KV_HEADS, HEAD_DIM, NUM_SLOTS, 0, 0
            )
            q = torch.randn(batch * count, HEADS, HEAD_DIM)
            out = torch.empty_like(q)
            call = lambda plan=plan, pool=pool, q=q, out=out: ops.paged_attention(plan, pool.storage, 0, q, out, HEAD_DIM**-0.5)  # noqa: E731
            pairs = batch * (count * start + count * (count + 1) // 2)
            moved = 2 * batch * (start + count) * KV_HEADS * HEAD_DIM * dtype.itemsize + 2 * q.nbytes
            shape = f"{batch} x {count} behind {start}"
            yield Measured(f"attention {str(dtype)[6:]}, {shape}", watch.best(call), moved, 4 * pairs * HEADS * HEAD_DIM)


def between(watch: Watch) -> Iterator[Measured]:
    """The work between products, of a chunk of a prompt."""
    rows = ROWS[-1]
    x, out = torch.randn(rows, HIDDEN), torch.empty(rows, HIDDEN)
    weight = torch.ones(HIDDEN)
    yield Measured(f"RMSNorm, {rows} rows", watch.best(lambda: _native.rms_norm(x, weight, 1e-5, out)), 2 * x.nbytes, 4 * x.numel())
    gate, up, gated = (torch.randn(rows, INTERMEDIATE) for _ in range(3))
    micros = watch.best(lambda: _native.gated("silu", gate, up, gated))
    yield Measured(f"SiLU times up, {rows} rows", micros, 3 * gate.nbytes, 5 * gate.numel())


def show(measured: list[Measured], memory: float, compute: float) -> Table:
    """A row an op, with the share of the roof that it is nearer to."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("op")
    for name in ("us", "GB/s", "10^9 op/s", "% of roof", "roof"):
        table.add_column(name, justify="right")
    for one in measured:
        of_memory, of_compute = one.gigabytes_s / memory, one.gigaops_s / compute
        share, roof = max((of_memory, "memory"), (of_compute, "compute"))
        table.add_row(one.name, f"{one.micros:,.0f}", f"{one.gigabytes_s:.1f}", f"{one.gigaops_s:.1f}", f"{100 * share:.0f}", roof)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--busy", action="store_true", help="one thread, in CPU time: for a machine that is not quiet")
    parser.add_argument("--seconds", type=float, default=0.3, help="for which each op is tried")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    watch = Watch(time.thread_time if options.busy else time.perf_counter, options.seconds)
    if options.busy:
        _native.set_num_threads(1)
        torch.set_num_threads(1)
    a, large = torch.ones(1024, 1024), np.ones(READ_BYTES // 8)
    torch_product = 2 * 1024**3 / watch.best(lambda: a @ a) / 1e3
    probe = MemoryProbe()

    def bandwidth() -> float:
        return READ_BYTES / watch.best(large.max) / 1e3 if options.busy else probe.gigabytes_s()

    memory, measured = bandwidth(), []
    for group in (products, attention, between):
        measured += list(group(watch))
        memory = max(memory, bandwidth())
    probe.close()
    compute = max(torch_product, *(one.gigaops_s for one in measured))
    facts = ops.kernel_facts()
    Console(width=110).print(show(measured, memory, compute))
    how = "one thread, CPU time" if options.busy else f"{facts['threads']} threads"
    print(f"{facts['isa']}, {how}; memory read at {memory:.1f} GB/s; 10^9 op/s: best product {compute:.0f}, torch's {torch_product:.0f}")
    if options.json is not None:
        report = {"memory_gb_s": memory, "compute_gigaops_s": compute, "torch_gigaops_s": torch_product, "how": how, "kernels": facts}
        options.json.write_text(json.dumps({**report, "ops": [asdict(one) for one in measured]}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
