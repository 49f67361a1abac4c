"""Small random models of every flag, saved by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 97
PROMPT = [5, 17, 3, 88, 41, 2, 60, 33, 9, 71, 24, 24, 8, 90, 12, 55, 7, 19, 44, 31, 66, 1, 13, 29]
OTHER = [90, 2, 2, 47, 11, 36, 5]
BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OURS: dict[str, transformers.PreTrainedConfig] = {
    "llama": transformers.LlamaConfig(**BASE),
    "llama-biases": transformers.LlamaConfig(**BASE, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": transformers.LlamaConfig(**BASE, head_dim=20),
    "llama-tied": transformers.LlamaConfig(**BASE, tie_word_embeddings=True),
    "llama3-rope": transformers.LlamaConfig(**BASE, rope_parameters={**LLAMA3, "original_max_position_embeddings": 32}),
    "linear-rope": transformers.LlamaConfig(**BASE, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
    "yarn-rope": transformers.LlamaConfig(
        **BASE,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64},
    ),
    "mistral": transformers.MistralConfig(**BASE, sliding_window=None),
    "mistral-window": transformers.MistralConfig(**BASE, sliding_window=6),
    "qwen2": transformers.Qwen2Config(**BASE),
    "qwen2-window": transformers.Qwen2Config(**BASE, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": transformers.Qwen3Config(**BASE, head_dim=16, tie_word_embeddings=True),
}


def save(config: transformers.PreTrainedConfig, folder: Path) -> transformers.PreTrainedModel:
    """Make a random model, with values large enough that every flag shows in the logits, and save it."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    return model
