"""A decision turned into arrays.

``build_batch`` runs when the step is decided, while the step before is still computing: it takes snapshots, so that the
scheduler may go on changing rows.  ``build_sampling`` runs once that step is committed: then every token before a
sampled position is known on the host, which is what penalties and grammar masks need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import add

import numpy as np
import torch
from torch import Tensor

from radixrt.batch import Batch, PromptScores, Samples, SamplingBatch, tensor_on
from radixrt.batch import Logprobs as LogprobArrays
from radixrt.cache.slots import PageTable
from radixrt.schedule import edits
from radixrt.schedule.chain import Entry, build_chain
from radixrt.schedule.masks import MaskArena
from radixrt.schedule.noise import uniforms
from radixrt.schedule.request import Request
from radixrt.schedule.step import RowResult, ScheduledRow, ScheduledStep
from radixrt.types import TokenLogprob

# Beyond it float32 has no finite temperatures, and the distribution has long been uniform.
HOTTEST = 1e30
ToDevice = Callable[[Sequence[object]], Tensor]


def build_batch(step: ScheduledStep, pages: PageTable, device: torch.device) -> Batch[np.ndarray]:
    """Flatten the rows of a step.  Tokens the host does not know yet are taken from the device.

    What few steps have, prompts to score and hidden states to return, is put on ``device`` at once.
    """
    rows = step.rows
    offsets, ids, positions, slots = [0], list[int](), list[int](), list[int]()
    device_index, device_rows = list[int](), list[int]()
    sample_index, last_index, last_rows = list[int](), list[int](), list[int]()
    # A step of many rows has few tokens of each: lists, which cost a fifth of as many small arrays.
    for row in rows:
        known, end = row.request.tokens[row.start : row.end], offsets[-1] + row.count
        ids.extend(known)
        if len(known) < row.count:
            assert len(known) == row.count - 1, "at most the newest token is still on the device"
            ids.append(0)
            device_index.append(end - 1)
            device_rows.append(row.row)
        positions.extend(range(row.start, row.end))
        slots.extend(pages.views[row.row][row.start : row.end])
        if num_samples := row.num_samples:
            # The logits of flattened place i predict position positions[i] + 1, and samples of a row end with its last place.
            sample_index.extend(range(end - num_samples, end))
            last_index.append(len(sample_index) - 1)
            last_rows.append(row.row)
        offsets.append(end)
    starts, counts = [row.start for row in rows], [row.count for row in rows]
    parts = (ids, positions, slots, starts, counts, device_index, device_rows, sample_index, last_index, last_rows)
    # One array of all, and views of it: each array made of a list costs five times as much.
    flat, ends = np.array(list(chain.from_iterable(parts)), np.int64), list(accumulate(map(len, parts), initial=0))
    arrays = [flat[begin:end] for begin, end in pairwise(ends)]

    def to_device(values: Sequence[object]) -> Tensor:
        return tensor_on(device, np.array(values, np.int64))

    return Batch(
        input_ids=arrays[0],
        positions=arrays[1],
        slots=arrays[2],
        page_table=pages.snapshot([row.row for row in rows], max(map(add, starts, counts))),
        starts=arrays[3],
        counts=arrays[4],
        device_index=arrays[5],
        device_rows=arrays[6],
        sample_index=arrays[7],
        last_index=arrays[8],
        last_rows=arrays[9],
        prompt_scores=_prompt_scores(rows, offsets, to_device),
        hidden_index=_hidden_index(rows, offsets, to_device),
        masked=any(row.request.grammar is not None and row.num_samples for row in rows),
    )


def _hidden_index(rows: Sequence[ScheduledRow], offsets: Sequence[int], to_device: ToDevice) -> Tensor | None:
    index: list[int] = []
    for row, offset in zip(rows, offsets, strict=False):
        if row.request.embed:
            index.extend(offset + position - 1 - row.start for position in range(row.score_from, row.score_to))
    return to_device(index) if index else None


def _prompt_scores(rows: Sequence[ScheduledRow], offsets: Sequence[int], to_device: ToDevice) -> PromptScores | None:
    index: list[int] = []
    targets: list[int] = []
    given: list[tuple[int, ...]] = []
    top = 0
    for row, offset in zip(rows, offsets, strict=False):
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


def build_sampling(step: ScheduledStep, vocab_size: int, device: torch.device, arena: MaskArena) -> SamplingBatch[np.ndarray]:
    """Say how each sampled position of the step is to be sampled; the step before has been committed.

    The masks lie in ``arena`` until the next call.  What few steps have is put on ``device`` at once.
    """
    if all(row.request.takes_best for row in step.rows):
        return _best(sum(row.num_samples for row in step.rows), vocab_size)
    params, positions, seeds = [], [], []
    parts: dict[str, list[edits.Part]] = {"penalties": [], "repetition": [], "bias": []}
    chained: list[Entry] = []
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
                _collect_edits(parts, at, request, position)
                if request.sampling.chain is not None:
                    chained.append((at, request, position))
            if options is not None:
                logprob_rows.append(at)
                given.append(options.token_ids)
                top = max(top, options.top)
            at += 1

    def to_device(values: Sequence[object]) -> Tensor:
        return tensor_on(device, np.array(values, np.int64))

    greedy = [p.greedy or p.chain is not None for p in params]
    all_greedy = all(greedy)
    return SamplingBatch(
        all_greedy=all_greedy,
        greedy=np.array(greedy, np.bool_),
        temperature=np.array([1.0 if g else min(p.temperature, HOTTEST) for p, g in zip(params, greedy, strict=True)], np.float32),
        top_k=np.array([vocab_size if p.top_k == -1 else min(p.top_k, vocab_size) for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        uniform=np.zeros(len(params)) if all_greedy else uniforms(seeds, positions),
        penalties=edits.pack(parts["penalties"], device),
        repetition=edits.pack(parts["repetition"], device),
        bias=edits.pack(parts["bias"], device),
        mask=masks,
        chain=build_chain(chained, vocab_size, device) if chained else (),
        logprob_rows=to_device(logprob_rows) if logprob_rows else None,
        logprob_top=top,
        logprob_given=_padded(given, to_device),
    )


@lru_cache(maxsize=64)
def _best(count: int, vocab_size: int) -> SamplingBatch[np.ndarray]:
    """How to sample so many positions of requests that take the best token: the same each time."""
    ones = np.ones(count, np.float32)
    return SamplingBatch(
        all_greedy=True, greedy=np.ones(count, np.bool_), temperature=ones, top_k=np.full(count, vocab_size, np.int64), top_p=ones,
        min_p=np.zeros(count, np.float32), uniform=np.zeros(count),
    )  # fmt: skip


def read_results(step: ScheduledStep, samples: Samples) -> list[RowResult]:
    """Cut the samples of a step into one result a row."""
    results: list[RowResult] = []
    tokens = samples.tokens.tolist()
    sampled = scored = reported = embedded = 0
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
        mu = samples.mu[sampled : sampled + row.num_samples].tolist() if samples.mu is not None and row.request.mu is not None else None
        sampled += row.num_samples
        hidden = None
        if row.request.embed and samples.hidden is not None:
            hidden = samples.hidden[embedded : embedded + row.score_to - row.score_from]
            embedded += len(hidden)
        results.append(RowResult(row_tokens, logprobs, prompt_logprobs, mu, hidden))
    return results


def _collect_edits(parts: dict[str, list[edits.Part]], at: int, request: Request, position: int) -> None:
    params = request.sampling
    if params.penalised and params.chain is None:
        ids, added, scaled = edits.penalties(request, position)
        if added is not None:
            parts["penalties"].append((at, ids, added))
        if scaled is not None:
            parts["repetition"].append((at, ids, scaled))
    if params.logit_bias:
        parts["bias"].append((at, np.array(list(params.logit_bias)), np.array(list(params.logit_bias.values()))))
    if position < request.num_prompt + params.min_new_tokens and request.stop_ids and request.grammar is None:
        forbidden = np.array(sorted(request.stop_ids))
        parts["bias"].append((at, forbidden, np.full(len(forbidden), -np.inf)))


def _padded(given: Sequence[tuple[int, ...]], to_device: ToDevice) -> Tensor | None:
    width = max(map(len, given), default=0)
    return to_device([[*ids, *[-1] * (width - len(ids))] for ids in given]) if width else None


def _entry(values: LogprobArrays, at: int, token: int, top: int, given: tuple[int, ...]) -> TokenLogprob:
    alternatives = list(zip(values.top_values[at, :top].tolist(), values.top_ids[at, :top].tolist(), strict=True))
    asked = list(zip(values.given[at, : len(given)].tolist(), given, strict=True)) if values.given is not None and given else []
    return TokenLogprob(float(values.chosen[at]), token, alternatives, asked)
