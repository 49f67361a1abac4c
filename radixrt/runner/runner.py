"""One step on the device: forward, then sample.  Owns the model, the K/V tensors and the last token of each row.

``forward`` and ``sample`` only queue work on the stream; nothing here waits for the device but ``Pending.result``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor

from radixrt.attention.base import AttentionBackend, ForwardContext
from radixrt.batch import Batch, Logprobs, PromptScores, Samples, SamplingBatch
from radixrt.cache.kv_pool import KVPool
from radixrt.models import MaskedModel, Model
from radixrt.runner import chain, sampler
from radixrt.runner.stream import Stream

# Prompt positions scored at a time: bounds the logits held at once.
SCORE_ROWS = 128

T = TypeVar("T")
Scores = tuple[Tensor, Tensor, Tensor, Tensor | None]
Sampled = tuple[Tensor, Scores | None, Scores | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class Logits:
    """Device tensors a forward pass leaves: logits [S, V] float32 of the sampled positions, or their hidden states [S, H] where the
    logits wait for masks; prompt scores; hidden states [E, H]."""

    logits: Tensor | None
    sampled: Tensor
    prompt_scores: Scores | None
    hidden: Tensor | None


class Pending:
    """The samples of a step that may still be computing."""

    def __init__(self, future: Future[Sampled]) -> None:
        self._future = future

    def result(self) -> Samples:
        """Wait for the step and copy its samples to the host; raises what the step raised."""
        tokens, logprobs, prompt_scores, *others = self._future.result()
        mu, hidden = (None if other is None else other.cpu().numpy() for other in others)
        return Samples(tokens.cpu().numpy(), _to_host(logprobs), _to_host(prompt_scores), mu, hidden)


class ModelRunner:
    def __init__(
        self, *, model: Model, pool: KVPool, backend: AttentionBackend, stream: Stream, num_rows: int, device: torch.device
    ) -> None:
        self._model = model
        self._pool = pool
        self._backend = backend
        self._stream = stream
        self._last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def forward(self, batch: Batch) -> Future[Logits]:
        """Queue the forward pass of a step."""
        return self._submit("compute forward", lambda: self._forward(batch))

    def sample(self, batch: Batch, logits: Future[Logits], sampling: SamplingBatch) -> Pending:
        """Queue the sampling of a step whose forward pass was queued before."""
        return Pending(self._submit("compute sample", lambda: self._sample(batch, logits.result(), sampling)))

    def close(self) -> None:
        self._stream.close()

    def _submit(self, name: str, work: Callable[[], T]) -> Future[T]:
        def run() -> T:
            with torch.inference_mode():
                return work()

        run.__name__ = name  # what a profile calls it
        return self._stream.submit(run)

    def _forward(self, batch: Batch) -> Logits:
        ids = batch.input_ids
        if len(batch.device_index):
            ids.index_copy_(0, batch.device_index, self._last_tokens.index_select(0, batch.device_rows))
        hidden = self._model.forward(ids, batch.positions, ForwardContext.of(batch, self._pool, self._backend))
        sampled = hidden.index_select(0, batch.sample_index)
        logits = None if batch.masked and hasattr(self._model, "masked_logits") else self._model.logits(sampled)
        scores = None if batch.prompt_scores is None else self._score(hidden, batch.prompt_scores)
        # In float64, so that their sum does not depend on how the prompt was cut.
        return Logits(logits, sampled, scores, None if batch.hidden_index is None else hidden[batch.hidden_index].double())

    def _masked_logits(self, sampled: Tensor, sampling: SamplingBatch) -> Tensor:
        """Logits as far as masks allow them: where a grammar forces text, a hundredth of the head's work."""
        mask = sampling.mask
        if mask is None:
            return self._model.logits(sampled)
        if sampling.logprob_rows is not None:  # what is reported is of all tokens
            mask = mask.index_fill(0, sampling.logprob_rows, -1)
        return cast(MaskedModel, self._model).masked_logits(sampled, mask)

    def _score(self, hidden: Tensor, scores: PromptScores) -> Scores:
        parts = []
        for start in range(0, len(scores.index), SCORE_ROWS):
            part = slice(start, start + SCORE_ROWS)
            given = None if scores.given is None else scores.given[part]
            parts.append(sampler.logprobs_of(self._model.logits(hidden[scores.index[part]]), scores.targets[part], scores.top, given))
        chosen, values, ids, given_parts = zip(*parts, strict=True)
        return torch.cat(chosen), torch.cat(values), torch.cat(ids), torch.cat(given_parts) if scores.given is not None else None

    def _sample(self, batch: Batch, found: Logits, sampling: SamplingBatch) -> Sampled:
        logits = self._masked_logits(found.sampled, sampling) if found.logits is None else found.logits
        reported = None if sampling.logprob_rows is None else logits[sampling.logprob_rows]  # a copy: sampling edits in place
        tokens = sampler.sample(logits, sampling)
        mu = chain.choose(logits, sampling.chain, tokens) if sampling.chain else None
        self._last_tokens.index_copy_(0, batch.last_rows, tokens.index_select(0, batch.last_index).clamp_(min=0))
        logprobs: Scores | None = None
        if reported is not None and sampling.logprob_rows is not None:
            chosen = tokens[sampling.logprob_rows]
            logprobs = sampler.logprobs_of(reported, chosen, sampling.logprob_top, sampling.logprob_given)
        return tokens, logprobs, found.prompt_scores, mu, found.hidden


def _to_host(scores: Scores | None) -> Logprobs | None:
    if scores is None:
        return None
    chosen, values, ids, given = scores
    return Logprobs(chosen.cpu().numpy(), values.cpu().numpy(), ids.cpu().numpy(), None if given is None else given.cpu().numpy())
