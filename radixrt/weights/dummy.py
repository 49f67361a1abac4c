"""Random weights for benchmarks and tests: the right shapes, small values, reproducible from a seed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from radixrt.weights.source import Place

SCALE = 0.02


def fill_dummy(places: Mapping[str, Place], *, seed: int) -> None:
    """Fill every place with seeded noise: norm weights are around one, everything else around zero.

    Values depend on the seed and the order of the places, not on device or type.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, place in places.items():
        noise = torch.empty(tuple(place.shape), dtype=torch.float32).normal_(0.0, SCALE, generator=generator)
        place.copy_(noise + 1.0 if place.ndim == 1 and name.endswith("weight") else noise)
