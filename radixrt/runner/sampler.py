"""Logits to tokens, for all sampled positions of a step at once.

A row's token depends on its own logits, parameters and noise alone, never on what else is in the batch: rows are only
grouped by what they ask for.  Each row takes one uniform number and inverts the cumulative distribution with it, so that
equal (seed, position) give equal tokens however the sequence got there.

The functions in torch are the definition; logits on a CPU take the compiled ones where they were built.  Their softmax differs
from torch's by 4e-7 of a probability at most, so that a token differs only where the noise lies that close to a border.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from radixrt.batch import LogitEdits, SamplingBatch, sampling_on_host
from radixrt_kernels import ops

# Most candidates that top-p and min-p rows look at before all of the vocabulary is sorted.
SHORT_LIST = 1024
COMPILED = ops.NATIVE


def sample(logits: Tensor, sampling: SamplingBatch[Tensor]) -> Tensor:
    """Choose a token for each row of logits [S, V] float32, which are edited in place.

    Returns [S] int64; -1 where nothing finite is left to choose from.  Order, as in SGLang: penalties, repetition, mask,
    bias, temperature, softmax, then top-k, top-p and min-p over the same softmax.
    """
    if COMPILED and logits.device.type == "cpu":
        return torch.from_numpy(sample_arrays(logits.numpy(), sampling_on_host(sampling)))
    _edit(logits, sampling)
    best, tokens = logits.max(dim=-1)
    if not sampling.all_greedy:
        drawn = ~sampling.greedy
        rows = drawn.nonzero().squeeze(1)
        tokens[rows] = _draw(logits[rows], sampling, rows)
    return torch.where(best.isfinite(), tokens, -1)


def sample_arrays(logits: np.ndarray, sampling: SamplingBatch[np.ndarray]) -> np.ndarray:
    """Do what ``sample`` does on arrays of the host; only where the compiled ops were built."""
    tokens = np.empty(len(logits), np.int64)
    ops.sample(
        logits, sampling.greedy, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.uniform,
        _edits(sampling.penalties), _edits(sampling.repetition), _edits(sampling.bias), sampling.mask, tokens,
    )  # fmt: skip
    return tokens


def _edits(edits: LogitEdits | None) -> tuple[Tensor, Tensor, Tensor] | None:
    return None if edits is None else (edits.rows, edits.tokens, edits.values)


def logprobs_of(logits: Tensor, chosen: Tensor, top: int, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return logprobs [Q] of the chosen ids [Q], the ``top`` best values and ids [Q, top], and those of given ids [Q, G].

    logits [Q, V] float32.  Given ids of -1 are padding.
    """
    if COMPILED and logits.device.type == "cpu":
        return ops.logprobs_of(logits, chosen, top, given)
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    picked = (logits.gather(1, chosen.clamp(min=0).unsqueeze(1)) - normaliser).squeeze(1)
    values, ids = logits.topk(top, dim=-1)
    asked = None if given is None else logits.gather(1, given.clamp(min=0)) - normaliser
    return picked, values - normaliser, ids, asked


def _edit(logits: Tensor, sampling: SamplingBatch[Tensor]) -> None:
    if (edits := sampling.penalties) is not None:
        logits[edits.rows, edits.tokens] += edits.values
    if (edits := sampling.repetition) is not None:
        seen = logits[edits.rows, edits.tokens]
        logits[edits.rows, edits.tokens] = torch.where(seen > 0, seen / edits.values, seen * edits.values)
    if sampling.mask is not None:
        logits.masked_fill_(~unpack(sampling.mask, logits.shape[1]), -torch.inf)
    if (bias := sampling.bias) is not None:
        _add_bias(logits, bias)


def _add_bias(logits: Tensor, bias: LogitEdits) -> None:
    logits.index_put_((bias.rows, bias.tokens), bias.values, accumulate=True)


def unpack(mask: Tensor, vocab_size: int) -> Tensor:
    """Expand packed masks [S, ceil(V / 32)] int32 to bool [S, V]."""
    tokens = torch.arange(vocab_size, device=mask.device)
    return ((mask[:, tokens >> 5] >> (tokens & 31).to(torch.int32)) & 1).bool()


def _draw(logits: Tensor, sampling: SamplingBatch[Tensor], rows: Tensor) -> Tensor:
    probs = (logits / sampling.temperature[rows, None]).softmax(dim=-1)
    top_k, top_p, min_p, uniform = (x[rows] for x in (sampling.top_k, sampling.top_p, sampling.min_p, sampling.uniform))
    filtered = (top_k < logits.shape[1]) | (top_p < 1) | (min_p > 0)
    tokens = torch.empty_like(rows)
    plain = (~filtered).nonzero().squeeze(1)
    if len(plain):
        tokens[plain] = _invert(probs[plain], uniform[plain])
    some = filtered.nonzero().squeeze(1)
    if len(some):
        tokens[some] = _draw_filtered(probs[some], top_k[some], top_p[some], min_p[some], uniform[some])
    return tokens


def _draw_filtered(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw from the most likely tokens only; rows of probabilities [S, V]."""
    vocab_size = probs.shape[1]
    width = min(vocab_size, SHORT_LIST)
    best, ids = probs.topk(width, dim=-1)
    if width < vocab_size:
        mass = best.sum(dim=-1)
        enough = (top_k <= width) | (mass >= top_p) & (top_p < 1) | (best[:, -1] < min_p * best[:, 0])
        if not enough.all():
            best, ids = probs.sort(dim=-1, descending=True)
    rank = torch.arange(best.shape[1], device=probs.device)
    before = best.cumsum(dim=-1, dtype=torch.float64) - best
    keep = (rank < top_k[:, None]) & (before < top_p[:, None]) & (best >= (min_p * best[:, 0])[:, None])
    return ids.gather(1, _invert(best * keep, uniform).unsqueeze(1)).squeeze(1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return, for each row of weights [S, N], the first index whose cumulative weight exceeds uniform x total."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = uniform * cumulative[:, -1]
    return torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)
