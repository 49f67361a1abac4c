"""The pieces models are made of: linear layers, norms, activations and rotary embeddings.

Plain objects that hold tensors; T is the number of flattened tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from radixrt.models.config import RopeConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Linear:
    """A product with weight [out, in], and a bias [out] or None.

    ``parts`` lets several matrices of a checkpoint share one product: rows lie in the order of the sizes.
    """

    def __init__(self, in_size: int, *parts: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        self.parts = list(parts)
        self.weight = torch.empty(sum(parts), in_size, dtype=dtype, device=device)
        self.bias = torch.empty(sum(parts), dtype=dtype, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def places(self, *names: str) -> dict[str, Tensor]:
        """Name the part that each checkpoint tensor fills; one name a part."""
        places = dict(zip((f"{name}.weight" for name in names), torch.split(self.weight, self.parts), strict=True))
        if self.bias is not None:
            places.update(zip((f"{name}.bias" for name in names), torch.split(self.bias, self.parts), strict=True))
        return places


class RMSNorm:
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rope:
    """Rotary position embedding of the half-rotation kind: dimension i turns with dimension i + dim / 2.

    Angles are float32; their cosines and sines are kept for the positions seen so far, up to ``context_length``.
    """

    def __init__(self, config: RopeConfig, context_length: int, *, device: torch.device) -> None:
        self.dim = config.dim
        self.context_length = context_length
        self.scale = config.attention_factor
        self.frequencies = rope_frequencies(config).to(device)
        self._table = torch.empty(0, 2, config.dim // 2, device=device)

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [T, 1, dim / 2] of positions [T]."""
        if self._table.shape[0] < self.context_length:
            # Looking at positions would wait for a device; there the whole table is made at once.
            self.table(int(positions.max()) + 1 if positions.device.type == "cpu" else self.context_length)
        turns = self._table[positions]
        return turns[:, 0, None], turns[:, 1, None]

    def table(self, length: int) -> Tensor:
        """Return cosines and sines [at least length, 2, dim / 2] of the first positions."""
        have = self._table.shape[0]
        if length > have:
            length = max(min(max(2 * have, 1024), self.context_length), length)
            angles = torch.arange(length, dtype=torch.float32, device=self.frequencies.device)[:, None] * self.frequencies
            self._table = torch.stack((angles.cos(), angles.sin()), dim=1) * self.scale
        return self._table

    def __call__(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate the first ``dim`` dimensions of x [T, heads, head_dim]."""
        cos, sin = turns
        half = self.dim // 2
        first, second = x[..., :half], x[..., half : self.dim]
        rotated = [first * cos - second * sin, second * cos + first * sin]
        if self.dim < x.shape[-1]:
            rotated.append(x[..., self.dim :])
        return torch.cat(rotated, dim=-1).to(x.dtype)


def rope_frequencies(config: RopeConfig) -> Tensor:
    """Return the angle per position [dim / 2] float32 of each pair of dimensions.

    llama3: long waves are slowed by ``factor``, short ones kept, a ramp between.  yarn: arXiv 2309.00071, section 3.2.
    """
    powers = torch.arange(0, config.dim, 2, dtype=torch.float32) / config.dim
    frequencies = 1.0 / (config.theta**powers)
    if config.divisors:
        frequencies = frequencies / torch.tensor(config.divisors, dtype=torch.float32)
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        cycles = config.original_context * frequencies / (2 * math.pi)
        keep = ((cycles - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)).clamp(0.0, 1.0)
        return frequencies * keep + frequencies / config.factor * (1.0 - keep)
    if config.kind == "yarn":
        low, high = (_dimension_of_cycles(config, cycles) for cycles in (config.beta_fast, config.beta_slow))
        if config.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0.0), min(high, config.dim - 1.0)
        ramp = (torch.arange(config.dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
        slowed = ramp.clamp(0.0, 1.0)
        return frequencies * (1.0 - slowed) + frequencies / config.factor * slowed
    return frequencies


def _dimension_of_cycles(config: RopeConfig, cycles: float) -> float:
    """The (fractional) dimension whose wave turns ``cycles`` times within the original context."""
    return config.dim * math.log(config.original_context / (cycles * 2 * math.pi)) / (2 * math.log(config.theta))
