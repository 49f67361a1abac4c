"""On compiled kernels a token's logits are the same to the last bit, whatever was computed beside it, before it and in how many pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from equalities import PROMPTS, REFERENCE, SETTINGS, Setting, generate
from ragged import Sequences
from torch import Tensor

from radixrt.attention.base import ForwardContext
from radixrt.attention.native import NativeAttention
from radixrt.batch import Batch
from radixrt.cache.kv_pool import KVPool
from radixrt.config import CacheConfig, EngineConfig, Hardware, resolve
from radixrt.engine.core import EngineCore
from radixrt.models import Model
from radixrt.runner.loader import load_model
from radixrt.schedule.request import Request
from radixrt.types import GenerateRequest, GrammarOptions, GrammarSpec, LogprobOptions, SamplingParams
from radixrt_kernels.ops import NATIVE

if not NATIVE:
    pytest.skip("nothing was compiled", allow_module_level=True)

from radixrt_kernels import _native

pytestmark = pytest.mark.model
TOKENS = [token for prompt in PROMPTS for token in prompt]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(resolve(EngineConfig(), Hardware(native=True)).model).model


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    isa, count = _native.cpu_isa(), _native.num_threads()
    yield
    _native.set_cpu_isa(isa)
    _native.set_num_threads(count)


def sequences(model: Model, dtype: torch.dtype = torch.bfloat16) -> Sequences:
    return Sequences(model, backend="native", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_of_chunks_batches_and_shared_prefixes(model: Model, dtype: torch.dtype) -> None:
    (whole,) = sequences(model, dtype).extend({0: TOKENS})
    pieces = sequences(model, dtype)
    first, alone = pieces.extend({0: TOKENS[:40], 1: TOKENS[:7]})
    second, _ = pieces.extend({0: TOKENS[40:41], 1: TOKENS[50:60]})
    pieces.share(0, 2, 30)
    third, hit, _ = pieces.extend({0: TOKENS[41:], 2: TOKENS[30:70], 1: TOKENS[60:61]})
    assert torch.equal(torch.cat((first, second, third)), whole)
    assert torch.equal(alone, whole[:7])
    assert torch.equal(hit, whole[30:70])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_logits_of_any_number_of_threads(model: Model, num_threads: int) -> None:
    (expected,) = sequences(model).extend({0: TOKENS[:50]})
    _native.set_num_threads(num_threads)
    assert torch.equal(sequences(model).extend({0: TOKENS[:50]})[0], expected)


class LayerByLayer(NativeAttention):
    """The same attention, whose plan does not show that it can be called from within a step."""

    def plan(self, batch: Batch) -> Any:
        return (super().plan(batch),)

    def forward(self, plan: Any, pool: KVPool, layer: int, q: Tensor, *, scale: float, sliding_window: int | None = None) -> Tensor:
        return super().forward(plan[0], pool, layer, q, scale=scale, sliding_window=sliding_window)


def test_one_call_a_step_is_what_the_layers_give_one_by_one(model: Model) -> None:
    fused, layered = sequences(model), sequences(model)
    layered.backend = LayerByLayer()
    for rows in ({0: TOKENS[:30], 1: TOKENS[:5]}, {0: TOKENS[30:31], 1: TOKENS[5:20]}):
        for left, right in zip(fused.extend(rows), layered.extend(rows), strict=True):
            assert torch.equal(left, right)


class LastTokens:
    """A model of whose hidden states only those of each row's last tokens are wanted; the others are NaN."""

    def __init__(self, model: Any) -> None:
        self.shape, self.logits, self._model = model.shape, model.logits, model
        self.wanted: list[int] = []

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        batch, ends = context.batch, np.cumsum(context.batch.counts)
        places = np.concatenate([np.arange(end - wanted, end) for end, wanted in zip(ends, self.wanted, strict=True)])
        hidden = torch.full((len(input_ids), self._model.config.hidden_size), torch.nan)
        hidden[places] = torch.from_numpy(self._model.forward_arrays(
            input_ids.numpy(), positions.numpy(), batch.slots.numpy(), int(positions.max()) + 1, context.plan, context.pool, places
        ))  # fmt: skip
        return hidden


def test_tokens_that_nobody_reads_leave_their_keys_and_values_and_change_nothing(model: Model) -> None:
    some = LastTokens(model)
    whole, less = sequences(model), sequences(some)
    for rows, some.wanted in (
        ({0: TOKENS[:70], 1: TOKENS[:5], 2: TOKENS[:9]}, [2, 0, 9]),
        ({1: TOKENS[5:30]}, [0]),
        ({0: TOKENS[70:71], 1: TOKENS[30:60], 2: TOKENS[9:30]}, [1, 1, 0]),
        ({0: TOKENS[71:73], 1: TOKENS[60:62], 2: TOKENS[30:32]}, [2, 2, 2]),
    ):
        for expected, found, wanted in zip(whole.extend(rows), less.extend(rows), some.wanted, strict=True):
            assert torch.equal(found[len(found) - wanted :], expected[len(found) - wanted :])


@pytest.mark.parametrize("name", SETTINGS)
def test_the_text_is_that_of_the_plainest_setting(name: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "is_exact", False)
    reference = plainest(model)
    rounds, core = generate(model, SETTINGS[name], reference, backend="native", kv_cache_dtype="bfloat16")
    assert rounds == [reference] * len(rounds)
    if name == "a pool that retracts":
        assert core.stats().num_retracted > 0


def test_logits_that_no_mask_allows_are_spared_and_nothing_changes() -> None:
    core = EngineCore.load(EngineConfig(cache=CacheConfig(max_total_tokens=4096)))
    parts = {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["river", "hill"]}, "age": {"type": "integer", "maximum": 99}}
    schema = {"type": "object", "properties": parts, "required": list(parts)}
    spec = GrammarSpec("json_schema", json.dumps(schema), GrammarOptions())
    texts: dict[int, list[int]] = {}
    for uid in range(8):  # the first four report logprobs, which are of all tokens; the others are the same without
        options = LogprobOptions(top=2) if uid < 4 else None
        sampling = SamplingParams(grammar=spec, seed=uid % 4, temperature=float(uid % 2), max_new_tokens=40)
        core.add(GenerateRequest(uid=uid, prompt=PROMPTS[uid % 4], sampling=sampling, logprobs=options))
    while core.has_work() or core.patience is not None:
        for output in core.step() if core.has_work() else ():
            texts.setdefault(output.uid, []).extend(output.tokens)
            for entry in output.logprobs or ():
                assert entry.logprob is None or -100.0 < entry.logprob <= 0.0
    core.close()
    assert [texts[uid] for uid in range(4)] == [texts[uid] for uid in range(4, 8)] and all(len(text) > 9 for text in texts.values())


_texts: list[list[tuple[int, ...]]] = []


def plainest(model: Model, setting: Setting = REFERENCE) -> list[tuple[int, ...]]:
    if not _texts:
        _texts.append(generate(model, setting, backend="native", kv_cache_dtype="bfloat16")[0][0])
    return _texts[0]
