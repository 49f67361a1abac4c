"""The definition of every op, in numpy or torch: the oracle of the tests, and what runs where nothing was compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def common_prefix_length(a: Any, a_start: int, b: Any, b_start: int) -> int:
    """Count the leading items that ``a[a_start:]`` and ``b[b_start:]`` share.

    ``a`` and ``b`` are contiguous one-dimensional buffers of int32 (``array.array("i")``, numpy); neither is copied.
    Raises TypeError for another kind of buffer, ValueError for a start outside ``[0, len]``.
    """
    left, right = _tail(a, a_start), _tail(b, b_start)
    shorter = min(len(left), len(right))
    differs = left[:shorter] != right[:shorter]
    first = int(differs.argmax()) if shorter else 0
    return first if shorter and differs[first] else shorter


def _tail(buffer: Any, start: int) -> np.ndarray:
    items = np.asarray(memoryview(buffer))
    if items.dtype != np.int32 or items.ndim != 1 or not items.flags.c_contiguous:
        raise TypeError("[common_prefix_length] expected a contiguous one-dimensional buffer of int32")
    if not 0 <= start <= len(items):
        raise ValueError(f"[common_prefix_length] start {start} is outside [0, {len(items)}]")
    return items[start:]


class ByteAutomaton:
    """A deterministic automaton over bytes, its edges in flat tables.

    Args:
        first: int32 [S + 1]; the edges of state s are ``first[s]`` to ``first[s + 1]``, in order.
        low, high: [E]; the bytes an edge is for, both included.
        target: int32 [E]; where it leads.
        live: [S]; 0 where a token must not end.

    Raises ValueError when the tables contradict each other.
    """

    def __init__(self, first: np.ndarray, low: bytes, high: bytes, target: np.ndarray, live: bytes) -> None:
        self.first, self.target, self.live = first, target, np.frombuffer(live, dtype=np.bool_)
        self.high = np.frombuffer(high, dtype=np.uint8)
        if len(first) != len(live) + 1 or not len(low) == len(high) == len(target) == first[-1]:
            raise ValueError("[ByteAutomaton] the tables contradict each other")
        source = np.repeat(np.arange(len(live)), np.diff(first))
        self.key = source * 256 + np.frombuffer(low, dtype=np.uint8)  # (state, lowest byte), in order
        sound = np.all(self.key + (self.high - self.key % 256) < np.append(self.key[1:], len(live) * 256))
        if not sound or np.any(self.key % 256 > self.high) or np.any((target < 0) | (target >= len(live))):
            raise ValueError("[ByteAutomaton] the tables contradict each other")

    def step(self, states: np.ndarray, byte: np.ndarray) -> np.ndarray:
        """Return where bytes lead from states, -1 for nowhere."""
        if not len(self.key):
            return np.full(len(states), -1)
        edge = np.maximum(np.searchsorted(self.key, states * 256 + byte, side="right") - 1, 0)
        fits = (self.key[edge] // 256 == states) & (self.key[edge] % 256 <= byte) & (byte <= self.high[edge])
        return np.where(fits, self.target[edge], -1)


class TokenTrie:
    """The tokens of a vocabulary, to be walked with an automaton.  (The native one is a trie, this one a table.)

    Token i is spelled ``text[ends[i - 1] : ends[i]]`` and has the id ``tokens[i]``; in order of spelling, none empty.
    """

    def __init__(self, text: bytes, ends: np.ndarray, tokens: np.ndarray) -> None:
        starts = np.append(0, ends[:-1])[: len(ends)]
        spelled = [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        if len(ends) != len(tokens) or b"".join(spelled) != text or sorted(spelled) != spelled or b"" in spelled:
            raise ValueError("[TokenTrie] tokens come in order of their spelling, one end and one id a token")
        self._text, self._starts, self._lengths = np.frombuffer(text, dtype=np.uint8), starts, ends - starts
        self._tokens, self._spelled = tokens, spelled

    def fill_mask(self, automaton: ByteAutomaton, state: int, row: np.ndarray) -> None:
        """Write the packed mask (int32 [ceil(V / 32)]) of the tokens that lead from a state to a live one."""
        self._write(row, self._walk(automaton, state) >= 0)

    def fill_starts(self, text: bytes, row: np.ndarray) -> bool:
        """Write the packed mask of the tokens that a text starts with; tell whether there are tokens that start with all of it and
        are longer."""
        self._write(row, np.array([text.startswith(spelled) for spelled in self._spelled], dtype=bool))
        return any(spelled.startswith(text) and spelled != text for spelled in self._spelled)

    def reach(self, automaton: ByteAutomaton, state: int) -> list[tuple[int, int]]:
        """Return the live states that one token leads to from a state, each with its first token in order of spelling."""
        reached = self._walk(automaton, state)
        found, at = np.unique(reached, return_index=True)
        return [(int(found[i]), int(self._tokens[at[i]])) for i in np.argsort(at) if found[i] >= 0]

    def memory_bytes(self) -> int:
        """Return about how much memory the tokens take."""
        return self._text.nbytes + 3 * self._tokens.nbytes

    def _write(self, row: np.ndarray, allowed: np.ndarray) -> None:
        if self._tokens.max(initial=-1) >= len(row) * 32:
            raise ValueError("[TokenTrie] the row is too short for the vocabulary")
        bits = np.zeros(len(row) * 32, dtype=np.uint8)
        bits[self._tokens[allowed]] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def _walk(self, automaton: ByteAutomaton, state: int) -> np.ndarray:
        """Where each token leads, -1 for nowhere or a state that is not live."""
        if not 0 <= state < len(automaton.live):
            raise ValueError("[TokenTrie] there is no such state")
        states = np.full(len(self._tokens), state, dtype=np.int64)
        open_tokens = np.arange(len(self._tokens))
        for i in range(int(self._lengths.max(initial=0))):
            open_tokens = open_tokens[(self._lengths[open_tokens] > i) & (states[open_tokens] >= 0)]
            states[open_tokens] = automaton.step(states[open_tokens], self._text[self._starts[open_tokens] + i])
        return np.where((states >= 0) & automaton.live[states], states, -1)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round rows [tokens, cols] float32 to int8 in blocks of 32 columns: x = scale * a, a in [-127, 127].

    Returns a [blocks, tokens, 32] int8, and scales and sums of a [blocks, tokens] float32.  A block whose largest magnitude
    is at most 1e-30 is zero; one that holds something infinite or NaN is zero with the scale NaN.
    """
    import torch

    blocks = x.view(len(x), -1, 32).transpose(0, 1)
    largest = blocks.abs().amax(dim=-1)
    broken = ~blocks.isfinite().all(dim=-1)
    plain = ~broken & (largest > 1e-30)
    inverse = torch.where(plain, 127.0 / largest, 0.0)
    numbers = torch.where(plain[..., None], blocks * inverse[..., None], 0.0).round()
    scales = torch.where(broken, torch.nan, torch.where(plain, largest / 127.0, 0.0))
    return numbers.to(torch.int8), scales, numbers.sum(dim=-1)


