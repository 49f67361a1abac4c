"""One step on the device: forward, then sample.  Holds the model, the K/V tensors and the last token of each row.

``forward`` and ``sample`` only queue work on the stream; nothing here waits for the device but ``Pending.result``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from radixrt.attention.base import AttentionBackend, ForwardContext
from radixrt.batch import A, Batch, Logprobs, Samples, SamplingBatch, batch_on, sampling_on, tensor_on
from radixrt.cache.kv_pool import KVPool
from radixrt.models import Model
from radixrt.runner import chain, sampler
from radixrt.runner.stream import Result, Stream

# Prompt positions scored at a time: bounds the logits held at once.
SCORE_ROWS = 128

Scores = tuple[Tensor, Tensor, Tensor, Tensor | None]
# Tokens, logprobs, prompt scores, mu and hidden states: see ``Samples``.
Sampled = tuple[A, Scores | None, Scores | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class Logits(Generic[A]):
    """What a forward pass leaves: logits [S, V] float32 of the sampled positions, or the hidden states [S, H] that they are made of
    when ``sample`` has their masks; prompt scores; hidden states [E, H]."""

    logits: A
    prompt_scores: Scores | None
    hidden: Tensor | None


class Pending(Generic[A]):
    """The samples of a step that may still be computing."""

    def __init__(self, future: Result[Sampled[A]]) -> None:
        self._future = future

    def result(self) -> Samples:
        """Wait for the step and copy its samples to the host; raises what the step raised."""
        tokens, logprobs, prompt_scores, *others = self._future.result()
        mu, hidden = (None if other is None else other.cpu().numpy() for other in others)
        return Samples(_array(tokens), _to_host(logprobs), _to_host(prompt_scores), mu, hidden)


class Runner(Generic[A]):
    """Queues the two halves of a step, which subclasses compute with tensors or with arrays."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def forward(self, batch: Batch[np.ndarray]) -> Result[Logits[A]]:
        """Queue the forward pass of a step."""

        def forward() -> Logits[A]:
            return self._forward(batch)

        forward.__name__ = "compute forward"  # what a profile calls it
        return self._stream.submit(forward)

    def sample(self, batch: Batch[np.ndarray], logits: Result[Logits[A]], sampling: SamplingBatch[np.ndarray]) -> Pending[A]:
        """Queue the sampling of a step whose forward pass was queued before."""

        def sample() -> Sampled[A]:
            return self._sample(batch, logits.result(), sampling)

        sample.__name__ = "compute sample"
        return Pending(self._stream.submit(sample))

    def close(self) -> None:
        self._stream.close()

    def _forward(self, batch: Batch[np.ndarray]) -> Logits[A]:
        raise NotImplementedError

    def _sample(self, batch: Batch[np.ndarray], found: Logits[A], sampling: SamplingBatch[np.ndarray]) -> Sampled[A]:
        raise NotImplementedError


class ModelRunner(Runner[Tensor]):
    """Computes with torch, on any device."""

    def __init__(
        self, *, model: Model, pool: KVPool, backend: AttentionBackend, stream: Stream, num_rows: int, device: torch.device
    ) -> None:
        super().__init__(stream)
        self._model = model
        self._pool = pool
        self._backend = backend
        self._device = device
        self._last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def _forward(self, batch: Batch[np.ndarray]) -> Logits[Tensor]:
        given = batch_on(self._device, batch)
        ids = given.input_ids
        if len(given.device_index):
            ids.index_copy_(0, given.device_index, self._last_tokens.index_select(0, given.device_rows))
        hidden = self._model.forward(ids, given.positions, ForwardContext.of(given, self._pool, self._backend))
        logits = self._model.logits(hidden.index_select(0, given.sample_index))
        return Logits(logits, prompt_scores(self._model, hidden, batch), wanted_states(hidden, batch))

    @torch.inference_mode()
    def _sample(self, batch: Batch[np.ndarray], found: Logits[Tensor], sampling: SamplingBatch[np.ndarray]) -> Sampled[Tensor]:
        given = sampling_on(self._device, sampling)
        reported = None if given.logprob_rows is None else found.logits[given.logprob_rows]  # a copy: sampling edits in place
        tokens = sampler.sample(found.logits, given)
        mu = chain.choose(found.logits, given.chain, tokens) if given.chain else None
        last_rows, last_index = tensor_on(self._device, batch.last_rows), tensor_on(self._device, batch.last_index)
        self._last_tokens.index_copy_(0, last_rows, tokens.index_select(0, last_index).clamp_(min=0))
        return tokens, None if reported is None else logprobs(reported, tokens, given), found.prompt_scores, mu, found.hidden


def prompt_scores(model: Model, hidden: Tensor, batch: Batch[A]) -> Scores | None:
    """Score the prompt positions of a batch that are to be, from hidden states [T, H]."""
    scores = batch.prompt_scores
    if scores is None:
        return None
    parts = []
    for start in range(0, len(scores.index), SCORE_ROWS):
        part = slice(start, start + SCORE_ROWS)
        given = None if scores.given is None else scores.given[part]
        parts.append(sampler.logprobs_of(model.logits(hidden[scores.index[part]]), scores.targets[part], scores.top, given))
    chosen, values, ids, given_parts = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(values), torch.cat(ids), torch.cat(given_parts) if scores.given is not None else None


def wanted_states(hidden: Tensor, batch: Batch[A]) -> Tensor | None:
    """Return the hidden states that are wanted: in float64, so that their sum does not depend on how the prompt was cut."""
    return None if batch.hidden_index is None else hidden[batch.hidden_index].double()


def logprobs(reported: Tensor, tokens: Tensor, sampling: SamplingBatch[A]) -> Scores:
    """Return what is reported of positions, whose logits as the model gave them are [Q, V], of tokens [S] sampled."""
    assert sampling.logprob_rows is not None
    return sampler.logprobs_of(reported, tokens[sampling.logprob_rows], sampling.logprob_top, sampling.logprob_given)


def _array(tokens: np.ndarray | Tensor | A) -> np.ndarray:
    if isinstance(tokens, Tensor):
        return tokens.cpu().numpy()
    assert isinstance(tokens, np.ndarray)
    return tokens


def _to_host(scores: Scores | None) -> Logprobs | None:
    if scores is None:
        return None
    chosen, values, ids, given = scores
    return Logprobs(chosen.cpu().numpy(), values.cpu().numpy(), ids.cpu().numpy(), None if given is None else given.cpu().numpy())
