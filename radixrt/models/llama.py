"""Llama, Mistral, Qwen2 and Qwen3: one decoder, whose differences are flags of LlamaConfig."""

from __future__ import annotations

from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from radixrt.attention.base import ForwardContext
from radixrt.models.config import LlamaConfig
from radixrt.models.layers import ACTIVATIONS, Linear, RMSNorm, Rope


class Llama:
    """The model: token embedding, decoder layers, norm and output product."""

    def __init__(self, config: LlamaConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.shape = config.shape
        self.embedding = torch.empty(config.shape.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.layers = [Layer(config, index, dtype=dtype, device=device) for index in range(config.shape.num_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.head = self.embedding if config.tied_embeddings else torch.empty_like(self.embedding)
        self.rope = Rope(config.rope, config.shape.context_length, device=device)

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """Return hidden states [T, H] of tokens [T] at positions [T], storing their K/V through the context."""
        x = F.embedding(input_ids, self.embedding)
        turns = self.rope.turns(positions)
        for layer in self.layers:
            x = layer(x, self.rope, turns, context)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [S, V] of hidden states [S, H]."""
        return F.linear(hidden, self.head).float()

    def places(self) -> dict[str, Tensor]:
        """Return the tensors to fill, by Hugging Face name."""
        places = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm.weight}
        if self.head is not self.embedding:
            places["lm_head.weight"] = self.head
        return dict(chain(places.items(), *(layer.places().items() for layer in self.layers)))

    def place_of(self, name: str) -> str | None:
        """Return the place a checkpoint's tensor fills, None when it is not needed."""
        tied_head = name == "lm_head.weight" and self.head is self.embedding
        return None if tied_head or name == "rope_freqs.weight" or name.endswith("rotary_emb.inv_freq") else name


class Layer:
    """Attention and MLP, each on a norm of its input and added to it."""

    def __init__(self, config: LlamaConfig, index: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.index = index
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.attention = Attention(config, index, dtype=dtype, device=device)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.mlp = MLP(config, dtype=dtype, device=device)

    def __call__(self, x: Tensor, rope: Rope, turns: tuple[Tensor, Tensor], context: ForwardContext) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, turns, context)
        return x + self.mlp(self.mlp_norm(x))

    def places(self) -> dict[str, Tensor]:
        prefix = f"model.layers.{self.index}."
        inner = {
            "input_layernorm.weight": self.attention_norm.weight,
            "post_attention_layernorm.weight": self.mlp_norm.weight,
            **self.attention.places(),
            **self.mlp.places(),
        }
        return {prefix + name: place for name, place in inner.items()}


class Attention:
    """Grouped-query attention with rotary positions; Q, K and V come from one product."""

    def __init__(self, config: LlamaConfig, index: int, *, dtype: torch.dtype, device: torch.device) -> None:
        head_dim, num_kv_heads = config.shape.head_dim, config.shape.num_kv_heads
        self.index = index
        self.head_dim = head_dim
        self.heads = (config.num_heads, num_kv_heads, num_kv_heads)
        self.scale = head_dim**-0.5
        self.window = config.windows[index]
        self.qkv = Linear(
            config.hidden_size, *(count * head_dim for count in self.heads), bias=config.qkv_bias, dtype=dtype, device=device
        )
        self.output = Linear(config.num_heads * head_dim, config.hidden_size, bias=config.output_bias, dtype=dtype, device=device)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype=dtype, device=device)

    def __call__(self, x: Tensor, rope: Rope, turns: tuple[Tensor, Tensor], context: ForwardContext) -> Tensor:
        num_heads, num_kv_heads, _ = self.heads
        qkv = self.qkv(x).view(x.shape[0], sum(self.heads), self.head_dim)
        qk, v = qkv[:, : num_heads + num_kv_heads], qkv[:, num_heads + num_kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :num_heads]), self.k_norm(qk[:, num_heads:])), dim=1)
        q, k = torch.split(rope(qk, turns), [num_heads, num_kv_heads], dim=1)
        attended = context.attend(self.index, q, k, v, scale=self.scale, sliding_window=self.window)
        return self.output(attended.reshape(x.shape[0], -1))

    def places(self) -> dict[str, Tensor]:
        places = self.qkv.places("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        places |= self.output.places("self_attn.o_proj")
        if self.q_norm is not None and self.k_norm is not None:
            places |= {"self_attn.q_norm.weight": self.q_norm.weight, "self_attn.k_norm.weight": self.k_norm.weight}
        return places


class MLP:
    """The gated feed-forward network; gate and up come from one product."""

    def __init__(self, config: LlamaConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        size = config.intermediate_size
        self.gate_up = Linear(config.hidden_size, size, size, bias=config.mlp_bias, dtype=dtype, device=device)
        self.down = Linear(size, config.hidden_size, bias=config.mlp_bias, dtype=dtype, device=device)
        self.activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)

    def places(self) -> dict[str, Tensor]:
        return self.gate_up.places("mlp.gate_proj", "mlp.up_proj") | self.down.places("mlp.down_proj")
