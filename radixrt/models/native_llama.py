"""The Llama family on compiled kernels: weights stay in the format of their file, one C++ decoder does the work between attentions.

The same models as ``llama``, which is its definition; a row's result depends on no other row, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from radixrt.attention.base import ForwardContext
from radixrt.attention.native import NativePlan
from radixrt.cache.kv_pool import KVPool
from radixrt.models.config import LlamaConfig
from radixrt.models.layers import Rope
from radixrt.weights.blocks import BlockTensor
from radixrt.weights.source import Place
from radixrt_kernels import ops

if TYPE_CHECKING:
    from radixrt_kernels._native import Decoder

_MATRICES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_VECTORS = {
    "attention_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
}  # fmt: skip
_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class PackedPlace:
    """A matrix of a model as a place to fill."""

    ndim = 2

    def __init__(self, kind: str, rows: int, cols: int) -> None:
        self.shape = (rows, cols)
        self.matrix = ops.packed_matrix(kind, rows, cols)

    def copy_(self, tensor: Tensor) -> None:
        """Round a float matrix to the format of this one."""
        # Some rows at a time: a mapped file is not to be in memory a second time as float32.
        step = max(1, (1 << 22) // self.shape[1])
        for first in range(0, self.shape[0], step):
            self.matrix.pack_floats(first, tensor[first : first + step].to(torch.float32).flatten())

    def copy_blocks(self, tensor: BlockTensor) -> None:
        """Take blocks as they are, or round them again when they are of another kind."""
        if tensor.kind == self.matrix.type:
            self.matrix.pack(0, tensor.blocks.flatten())
        else:
            self.copy_(tensor.dequantize())


class NativeLlama:
    """The model.  ``kind`` chooses the format of the matrix of a name and shape [out, in]."""

    def __init__(self, config: LlamaConfig, *, kind: Callable[[str, tuple[int, int]], str]) -> None:
        self.config = config
        self.shape = config.shape
        self.rope = Rope(config.rope, config.shape.context_length, device=torch.device("cpu"))
        self._turns = self.rope.table(1).numpy()
        self._windows = tuple(dict.fromkeys(config.windows))
        self._kind = kind
        self._matrices: dict[str, PackedPlace] = {}
        self._vectors: dict[str, Tensor] = {}
        hidden, vocab_size = config.hidden_size, config.shape.vocab_size
        self._add_matrix(_EMBEDDING, vocab_size, hidden)
        if not config.tied_embeddings:
            self._add_matrix(_HEAD, vocab_size, hidden)
        self._add_vector(_NORM, hidden)
        for index in range(config.shape.num_layers):
            self._add_layer(f"model.layers.{index}.")
        self._decoder: Decoder | None = None

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """Return hidden states [T, H] of tokens [T] at positions [T], storing their K/V through the context."""
        decoder, config, batch = self.decoder, self.config, context.batch
        length = int((batch.starts + batch.counts).max())
        if isinstance(context.plan, NativePlan):
            return torch.from_numpy(
                self.forward_arrays(input_ids.numpy(), positions.numpy(), batch.slots.numpy(), length, context.plan, context.pool)
            )
        num_heads, num_kv_heads, head_dim = config.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        table = self.rope.table(length)
        x = torch.empty(len(input_ids), config.hidden_size)
        qkv = torch.empty(len(input_ids), num_heads + 2 * num_kv_heads, head_dim)
        q, k, v = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        decoder.embed(input_ids, x)
        for layer, window in enumerate(config.windows):
            decoder.project(layer, x, positions, table, qkv)
            attended = context.attend(layer, q, k, v, scale=head_dim**-0.5, sliding_window=window)
            decoder.finish_layer(layer, attended.contiguous(), x)
        decoder.final_norm(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [S, V] of hidden states [S, H]."""
        return torch.from_numpy(self.logits_arrays(hidden.numpy()))

    def forward_arrays(
        self, input_ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, length: int, plan: NativePlan, pool: KVPool,
        wanted: np.ndarray | None = None,
    ) -> np.ndarray:
        """Do what ``forward`` does on arrays of the host, which cross into C++ for a twentieth of what tensors take.

        No position is ``length`` or more.  ``wanted`` [S] int64: the places, at the ends of rows, whose hidden states [S, H] to return;
        None for all.  The others are read by nobody behind the last layer, which then computes K/V alone for them.
        """  # fmt: skip
        if length > len(self._turns):
            self._turns = self.rope.table(length).numpy()
        shape = (self.config.num_heads, self.shape.num_kv_heads, self.shape.head_dim, pool.num_slots)
        plans = {window: plan.of(*shape, window) for window in self._windows}
        x = np.empty((len(input_ids), self.config.hidden_size), np.float32)
        storage: Any = pool.storage
        of_layers = [plans[window] for window in self.config.windows]
        last = None
        if wanted is not None and len(wanted):
            last = plan.ends(wanted).of(*shape, self.config.windows[-1])
        # All of it in one call: between layers there is nothing for Python to do.
        self.decoder.forward(input_ids, positions, self._turns, storage, slots, of_layers, x, wanted, last)
        return x if wanted is None else x[: len(wanted)]

    def logits_arrays(self, hidden: np.ndarray) -> np.ndarray:
        """Do what ``logits`` does on arrays of the host."""
        out = np.empty((len(hidden), self.shape.vocab_size), np.float32)
        self.decoder.logits(hidden, out)
        return out

    def masked_logits_arrays(self, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return logits where bits of packed masks [S, ceil(V / 32)] int32 are set; elsewhere anything."""
        out = np.empty((len(hidden), self.shape.vocab_size), np.float32)
        self.decoder.logits_where(hidden, mask, out)
        return out

    def places(self) -> Mapping[str, Place]:
        """Return the places to fill, by Hugging Face name."""
        return {**self._matrices, **self._vectors}

    def place_of(self, name: str) -> str | None:
        """Return the place a checkpoint's tensor fills, None when it is not needed."""
        tied_head = name == _HEAD and _HEAD not in self._matrices
        return None if tied_head or name == "rope_freqs.weight" or name.endswith("rotary_emb.inv_freq") else name

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Bytes that matrices take, by format."""
        total: dict[str, int] = {}
        for place in self._matrices.values():
            total[place.matrix.type] = total.get(place.matrix.type, 0) + place.matrix.nbytes
        return total

    @property
    def decoder(self) -> Decoder:
        """The compiled decoder, put together when first used: by then the places are filled."""
        if self._decoder is None:
            self._decoder = self._build()
        return self._decoder

    def _build(self) -> Decoder:
        config = self.config
        shape = {
            "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size, "num_heads": config.num_heads,
            "num_kv_heads": self.shape.num_kv_heads, "head_dim": self.shape.head_dim, "rotary_dim": config.rope.dim,
            "rms_norm_eps": config.rms_norm_eps, "activation": config.activation,
        }  # fmt: skip
        layers = []
        for index in range(self.shape.num_layers):
            prefix = f"model.layers.{index}."
            layers.append(
                {field: self._vectors.get(prefix + name) for field, name in _VECTORS.items()}
                | {
                    field: (self._matrices[f"{prefix}{name}.weight"].matrix, self._vectors.get(f"{prefix}{name}.bias"))
                    for field, name in _MATRICES.items()
                }
            )
        embedding = self._matrices[_EMBEDDING]
        head = self._matrices.get(_HEAD, embedding)
        return ops.decoder(shape, layers, self._vectors[_NORM], embedding.matrix, head.matrix)

    def _add_layer(self, prefix: str) -> None:
        config, head_dim = self.config, self.shape.head_dim
        hidden, inner, q_size, kv_size = (
            config.hidden_size, config.intermediate_size, config.num_heads * head_dim, self.shape.num_kv_heads * head_dim,
        )  # fmt: skip
        sizes = {
            "q": (q_size, hidden), "k": (kv_size, hidden), "v": (kv_size, hidden), "output": (hidden, q_size),
            "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
        }  # fmt: skip
        for field, (rows, cols) in sizes.items():
            name = prefix + _MATRICES[field]
            self._add_matrix(f"{name}.weight", rows, cols)
            bias = config.qkv_bias if field in "qkv" else config.output_bias if field == "output" else config.mlp_bias
            if bias:
                self._add_vector(f"{name}.bias", rows)
        self._add_vector(prefix + _VECTORS["attention_norm"], hidden)
        self._add_vector(prefix + _VECTORS["mlp_norm"], hidden)
        if config.qk_norm:
            self._add_vector(prefix + _VECTORS["q_norm"], head_dim)
            self._add_vector(prefix + _VECTORS["k_norm"], head_dim)

    def _add_matrix(self, name: str, rows: int, cols: int) -> None:
        self._matrices[name] = PackedPlace(self._kind(name, (rows, cols)), rows, cols)

    def _add_vector(self, name: str, size: int) -> None:
        self._vectors[name] = torch.empty(size)
