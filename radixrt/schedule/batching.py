"""A decision turned into tensors.

``build_batch`` runs when the step is decided, while the step before is still computing: it takes snapshots, so that the
scheduler may go on changing rows.  ``build_sampling`` runs once that step is committed: then every token before a
sampled position is known on the host, which is what penalties and grammar masks need.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from radixrt.batch import Batch, LogitEdits, PromptScores, Samples, SamplingBatch
from radixrt.batch import Logprobs as LogprobArrays
from radixrt.cache.slots import PageTable
from radixrt.schedule.masks import MaskArena
from radixrt.schedule.request import Request
from radixrt.schedule.step import RowResult, ScheduledRow, ScheduledStep
from radixrt.types import TokenLogprob

# Beyond it float32 has no finite temperatures, and the distribution has long been uniform.
HOTTEST = 1e30
ToDevice = Callable[[object], Tensor]


def build_batch(step: ScheduledStep, pages: PageTable, device: torch.device) -> Batch:
    """Flatten the rows of a step.  Tokens the host does not know yet are taken from the device."""
    rows = step.rows
    starts = np.array([row.start for row in rows], dtype=np.int64)
    counts = np.array([row.count for row in rows], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    ids = np.zeros(offsets[-1], dtype=np.int64)
    device_index: list[int] = []
    device_rows: list[int] = []
    for row, offset in zip(rows, offsets[:-1].tolist(), strict=True):
        known = np.frombuffer(row.request.tokens[row.start : row.end], dtype=np.int32)
        ids[offset : offset + len(known)] = known
        if len(known) < row.count:
            assert len(known) == row.count - 1, "at most the newest token is still on the device"
            device_index.append(offset + len(known))
            device_rows.append(row.row)
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, counts)
    pages_used = pages.rows[[row.row for row in rows], : int((starts + counts).max())]
    samples = np.array([row.num_samples for row in rows], dtype=np.int64)
    last = np.cumsum(samples) - 1
    sampled = np.flatnonzero(samples)
    # The logits of flattened place i predict position positions[i] + 1, and samples of a row end with its last place.
    ends = np.repeat(offsets[1:], samples)
    sample_index = ends - 1 - (np.repeat(last, samples) - np.arange(len(ends)))

    def to_device(values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64).to(device, non_blocking=True)

    return Batch(
        input_ids=to_device(ids),
        positions=to_device(positions),
        slots=to_device(pages_used[np.repeat(np.arange(len(rows)), counts), positions]),
        page_table=torch.from_numpy(pages_used).to(device, non_blocking=True),
        starts=starts,
        counts=counts,
        device_index=to_device(device_index),
        device_rows=to_device(device_rows),
        sample_index=to_device(sample_index),
        last_index=to_device(last[sampled]),
        last_rows=to_device(np.array([row.row for row in rows])[sampled]),
        prompt_scores=_prompt_scores(rows, offsets, to_device),
    )


def _prompt_scores(rows: Sequence[ScheduledRow], offsets: np.ndarray, to_device: ToDevice) -> PromptScores | None:
    index: list[int] = []
    targets: list[int] = []
    given: list[tuple[int, ...]] = []
    top = 0
    for row, offset in zip(rows, offsets.tolist(), strict=False):
        options = row.request.logprobs
        if options is not None and row.score_from < row.score_to:
            places = range(row.score_from, row.score_to)
            index.extend(offset + position - 1 - row.start for position in places)
            targets.extend(row.request.tokens[row.score_from : row.score_to])
            given.extend(options.token_ids for _ in places)
            top = max(top, options.top)
    if not index:
        return None
    return PromptScores(to_device(index), to_device(targets), top, _padded(given, to_device))


def build_sampling(step: ScheduledStep, vocab_size: int, device: torch.device, arena: MaskArena) -> SamplingBatch:
    """Say how each sampled position of the step is to be sampled; the step before has been committed.

    The masks lie in ``arena`` until the next call.
    """
    params, positions, seeds = [], [], []
    edits: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {"penalties": [], "repetition": [], "bias": []}
    masks = arena.fill(step)
    logprob_rows: list[int] = []
    given: list[tuple[int, ...]] = []
    top = at = 0
    for row in step.rows:
        request, options = row.request, row.request.logprobs
        for position in range(row.sample_from, row.end + 1):
            params.append(request.sampling)
            positions.append(position)
            seeds.append(request.seed)
            if not row.is_void:
                _collect_edits(edits, at, request, position)
            if options is not None:
                logprob_rows.append(at)
                given.append(options.token_ids)
                top = max(top, options.top)
            at += 1

    def to_device(values: object, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)

    greedy = [p.greedy for p in params]
    return SamplingBatch(
        all_greedy=all(greedy),
        greedy=to_device(greedy, torch.bool),
        temperature=to_device([1.0 if p.greedy else min(p.temperature, HOTTEST) for p in params], torch.float32),
        top_k=to_device([vocab_size if p.top_k == -1 else min(p.top_k, vocab_size) for p in params]),
        top_p=to_device([p.top_p for p in params], torch.float32),
        min_p=to_device([p.min_p for p in params], torch.float32),
        uniform=torch.from_numpy(uniforms(seeds, positions)).to(device, non_blocking=True),
        penalties=_edits(edits["penalties"], device),
        repetition=_edits(edits["repetition"], device),
        bias=_edits(edits["bias"], device),
        mask=None if masks is None else torch.from_numpy(masks).to(device, non_blocking=True),
        logprob_rows=to_device(logprob_rows) if logprob_rows else None,
        logprob_top=top,
        logprob_given=_padded(given, to_device),
    )


def read_results(step: ScheduledStep, samples: Samples) -> list[RowResult]:
    """Cut the samples of a step into one result a row."""
    results: list[RowResult] = []
    tokens = samples.tokens.tolist()
    sampled = scored = reported = 0
    for row in step.rows:
        options = row.request.logprobs
        row_tokens = tokens[sampled : sampled + row.num_samples]
        logprobs = prompt_logprobs = None
        if options is not None:
            if samples.logprobs is not None:
                logprobs = [
                    _entry(samples.logprobs, reported + i, token, options.top, options.token_ids) for i, token in enumerate(row_tokens)
                ]
            num_scores = row.score_to - row.score_from
            if num_scores and samples.prompt_scores is not None:
                targets = row.request.tokens[row.score_from : row.score_to]
                prompt_logprobs = [
                    _entry(samples.prompt_scores, scored + i, token, options.top, options.token_ids) for i, token in enumerate(targets)
                ]
            reported += row.num_samples
            scored += num_scores
        sampled += row.num_samples
        results.append(RowResult(row_tokens, logprobs, prompt_logprobs))
    return results


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Return the noise of each (seed, position): float64 in [0, 1), by the SplitMix64 mixing function (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = np.array(seeds, dtype=np.int64).view(np.uint64) * np.uint64(0xD1342543DE82EF95)
        state = state + np.array(positions, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for _ in range(2):  # seeds and positions are small and regular: one round would leave their pattern visible
            state = state + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _collect_edits(edits: dict[str, list[tuple[int, np.ndarray, np.ndarray]]], at: int, request: Request, position: int) -> None:
    params = request.sampling
    if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0:
        output: array[int] = request.tokens[request.num_prompt : position]
        ids, counts = np.unique(np.frombuffer(output, dtype=np.int32) if output else np.zeros(0, np.int32), return_counts=True)
        if params.frequency_penalty or params.presence_penalty:
            edits["penalties"].append((at, ids, -(params.frequency_penalty * counts + params.presence_penalty)))
        if params.repetition_penalty != 1.0:
            edits["repetition"].append((at, ids, np.full(len(ids), params.repetition_penalty)))
    if params.logit_bias:
        edits["bias"].append((at, np.array(list(params.logit_bias)), np.array(list(params.logit_bias.values()))))
    if position < request.num_prompt + params.min_new_tokens and request.stop_ids and request.grammar is None:
        forbidden = np.array(sorted(request.stop_ids))
        edits["bias"].append((at, forbidden, np.full(len(forbidden), -np.inf)))


def _edits(parts: list[tuple[int, np.ndarray, np.ndarray]], device: torch.device) -> LogitEdits | None:
    if not parts:
        return None
    rows = np.concatenate([np.full(len(ids), at, dtype=np.int64) for at, ids, _ in parts])
    tokens = np.concatenate([ids.astype(np.int64) for _, ids, _ in parts])
    values = np.concatenate([np.asarray(v, dtype=np.float32) for _, _, v in parts])
    return LogitEdits(torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device), torch.from_numpy(values).to(device))


def _padded(given: Sequence[tuple[int, ...]], to_device: ToDevice) -> Tensor | None:
    width = max(map(len, given), default=0)
    return to_device([[*ids, *[-1] * (width - len(ids))] for ids in given]) if width else None


def _entry(values: LogprobArrays, at: int, token: int, top: int, given: tuple[int, ...]) -> TokenLogprob:
    alternatives = list(zip(values.top_values[at, :top].tolist(), values.top_ids[at, :top].tolist(), strict=True))
    asked = list(zip(values.given[at, : len(given)].tolist(), given, strict=True)) if values.given is not None and given else []
    return TokenLogprob(float(values.chosen[at]), token, alternatives, asked)
