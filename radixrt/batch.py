"""What one step computes and samples, as plain tensors: no requests, no scheduler state.

``Batch`` is known when the step is decided; ``SamplingBatch`` when the tokens of the step before have been committed.
T tokens of B rows are flattened; S positions are sampled, P prompt positions are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


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
class Batch:
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

    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    page_table: Tensor
    starts: np.ndarray
    counts: np.ndarray
    device_index: Tensor
    device_rows: Tensor
    sample_index: Tensor
    last_index: Tensor
    last_rows: Tensor
    prompt_scores: PromptScores | None = None
    hidden_index: Tensor | None = None
    masked: bool = False

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_rows(self) -> int:
        return len(self.counts)


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
class SamplingBatch:
    """How to sample S positions; every field is per position.

    temperature, top_p, min_p [S] float32; top_k [S] int64 (vocabulary size when off); uniform [S] float64 in [0, 1):
    the noise of (seed, position), 0 when all_greedy.  greedy [S] bool; all_greedy short-cuts the rest.
    penalties (additive), repetition (scale) and bias: sparse edits or None.
    mask [S, ceil(V / 32)] int32: bit t of row s set when token t is allowed; None when no row is constrained.
    chain: positions that other samplers choose for, which are ``greedy`` here and have only mask and bias of these edits.
    logprob_rows [Q]: places in S whose logprobs are reported, with top alternatives and given ids [Q, G] (-1 pads).
    """

    all_greedy: bool
    greedy: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor
    penalties: LogitEdits | None = None
    repetition: LogitEdits | None = None
    bias: LogitEdits | None = None
    mask: Tensor | None = None
    chain: Sequence[ChainGroup] = ()
    logprob_rows: Tensor | None = None
    logprob_top: int = 0
    logprob_given: Tensor | None = None


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
