"""Changes to logits that follow from the text so far: penalties, and DRY's of tokens that would go on with a repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixrt.batch import LogitEdits
from radixrt.samplers import Breakers, ChainParams
from radixrt.schedule.request import Request

# One place in a batch: ids and their values.
Part = tuple[int, np.ndarray, np.ndarray]
# Repeats count as at most so long, which bounds the work of a token.
MAX_REPEAT = 512
# Beyond it float32 has no finite penalties.
LARGEST_LOG = 88.0


def penalties(request: Request, position: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the ids of the output before a position, what is added to their logits, and what scales them; None for nothing."""
    params = request.sampling
    output = request.tokens[request.num_prompt : position]
    ids, counts = np.unique(np.frombuffer(output, dtype=np.int32) if output else np.zeros(0, np.int32), return_counts=True)
    added = -(params.frequency_penalty * counts + params.presence_penalty)
    penalised = bool(params.frequency_penalty or params.presence_penalty)
    scaled = np.full(len(ids), params.repetition_penalty)
    return ids, added if penalised else None, scaled if params.repetition_penalty != 1.0 else None


def repeats(tokens: np.ndarray, params: ChainParams, breakers: Breakers) -> tuple[np.ndarray, np.ndarray]:
    """Return ids that would go on with a repeat, and what is added to their logits: DRY (text-generation-webui, pull request 5677).

    tokens [L] int32: prompt and output.  A repeat is what ends the text and is found earlier in it, as long as possible and
    without a breaker; the token that followed there is penalised by multiplier x base^(length - allowed_length).
    """
    window = tokens[-params.dry_penalty_last_n :] if params.dry_penalty_last_n > 0 else tokens
    last = len(window) - 1
    mask = np.frombuffer(breakers.mask, dtype=np.uint8)
    ends = np.flatnonzero(window[:-1] == window[-1]) if len(window) else np.zeros(0, np.int64)
    lengths = np.zeros(len(ends), dtype=np.int64)
    alive = np.arange(len(ends))
    for length in range(min(MAX_REPEAT, last)):
        if _breaks(window[: last - length + 1], mask, breakers.sequences):
            break
        before = ends[alive] - length
        alive = alive[(before >= 0) & (window[before] == window[last - length])]
        if not len(alive):
            break
        lengths[alive] += 1
    counted = lengths >= params.dry_allowed_length
    ids, place = np.unique(window[ends[counted] + 1], return_inverse=True)
    longest = np.zeros(len(ids), dtype=np.int64)
    np.maximum.at(longest, place, lengths[counted])
    exponents = (longest - params.dry_allowed_length).astype(np.float64)
    if params.dry_base > 1:
        exponents = np.minimum(exponents, LARGEST_LOG / math.log(params.dry_base))
    return ids, -np.minimum(params.dry_multiplier * params.dry_base**exponents, math.exp(LARGEST_LOG))


def pack(parts: Sequence[Part], device: torch.device) -> LogitEdits | None:
    """Make one of the edits of several places; None for none."""
    if not parts:
        return None
    rows = np.concatenate([np.full(len(ids), at, dtype=np.int64) for at, ids, _ in parts])
    tokens = np.concatenate([ids.astype(np.int64) for _, ids, _ in parts])
    values = np.concatenate([np.asarray(v, dtype=np.float32) for _, _, v in parts])
    return LogitEdits(*(_to(device, array) for array in (rows, tokens, values)))


def _to(device: torch.device, values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).to(device)


def _breaks(text: np.ndarray, mask: np.ndarray, sequences: Sequence[tuple[int, ...]]) -> bool:
    """Whether a breaker ends with the last token of a text."""
    token = int(text[-1])
    if token >> 3 < len(mask) and mask[token >> 3] >> (7 - (token & 7)) & 1:
        return True
    return any(len(each) <= len(text) and text[-len(each) :].tolist() == list(each) for each in sequences)
