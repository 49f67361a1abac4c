"""One step by compiled kernels that read the arrays of the host: a plain step meets nothing of torch.

That is worth a class of its own because weights sweep the caches in every step, so that each line of code a step runs, Python's and
torch's, comes from memory again.
"""

from __future__ import annotations

import numpy as np
import torch

from radixrt.attention.native import NativePlan
from radixrt.batch import Batch, SamplingBatch
from radixrt.cache.kv_pool import KVPool
from radixrt.models.native_llama import NativeLlama
from radixrt.runner import chain, sampler
from radixrt.runner.runner import Logits, Runner, Sampled, logprobs, prompt_scores, wanted_states
from radixrt.runner.stream import Stream

_NONE = np.empty(0, np.int64)


class ArrayRunner(Runner[np.ndarray]):
    """Computes what ``ModelRunner`` does for a model on compiled kernels with compiled attention."""

    def __init__(self, *, model: NativeLlama, pool: KVPool, stream: Stream, num_rows: int) -> None:
        super().__init__(stream)
        self._model = model
        self._pool = pool
        self._last_tokens = np.zeros(num_rows, np.int64)
        self._newest = _NONE, _NONE, _NONE

    def _forward(self, batch: Batch[np.ndarray]) -> Logits[np.ndarray]:
        ids = batch.input_ids
        if len(batch.device_index):
            # What the host does not know yet was sampled by the step before, and by no other.
            rows, index, tokens = self._newest
            self._last_tokens[rows] = np.maximum(tokens[index], 0)
            ids[batch.device_index] = self._last_tokens[batch.device_rows]
        plan = NativePlan(batch.page_table, batch.starts, batch.counts)
        length = batch.page_table.shape[1]
        reads_all = batch.prompt_scores is not None or batch.hidden_index is not None
        # In a step of decodes alone, each place is sampled.
        wanted = None if reads_all or len(batch.sample_index) == len(ids) else batch.sample_index
        hidden = self._model.forward_arrays(ids, batch.positions, batch.slots, length, plan, self._pool, wanted)
        sampled = hidden[batch.sample_index] if reads_all else hidden
        # Where masks come, there is less to do.
        logits = sampled if batch.masked else self._model.logits_arrays(sampled)
        if not reads_all:
            return Logits(logits, None, None)
        states = torch.from_numpy(hidden)
        return Logits(logits, prompt_scores(self._model, states, batch), wanted_states(states, batch))

    def _sample(self, batch: Batch[np.ndarray], found: Logits[np.ndarray], sampling: SamplingBatch[np.ndarray]) -> Sampled[np.ndarray]:
        logits = self._masked_logits(found.logits, sampling) if batch.masked else found.logits
        reported = None if sampling.logprob_rows is None else torch.from_numpy(logits)[sampling.logprob_rows]  # a copy
        tokens = sampler.sample_arrays(logits, sampling)
        mu = chain.choose(torch.from_numpy(logits), sampling.chain, torch.from_numpy(tokens)) if sampling.chain else None
        self._newest = batch.last_rows, batch.last_index, tokens
        scores = None if reported is None else logprobs(reported, torch.from_numpy(tokens), sampling)
        return tokens, scores, found.prompt_scores, mu, found.hidden

    def _masked_logits(self, sampled: np.ndarray, sampling: SamplingBatch[np.ndarray]) -> np.ndarray:
        """Logits as far as masks allow them: where a grammar forces text, a hundredth of the head's work."""
        mask = sampling.mask
        if mask is None:
            return self._model.logits_arrays(sampled)
        if sampling.logprob_rows is not None:  # what is reported is of all tokens
            mask = mask.copy()
            mask[sampling.logprob_rows.numpy()] = -1
        return self._model.masked_logits_arrays(sampled, mask)
