"""What one step computes and samples, as plain arrays: no requests, no scheduler state.

A step is made of numpy arrays on the host, which compiled kernels read as they are; ``batch_on`` and ``sampling_on`` make tensors
of them where torch computes.

``Batch`` is known when the step is decided; ``SamplingBatch`` when the tokens of the step before have been committed.
T tokens of B rows are flattened; S positions are sampled, P prompt positions are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

# What the arrays of a step are: numpy.ndarray or torch.Tensor.
A = TypeVar("A")
B = TypeVar("B")


def tensor_on(device: torch.device, array: np.ndarray) -> Tensor:
    """Return an array as a tensor of a device; on a CPU they share memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Prompt positions whose logprobs were asked for.

    index [P]: place in the flattened tokens whose logits predict the position; targets [P]: the token there;
    top: alternatives a position; given [P, G]: ids to report, padded with -1.
    """

    index: Tensor
    targets: Tensor
    top: int
    given: Tensor | None


@dataclass(frozen=True, slots=True)
class Batch(Generic[A]):
    """A ragged step.

    input_ids [T] int64: known tokens, 0 where the token is still on the device.
    positions [T] int64: position of each token in its sequence.
    slots [T] int64: KV slot each token's K/V is stored in.
    page_table [B, L] int32: KV slot of every position below starts + counts of each row, L the longest; a snapshot.
    starts, counts [B]: row b computes positions starts[b] .. starts[b] + counts[b] - 1; host arrays.
    device_index [D], device_rows [D]: input_ids[device_index] are the last sampled tokens of these state rows.
    sample_index [S] int64: places in the flattened tokens whose logits are sampled, by row and then position.
    last_index [R], last_rows [R]: sample last_index[i] (a place in S) becomes the last token of state row last_rows[i].
    prompt_scores: prompt positions to score, or None.
    hidden_index [E] int64: places in the flattened tokens whose hidden states are wanted, or None.
    masked: whether some sampled position will be masked, so that not all of its logits are needed.
    """

    input_ids: A
    positions: A
    slots: A
    page_table: A
    starts: np.ndarray
    counts: np.ndarray
    device_index: A
    device_rows: A
    sample_index: A
    last_index: A
    last_rows: A
    prompt_scores: PromptScores | None = None
    hidden_index: Tensor | None = None
    masked: bool = False

    @property
    def num_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def num_rows(self) -> int:
        return len(self.counts)


def batch_on(device: torch.device, batch: Batch[np.ndarray]) -> Batch[Tensor]:
    """Return a batch as tensors of a device."""

    def on(array: np.ndarray) -> Tensor:
        return tensor_on(device, array)

    return Batch(
        starts=batch.starts, counts=batch.counts, prompt_scores=batch.prompt_scores, hidden_index=batch.hidden_index, masked=batch.masked,
        input_ids=on(batch.input_ids), positions=on(batch.positions), slots=on(batch.slots), page_table=on(batch.page_table),
        device_index=on(batch.device_index), device_rows=on(batch.device_rows), sample_index=on(batch.sample_index),
        last_index=on(batch.last_index), last_rows=on(batch.last_rows),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Sparse changes to logits [S, V]: entry i concerns logits[rows[i], tokens[i]]; each pair at most once.

    additive: subtracted penalties and other offsets.  scale: repetition penalty (positive logits are divided by it,
    negative ones multiplied).  bias: added last, after the mask; -inf forbids.
    """

    rows: Tensor
    tokens: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class ChainGroup:
    """Sampled positions [C] whose samplers and their order are the same.

    rows [C] int64: places in S; those of one request lie side by side, by position.  order: names of ``radixrt.samplers``, and
    mirostat_1 or mirostat_2 at the end.  values: each parameter by its name, [C] float64; ``top_k`` [C] int64, vocabulary size when
    off.  uniform, chance [C] float64: noise that draws the token, and noise that decides whether XTC acts.
    penalties (additive), repetition (scale), repeats (additive, of DRY): edits whose rows are places in C, or None.
    turns: places in C by how many positions of the same request come before; mu [C] float64: mirostat's state, where none does.
    """

    rows: Tensor
    order: tuple[str, ...]
    values: Mapping[str, Tensor]
    uniform: Tensor
    chance: Tensor
    mu: Tensor
    turns: Sequence[Tensor]
    penalties: LogitEdits | None = None
    repetition: LogitEdits | None = None
    repeats: LogitEdits | None = None


@dataclass(frozen=True, slots=True)
class SamplingBatch(Generic[A]):
    """How to sample S positions; every field is per position.

    temperature, top_p, min_p [S] float32; top_k [S] int64 (vocabulary size when off); uniform [S] float64 in [0, 1):
    the noise of (seed, position), 0 when all_greedy.  greedy [S] bool; all_greedy short-cuts the rest.
    penalties (additive), repetition (scale) and bias: sparse edits or None.
    mask [S, ceil(V / 32)] int32: bit t of row s set when token t is allowed; None when no row is constrained.
    chain: positions that other samplers choose for, which are ``greedy`` here and have only mask and bias of these edits.
    logprob_rows [Q]: places in S whose logprobs are reported, with top alternatives and given ids [Q, G] (-1 pads).
    """

    all_greedy: bool
    greedy: A
    temperature: A
    top_k: A
    top_p: A
    min_p: A
    uniform: A
    penalties: LogitEdits | None = None
    repetition: LogitEdits | None = None
    bias: LogitEdits | None = None
    mask: A | None = None
    chain: Sequence[ChainGroup] = ()
    logprob_rows: Tensor | None = None
    logprob_top: int = 0
    logprob_given: Tensor | None = None


def sampling_on(device: torch.device, sampling: SamplingBatch[np.ndarray]) -> SamplingBatch[Tensor]:
    """Return how to sample as tensors of a device."""
    return _with_arrays(sampling, lambda array: tensor_on(device, array))


def sampling_on_host(sampling: SamplingBatch[Tensor]) -> SamplingBatch[np.ndarray]:
    """Return how to sample, tensors of a CPU, as arrays."""
    return _with_arrays(sampling, Tensor.numpy)


def _with_arrays(sampling: SamplingBatch[A], turned: Callable[[A], B]) -> SamplingBatch[B]:
    return SamplingBatch(
        all_greedy=sampling.all_greedy, greedy=turned(sampling.greedy), temperature=turned(sampling.temperature),
        top_k=turned(sampling.top_k), top_p=turned(sampling.top_p), min_p=turned(sampling.min_p), uniform=turned(sampling.uniform),
        penalties=sampling.penalties, repetition=sampling.repetition, bias=sampling.bias,
        mask=None if sampling.mask is None else turned(sampling.mask), chain=sampling.chain, logprob_rows=sampling.logprob_rows,
        logprob_top=sampling.logprob_top, logprob_given=sampling.logprob_given,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Reported logprobs of Q positions, on the host: chosen [Q], top values and ids [Q, K], given [Q, G]."""

    chosen: np.ndarray
    top_values: np.ndarray
    top_ids: np.ndarray
    given: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Samples:
    """The result of a step on the host: tokens [S] (-1 where the logits were not finite) and what was to be reported.

    mu [S] float64: mirostat's state after each token, None where no row has any.  hidden [E, H] float64: what was wanted of them.
    """

    tokens: np.ndarray
    logprobs: Logprobs | None = None
    prompt_scores: Logprobs | None = None
    mu: np.ndarray | None = None
    hidden: np.ndarray | None = None
