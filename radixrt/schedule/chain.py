"""The positions of a step that a sampler chain chooses for, as groups of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixrt.batch import ChainGroup
from radixrt.samplers import Breakers, ChainParams
from radixrt.schedule import edits
from radixrt.schedule.noise import uniforms
from radixrt.schedule.request import Request

# Whether XTC acts is another question than which token is drawn, and needs noise of its own.
CHANCE = 0x58544321
_OF_REQUEST = ("temperature", "top_p", "min_p")
_OF_CHAIN = (
    "top_n_sigma", "typical_p", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "mirostat_tau", "mirostat_eta",
)  # fmt: skip

# Place among the samples of the step, request, position.
Entry = tuple[int, Request, int]


def build_chain(entries: Sequence[Entry], vocab_size: int, device: torch.device) -> list[ChainGroup]:
    """Group positions by the order of their samplers; those of one request are adjacent, by position."""
    groups: dict[tuple[str, ...], list[tuple[Entry, ChainParams]]] = {}
    for entry in entries:
        chain = entry[1].sampling.chain
        assert chain is not None, "these requests have one"
        groups.setdefault(chain.order, []).append((entry, chain))
    return [_group(order, members, vocab_size, device) for order, members in groups.items()]


def _group(
    order: tuple[str, ...], members: Sequence[tuple[Entry, ChainParams]], vocab_size: int, device: torch.device
) -> ChainGroup:
    added: list[edits.Part] = []
    scaled: list[edits.Part] = []
    repeats: list[edits.Part] = []
    turns: list[list[int]] = []
    mu = np.zeros(len(members))
    turn = 0
    for place, ((_, request, position), chain) in enumerate(members):
        if "penalties" in order and request.sampling.penalised:
            ids, by, times = edits.penalties(request, position)
            added += [] if by is None else [(place, ids, by)]
            scaled += [] if times is None else [(place, ids, times)]
        if chain.repeats:
            text = np.frombuffer(request.tokens, dtype=np.int32)[:position]
            repeats.append((place, *edits.repeats(text, chain, request.breakers or Breakers())))
        turn = turn + 1 if place and members[place - 1][0][1] is request else 0
        if turn == len(turns):
            turns.append([])
        turns[turn].append(place)
        if request.mu is not None and not turn:
            mu[place] = request.mu[position - request.num_prompt]

    def to_device(values: object, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)

    params = [request.sampling for (_, request, _), _ in members]
    values = {name: to_device([getattr(p, name) for p in params]) for name in _OF_REQUEST}
    values |= {name: to_device([getattr(chain, name) for _, chain in members]) for name in _OF_CHAIN}
    values["top_k"] = to_device([vocab_size if p.top_k == -1 else min(p.top_k, vocab_size) for p in params], torch.int64)
    seeds, positions = [request.seed for (_, request, _), _ in members], [position for (_, _, position), _ in members]
    return ChainGroup(
        rows=to_device([at for (at, _, _), _ in members], torch.int64), order=order, values=values,
        uniform=to_device(uniforms(seeds, positions)), chance=to_device(uniforms([seed ^ CHANCE for seed in seeds], positions)),
        mu=to_device(mu), turns=[to_device(places, torch.int64) for places in turns],
        penalties=edits.pack(added, device), repetition=edits.pack(scaled, device), repeats=edits.pack(repeats, device),
    )