def quantized_linear(x: Tensor, blocks: Tensor, kind: str) -> Tensor:
    """Multiply rows x [tokens, cols], rounded by ``quantize_rows``, by quantised weights; returns [tokens, rows] float32.

    ``blocks`` [rows, bytes] uint8 are those of a GGUF file of type q8_0 (weight d * q), q4_0 (d * (q - 8)) or q4_1 (d * q + m).
    In this order of operations, for each block of 32 columns: y = y + s * (d * float(dot) [+ m * sum]).
    """
    import torch

    stored = blocks.view(len(blocks), -1, {"q8_0": 34, "q4_0": 18, "q4_1": 20}[kind])
    halves = stored[..., : 4 if kind == "q4_1" else 2].contiguous().view(torch.float16).float()
    packed = stored[..., halves.shape[-1] * 2 :]
    weights = packed.view(torch.int8) if kind == "q8_0" else torch.cat((packed & 15, packed >> 4), dim=-1)
    numbers, scales, sums = quantize_rows(x)
    y = torch.zeros(len(x), len(blocks))
    for block in range(stored.shape[1]):
        dot = numbers[block].int() @ weights[:, block].int().T
        total = sums[block][:, None]
        d = halves[:, block, 0]
        term = d * (dot.float() - 8.0 * total) if kind == "q4_0" else d * dot.float()
        if kind == "q4_1":
            term = term + halves[:, block, 1] * total
        y = y + term * scales[block][:, None]
    return y


def gated(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """Return activation(gate) * up, for silu, gelu, gelu_pytorch_tanh or relu."""
    import torch.nn.functional as F

    activated: dict[str, Callable[[], Tensor]] = {
        "silu": lambda: F.silu(gate),
        "gelu": lambda: F.gelu(gate),
        "gelu_pytorch_tanh": lambda: F.gelu(gate, approximate="tanh"),
        "relu": lambda: F.relu(gate),
    }
    return activated[activation]() * up


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn dimension i of x [tokens, heads, head_dim] with dimension i + half by the angles of cos and sin [tokens, half]."""
    import torch

    half = cos.shape[1]
    first, second = x[..., :half], x[..., half : 2 * half]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), dim=-1)
