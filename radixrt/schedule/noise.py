"""The noise that sampling uses: a function of seed and position, so that sampled text depends on nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Up to so many numbers are made one by one: a dozen operations on small arrays cost more.
FEW = 8
_MASK = 2**64 - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Return the noise of each (seed, position): float64 in [0, 1), by the SplitMix64 mixing function (Steele et al. 2014)."""
    if len(seeds) <= FEW:
        return np.array([_uniform(seed, position) for seed, position in zip(seeds, positions, strict=True)], dtype=np.float64)
    with np.errstate(over="ignore"):
        state = np.array(seeds, dtype=np.int64).view(np.uint64) * np.uint64(0xD1342543DE82EF95)
        state = state + np.array(positions, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for _ in range(2):  # seeds and positions are small and regular: one round would leave their pattern visible
            state = state + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _uniform(seed: int, position: int) -> float:
    state = seed * 0xD1342543DE82EF95 + position * 0x9E3779B97F4A7C15 & _MASK
    for _ in range(2):
        state = state + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) * 2.0**-53
