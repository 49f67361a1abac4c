"""Reads GGUF files: metadata, and tensors under Hugging Face names, dequantised or in the blocks they are stored in.

The header is untrusted: counts, lengths, types and offsets are checked against the file before anything is used, and
every fault is a ConfigError.  Arithmetic of the quantised types is the ``gguf`` package's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from radixrt.errors import ConfigError
from radixrt.gguf_header import Cursor, Malformed, read_header
from radixrt.weights.blocks import BlockTensor
from radixrt.weights.source import StoredTensor

MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
CHUNK_VALUES = 1 << 20
_DEFAULT_ALIGNMENT = 32
_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
ROPE_FACTORS = "rope_freqs.weight"
_VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")


@dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor lies.  shape is in torch's order; start and size are bytes of the file."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    size: int


class GGUFFile:
    """An open GGUF file.

    metadata: every key with its value (scalars, strings, lists of either).  tensors: by the names in the file.
    keep: types, in lower case, whose matrices ``read`` yields in blocks.  vocabulary: whether ``metadata`` is to have the
    lists of tokens and merges, which take longer to read than everything else in the header.
    """

    def __init__(self, path: Path, *, keep: Collection[str] = (), vocabulary: bool = True) -> None:
        self.path = path
        self._keep = keep
        try:
            # A plain view: slicing a memmap object costs far more than slicing an array.
            # Copy on write, which nothing does: torch takes no read-only memory.
            self._bytes = np.memmap(path, dtype=np.uint8, mode="c").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        try:
            self.metadata, self.tensors = _parse(self._bytes, skip=() if vocabulary else _VOCABULARY)
        except Malformed as error:
            raise ConfigError(f"{path} is not a usable GGUF file: {error}") from error
        self.stored = {hugging_face_name(name): StoredTensor(t.shape, t.size, t.kind.name.lower()) for name, t in self.tensors.items()}
        if len(self.stored) != len(self.tensors):
            raise ConfigError(f"{path} is not a usable GGUF file: two tensors have one meaning")

    def read(self) -> Iterator[tuple[str, Tensor | BlockTensor]]:
        """Yield every tensor, in float32 or in blocks, under its Hugging Face name and in Hugging Face's row order."""
        for name, entry in self.tensors.items():
            kept = len(entry.shape) == 2 and entry.kind.name.lower() in self._keep
            yield hugging_face_name(name), self.blocks(name) if kept else self.tensor(name)

    def blocks(self, name: str) -> BlockTensor:
        """Return one quantised matrix as it is stored, by its name in the file; it may share the memory of the mapped file."""
        entry = self.tensors[name]
        raw = torch.from_numpy(self._bytes[entry.start : entry.start + entry.size]).view(entry.shape[0], -1)
        return BlockTensor(entry.kind.name.lower(), entry.shape, self._in_row_order(name, raw))

    def tensor(self, name: str) -> Tensor:
        """Return one tensor in float32, by its name in the file."""
        entry = self.tensors[name]
        values = np.empty(math.prod(entry.shape), dtype=np.float32)
        block, block_bytes = GGML_QUANT_SIZES[entry.kind]
        step = max(1, CHUNK_VALUES // block)
        for first in range(0, len(values) // block, step):
            last = min(first + step, len(values) // block)
            raw = self._bytes[entry.start + first * block_bytes : entry.start + last * block_bytes]
            try:
                values[first * block : last * block] = dequantize(raw, entry.kind)
            except NotImplementedError as error:
                raise ConfigError(f"{self.path}: tensor {name} has type {entry.kind.name}, which is not supported") from error
        return self._in_row_order(name, torch.from_numpy(values).view(entry.shape))

    def _in_row_order(self, name: str, tensor: Tensor) -> Tensor:
        heads = self._interleaved_heads(name)
        return tensor if heads is None else half_rotation_rows(tensor, heads)

    def _interleaved_heads(self, name: str) -> int | None:
        # llama.cpp stores Q and K of this architecture for a rotation of neighbouring pairs.
        architecture = self.metadata.get("general.architecture")
        match = _LAYER_TENSOR.fullmatch(name)
        if match is None or match[2] not in ("attn_q", "attn_k") or architecture not in ("llama", "mistral"):
            return None
        num_heads = self.metadata.get(f"{architecture}.attention.head_count")
        num_kv_heads = self.metadata.get(f"{architecture}.attention.head_count_kv", num_heads)
        heads = num_heads if match[2] == "attn_q" else num_kv_heads
        if not isinstance(heads, int) or heads < 1 or self.tensors[name].shape[0] % (2 * heads):
            raise ConfigError(f"{self.path}: tensor {name} does not divide into {heads} heads")
        return heads


def hugging_face_name(name: str) -> str:
    """Translate a GGUF tensor name; names without a translation stay as they are."""
    match = _LAYER_TENSOR.fullmatch(name)
    if match is not None and match[2] in _LAYER_NAMES:
        return f"model.layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    stem, _, suffix = name.rpartition(".")
    return f"{_GLOBAL_NAMES[stem]}.{suffix}" if stem in _GLOBAL_NAMES else name


def half_rotation_rows(tensor: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from interleaved pairs (0, 1), (2, 3), … to first halves, then second halves."""
    order = np.arange(len(tensor)).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return torch.from_numpy(tensor.numpy()[order])


def _parse(data: np.ndarray, *, skip: Collection[str]) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    cursor = Cursor(data.data)
    metadata, num_tensors = read_header(cursor, skip=skip)
    entries: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int, int]] = {}
    for _ in range(num_tensors):
        name, *entry = _tensor_entry(cursor)
        if name in entries:
            raise Malformed(f"tensor {name} occurs twice")
        entries[name] = (entry[0], entry[1], entry[2], entry[3])
    return metadata, _placed(entries, cursor.position, len(data), metadata)


def _tensor_entry(cursor: Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int, int]:
    name, num_dims = cursor.string(), cursor.u32()
    if not 1 <= num_dims <= MAX_DIMS:
        raise Malformed(f"tensor {name} has {num_dims} dimensions")
    dims = [cursor.u64() for _ in range(num_dims)]
    kind, offset = cursor.u32(), cursor.u64()
    try:
        quantization = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[quantization]
    except (ValueError, KeyError) as error:
        raise Malformed(f"tensor {name} has unknown type {kind}") from error
    if min(dims) < 1 or dims[0] % block:
        raise Malformed(f"tensor {name} of type {quantization.name} has shape {dims}")
    return name, quantization, tuple(reversed(dims)), offset, math.prod(dims) // block * block_bytes


def _placed(
    entries: Mapping[str, tuple[GGMLQuantizationType, tuple[int, ...], int, int]], header: int, length: int, metadata: Mapping[str, Any]
) -> dict[str, GGUFTensor]:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise Malformed(f"alignment {alignment}")
    base = -(-header // alignment) * alignment
    tensors = {}
    for name, (kind, shape, offset, size) in entries.items():
        if offset % alignment or base + offset + size > length:
            raise Malformed(f"tensor {name} lies outside the file (truncated?)")
        tensors[name] = GGUFTensor(kind, shape, base + offset, size)
    return tensors
