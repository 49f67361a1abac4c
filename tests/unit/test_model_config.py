"""Configs of Hugging Face and GGUF metadata become the same flags; numbers that make no sense are refused."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

from radixrt.errors import ConfigError
from radixrt.models import ARCHITECTURES, select
from radixrt.models.config import LlamaConfig, RopeConfig, token_ids
from radixrt.models.layers import Rope, rope_frequencies

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "eos_token_id": 2,
    "bos_token_id": 1,
}  # fmt: skip
GGUF: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 512, "llama.embedding_length": 64,
    "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.bos_token_id": 1,
}  # fmt: skip
SHAPES = {"model.embed_tokens.weight": (100, 64), "lm_head.weight": (100, 64)}


def hf(**changes: Any) -> LlamaConfig:
    return LlamaConfig.from_hugging_face({**HF, **changes})


def gguf(changes: dict[str, Any] | None = None, **shapes: tuple[int, ...]) -> LlamaConfig:
    return LlamaConfig.from_gguf({**GGUF, **(changes or {})}, {**SHAPES, **shapes})


def test_both_sources_describe_one_model_alike() -> None:
    assert hf() == gguf()


@pytest.mark.parametrize(
    ("architecture", "changes", "flags"),
    [
        ("LlamaForCausalLM", {}, {"qkv_bias": False, "qk_norm": False, "windows": (None, None)}),
        ("LlamaForCausalLM", {"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
        ("LlamaForCausalLM", {"sliding_window": 8}, {"windows": (None, None)}),
        ("MistralForCausalLM", {"sliding_window": 8}, {"windows": (8, 8)}),
        ("MistralForCausalLM", {"sliding_window": None}, {"windows": (None, None)}),
        ("Qwen2ForCausalLM", {"sliding_window": 8}, {"qkv_bias": True, "output_bias": False, "windows": (None, None)}),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, {"windows": (None, 8)}),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
            {"windows": (8, None)},
        ),
        ("Qwen3ForCausalLM", {}, {"qkv_bias": False, "qk_norm": True}),
        ("LlamaForCausalLM", {"tie_word_embeddings": True}, {"tied_embeddings": True}),
    ],
)
def test_families_are_flags(architecture: str, changes: dict[str, Any], flags: dict[str, Any]) -> None:
    config = hf(architectures=[architecture], **changes)
    assert {name: getattr(config, name) for name in flags} == flags


@pytest.mark.parametrize(
    ("rope", "context", "kind"),
    [
        ({"rope_scaling": None, "rope_theta": 5e5}, 512, "default"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1024, "linear"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}}, 1024, "linear"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}, 2048, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 128}}, 512, "llama3"),
    ],
)  # fmt: skip
def test_context_follows_the_rope_scaling(rope: dict[str, Any], context: int, kind: str) -> None:
    config = hf(**rope)
    assert (config.rope.kind, config.shape.context_length) == (kind, context)


def test_end_tokens_are_collected_from_every_source() -> None:
    config = LlamaConfig.from_hugging_face({**HF, "eos_token_id": 2}, {"eos_token_id": [7, 2]})
    assert config.shape.eos_token_ids == (7, 2)
    assert gguf({"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eom_token_id": 2}).shape.eos_token_ids == (2, 9)
    assert token_ids(10, [1, "2", True, -1, 10, 3], None, 1) == (1, 3)


def test_gguf_flags_follow_the_tensors_of_the_file() -> None:
    first = "model.layers.0.self_attn."
    config = gguf(**{first + "q_proj.bias": (64,), first + "q_norm.weight": (16,)})
    assert (config.qkv_bias, config.output_bias, config.qk_norm, config.tied_embeddings) == (True, False, True, False)
    tied = LlamaConfig.from_gguf(GGUF, {"model.embed_tokens.weight": (100, 64)})
    assert tied.tied_embeddings


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": [1]}, "must be an object"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"architectures": []}, "architectures"),
        ({"head_dim": 15}, "must be even"),
    ],
)
def test_nonsense_in_a_config_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        hf(**changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported"),
        ({"llama.expert_count": 8}, "experts"),
        ({"split.count": 3}, "split"),
        ({"llama.attention.head_count": [4, 2]}, "head_count"),
        ({"llama.attention.value_length": 8}, "different size"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
    ],
)
def test_nonsense_in_gguf_metadata_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        gguf(changes)


def test_rope_table_grows_with_the_positions_and_keeps_its_values() -> None:
    config = RopeConfig(dim=8)
    rope, whole = Rope(config, 5000, device=torch.device("cpu")), Rope(config, 5000, device=torch.device("cpu"))
    positions = torch.tensor([0, 3, 1023, 1024, 4999])
    expected = whole.turns(positions)
    for index in range(len(positions)):
        cos, sin = rope.turns(positions[: index + 1])
        assert torch.equal(cos, expected[0][: index + 1])
        assert torch.equal(sin, expected[1][: index + 1])
    angles = positions[:, None] * rope_frequencies(config)
    torch.testing.assert_close(expected[0][:, 0], angles.cos())


def test_divisors_of_a_file_slow_each_frequency() -> None:
    plain = rope_frequencies(RopeConfig(dim=4))
    assert torch.equal(rope_frequencies(RopeConfig(dim=4, divisors=(1.0, 8.0))), plain / torch.tensor([1.0, 8.0]))


def test_every_architecture_has_its_code() -> None:
    for architecture in ARCHITECTURES:
        assert callable(select(architecture))


def test_unknown_architecture_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'LlamaForCausalLM'"):
        select("LamaForCausalLM")


def test_resolving_a_model_needs_no_torch() -> None:
    code = "import sys, radixrt.weights.resolve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
