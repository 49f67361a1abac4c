"""One set of requests on a real model under many settings of the engine core, which are not to change what it says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from simulator import OracleDrafter

from radixrt import attention
from radixrt.config import CacheConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.models import Model
from radixrt.types import GenerateRequest, SamplingParams

NUM_NEW = 20
RNG = random.Random(0)
# Token ids of no meaning in particular: a preamble that all share, and tails of their own.
PREAMBLE = [RNG.randrange(300, 40_000) for _ in range(24)]
PROMPTS = [PREAMBLE + [RNG.randrange(300, 40_000) for _ in range(1 + 3 * i)] for i in range(5)]
SAMPLING = [
    SamplingParams(max_new_tokens=NUM_NEW, ignore_eos=True, temperature=(0.0, 0.0, 0.8, 1.0, 0.0)[i], seed=i) for i in range(len(PROMPTS))
]


@dataclass(frozen=True)
class Setting:
    cache: bool = True
    overlap: bool = True
    budget: int = -1
    num_slots: int = 2000
    one_by_one: bool = False
    drafts: bool = False
    rounds: int = 1


REFERENCE = Setting(cache=False, overlap=False, one_by_one=True)
SETTINGS = {
    "batched": Setting(cache=False, overlap=False),
    "cached, cold and warm": Setting(overlap=False, one_by_one=True, rounds=2),
    "everything on": Setting(rounds=2),
    "chunks of 3": Setting(budget=3),
    "chunks of 64": Setting(budget=64),
    "drafts": Setting(drafts=True),
    "a pool that retracts": Setting(num_slots=110),
}


def generate(
    model: Model,
    setting: Setting,
    answers: Sequence[tuple[int, ...]] = (),
    *,
    prompts: Sequence[list[int]] = PROMPTS,
    sampling: Sequence[SamplingParams] = SAMPLING,
    backend: str = "torch_sdpa",
    kv_cache_dtype: str = "float32",
) -> tuple[list[list[tuple[int, ...]]], EngineCore]:
    """Texts (prompt and output) of each round.  Admission looks no further than the prompt, so that small pools retract."""
    core = EngineCore.build(
        model=model,
        backend=attention.select_backend(backend),
        cache=CacheConfig(kv_cache_dtype=kv_cache_dtype, disable_radix_cache=not setting.cache),
        schedule=ScheduleConfig(
            schedule_policy="fcfs", chunked_prefill_size=setting.budget, max_running_requests=8, schedule_conservativeness=0.0,
            disable_overlap_schedule=not setting.overlap,
        ),
        num_slots=setting.num_slots,
        device=torch.device("cpu"),
        drafter=OracleDrafter(answers) if setting.drafts else None,
    )
    rounds = []
    for _ in range(setting.rounds):
        texts = [list(prompt) for prompt in prompts]
        pending = list(enumerate(prompts))
        while pending or core.has_work():
            while pending and not (setting.one_by_one and core.has_work()):
                uid, prompt = pending.pop(0)
                core.add(GenerateRequest(uid=uid, prompt=prompt, sampling=sampling[uid]))
            for output in core.step():
                texts[output.uid] += output.tokens
            core.check_invariants()
        rounds.append([tuple(text) for text in texts])
    core.close()
    return rounds, core
