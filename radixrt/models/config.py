"""What a model is, before any tensor exists: shapes and flags read from a Hugging Face config or GGUF metadata.

Knows neither torch nor files.  Both sources are untrusted: every number is checked, and a fault is a ConfigError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixrt.errors import ConfigError

MAX_SIZE = 1 << 24
MAX_LAYERS = 4096
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
_ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the KV pool, the engine and the tokenizer need to know of any model.

    context_length: most positions a sequence may have.  eos_token_ids: tokens that end an answer.
    """

    architecture: str
    vocab_size: int
    context_length: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of the half-rotation kind.

    dim: rotated dimensions of a head.  original_context: positions of pre-training (llama3, yarn).
    divisors: per-frequency divisors that a GGUF file brings instead of parameters, or ().
    """

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    dim: int
    theta: float = 10000.0
    factor: float = 1.0
    original_context: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Llama, Mistral, Qwen2 and Qwen3 as flags.

    windows: per layer, the sliding window or None for full attention.
    """

    shape: ModelShape
    hidden_size: int
    intermediate_size: int
    num_heads: int
    rms_norm_eps: float
    rope: RopeConfig
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    windows: tuple[int | None, ...]

    def __post_init__(self) -> None:
        shape = self.shape
        if self.num_heads % shape.num_kv_heads:
            raise ConfigError(f"{self.num_heads} attention heads do not divide into {shape.num_kv_heads} key/value heads")
        if self.rope.dim % 2 or not 0 < self.rope.dim <= shape.head_dim:
            raise ConfigError(f"rotary dimension {self.rope.dim} must be even and at most the head dimension {shape.head_dim}")
        if self.rope.divisors and len(self.rope.divisors) != self.rope.dim // 2:
            raise ConfigError(f"{len(self.rope.divisors)} rotary factors for {self.rope.dim // 2} frequencies")
        if self.activation not in _ACTIVATIONS:
            raise ConfigError(f"activation {self.activation!r} is not one of {', '.join(_ACTIVATIONS)}")
        assert len(self.windows) == shape.num_layers

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> LlamaConfig:
        """Read a config.json, with the end tokens of generation_config.json when there is one."""
        architecture = hugging_face_architecture(config)
        defaults = _FAMILY_DEFAULTS[architecture]
        fields = Fields({**defaults, **{key: value for key, value in config.items() if value is not None}}, "config.json")
        hidden, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        head_dim = fields.size("head_dim", max(1, hidden // num_heads))
        num_layers = fields.size("num_hidden_layers", high=MAX_LAYERS)
        bias = fields.flag("attention_bias")
        rope, context = _hugging_face_rope(fields, head_dim)
        vocab_size = fields.size("vocab_size")
        return cls(
            shape=ModelShape(
                architecture=architecture,
                vocab_size=vocab_size,
                context_length=context,
                num_layers=num_layers,
                num_kv_heads=fields.size("num_key_value_heads", num_heads),
                head_dim=head_dim,
                eos_token_ids=token_ids(vocab_size, (generation_config or {}).get("eos_token_id"), config.get("eos_token_id")),
                bos_token_id=next(iter(token_ids(vocab_size, config.get("bos_token_id"))), None),
            ),
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_heads=num_heads,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=rope,
            activation=fields.text("hidden_act", "silu"),
            qkv_bias=bias or architecture == "Qwen2ForCausalLM",
            output_bias=bias,
            mlp_bias=fields.flag("mlp_bias"),
            qk_norm=architecture == "Qwen3ForCausalLM",
            tied_embeddings=fields.flag("tie_word_embeddings"),
            windows=_hugging_face_windows(fields, architecture, num_layers),
        )

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], rope_divisors: Sequence[float] = ()
    ) -> LlamaConfig:
        """Read GGUF metadata, with the shapes of the file's tensors under their Hugging Face names."""
        family = metadata.get("general.architecture")
        if not isinstance(family, str) or family not in _GGUF_ARCHITECTURES:
            raise ConfigError(f"GGUF architecture {family!r} is not supported; supported: {', '.join(_GGUF_ARCHITECTURES)}")
        if metadata.get("split.count", 0) not in (0, 1):
            raise ConfigError("this GGUF model is split over several files; merge them into one first")
        prefix = f"{family}."
        fields = Fields({key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}, "GGUF metadata")
        if fields.values.get("expert_count"):
            raise ConfigError(f"GGUF architecture {family!r} with experts is not supported")
        embedding = shapes.get("model.embed_tokens.weight", ())
        if len(embedding) != 2:
            raise ConfigError("the GGUF file has no token embedding")
        vocab_size, hidden = embedding
        num_heads = fields.size("attention.head_count")
        head_dim = fields.size("attention.key_length", max(1, hidden // num_heads))
        if fields.size("attention.value_length", head_dim) != head_dim:
            raise ConfigError("key and value heads of different size are not supported")
        num_layers = fields.size("block_count", high=MAX_LAYERS)
        window = fields.size("attention.sliding_window", None) if "attention.sliding_window" in fields.values else None
        rope, context = _gguf_rope(fields, head_dim, rope_divisors)
        first = "model.layers.0.self_attn."
        return cls(
            shape=ModelShape(
                architecture=_GGUF_ARCHITECTURES[family],
                vocab_size=vocab_size,
                context_length=context,
                num_layers=num_layers,
                num_kv_heads=fields.size("attention.head_count_kv", num_heads),
                head_dim=head_dim,
                eos_token_ids=token_ids(vocab_size, *(metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))),
                bos_token_id=next(iter(token_ids(vocab_size, metadata.get("tokenizer.ggml.bos_token_id"))), None),
            ),
            hidden_size=hidden,
            intermediate_size=fields.size("feed_forward_length"),
            num_heads=num_heads,
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-6),
            rope=rope,
            qkv_bias=first + "q_proj.bias" in shapes,
            output_bias=first + "o_proj.bias" in shapes,
            mlp_bias="model.layers.0.mlp.gate_proj.bias" in shapes,
            qk_norm=first + "q_norm.weight" in shapes,
            tied_embeddings="lm_head.weight" not in shapes,
            windows=(window,) * num_layers,
        )


class Fields:
    """Checked access to the values of an untrusted config; ``source`` names it in errors."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def size(self, key: str, default: int | None = None, *, high: int = MAX_SIZE) -> int:
        """Return an int in [1, high]; without a default the key must be there."""
        value = self._get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if type(value) is not int or not 1 <= value <= high:
            raise ConfigError(f"{self.source}: {key} must be an integer in [1, {high}], got {value!r:.80}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite positive float."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{self.source}: {key} must be a positive number, got {value!r:.80}")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.source}: {key} must be true or false, got {value!r:.80}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.source}: {key} must be a string, got {value!r:.80}")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.source}: {key} is missing")
        return value


def hugging_face_architecture(config: Mapping[str, Any]) -> str:
    """Return the one architecture that a config.json names."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(f"config.json: architectures must name one model class, got {names!r:.80}")
    return names[0]


def token_ids(vocab_size: int, *values: Any) -> tuple[int, ...]:
    """Return the token ids among ints, lists of ints and None, each once and in order; others are left out."""
    ids: dict[int, None] = {}
    for value in values:
        for token in value if isinstance(value, list) else [value]:
            if type(token) is int and 0 <= token < vocab_size:
                ids[token] = None
    return tuple(ids)


# What transformers assumes where a config.json is silent and the families differ.
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "MistralForCausalLM": {"max_position_embeddings": 131072, "num_key_value_heads": 8},
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}
_GGUF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def _hugging_face_rope(fields: Fields, head_dim: int) -> tuple[RopeConfig, int]:
    """Return the rotary embedding and the context length it reaches."""
    context = fields.size("max_position_embeddings")
    raw: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = fields.values.get(key)
        if part is not None and not isinstance(part, dict):
            raise ConfigError(f"config.json: {key} must be an object")
        raw.update(part or {})
    scaling = Fields({**fields.values, **raw}, "config.json: rope_parameters")
    theta = scaling.number("rope_theta", 10000.0)
    dim = int(head_dim * scaling.number("partial_rotary_factor", 1.0))
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return RopeConfig(dim=dim, theta=theta), context
    if kind == "linear":
        factor = scaling.number("factor")
        return RopeConfig(kind="linear", dim=dim, theta=theta, factor=factor), int(context * factor)
    if kind == "llama3":
        rope = RopeConfig(
            kind="llama3",
            dim=dim,
            theta=theta,
            factor=scaling.number("factor"),
            original_context=scaling.size("original_max_position_embeddings", context),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
        )
        return rope, context
    if kind == "yarn":
        original = scaling.size("original_max_position_embeddings", context)
        factor = scaling.number("factor", max(1.0, context / original))
        rope = RopeConfig(
            kind="yarn",
            dim=dim,
            theta=theta,
            factor=factor,
            original_context=original,
            beta_fast=scaling.number("beta_fast", 32.0),
            beta_slow=scaling.number("beta_slow", 1.0),
            attention_factor=scaling.number("attention_factor", yarn_attention_factor(factor)),
            truncate=scaling.flag("truncate", default=True),
        )
        return rope, int(original * factor)
    raise ConfigError(f"config.json: rope type {kind!r} is not one of {', '.join(_ROPE_KINDS)}")


def _gguf_rope(fields: Fields, head_dim: int, divisors: Sequence[float]) -> tuple[RopeConfig, int]:
    context = fields.size("context_length")
    kind = fields.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise ConfigError(f"GGUF metadata: rope scaling {kind!r} is not supported")
    if not all(math.isfinite(value) and value > 0 for value in divisors):
        raise ConfigError("GGUF metadata: rotary factors must be positive")
    dim, theta = fields.size("rope.dimension_count", head_dim), fields.number("rope.freq_base", 10000.0)
    if kind == "none":
        return RopeConfig(dim=dim, theta=theta, divisors=tuple(divisors)), context
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return RopeConfig(kind="linear", dim=dim, theta=theta, factor=factor, divisors=tuple(divisors)), context
    rope = RopeConfig(
        kind="yarn",
        dim=dim,
        theta=theta,
        factor=factor,
        original_context=fields.size("rope.scaling.original_context_length", context),
        attention_factor=yarn_attention_factor(factor),
    )
    return rope, context


def yarn_attention_factor(factor: float) -> float:
    """The temperature of YaRN (arXiv 2309.00071, equation 22)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _hugging_face_windows(fields: Fields, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's sliding window.

    Mistral slides in every layer; Qwen only when ``use_sliding_window``, and then from layer ``max_window_layers`` on;
    ``layer_types`` overrides where given.
    """
    if fields.values.get("sliding_window") is None or architecture == "LlamaForCausalLM":
        return (None,) * num_layers
    window = fields.size("sliding_window")
    sliding: Iterable[bool]
    layer_types = fields.values.get("layer_types")
    if architecture == "MistralForCausalLM":
        sliding = [True] * num_layers
    elif not fields.flag("use_sliding_window"):
        sliding = [False] * num_layers
    elif isinstance(layer_types, list) and len(layer_types) == num_layers:
        sliding = [kind == "sliding_attention" for kind in layer_types]
    else:
        first = fields.values.get("max_window_layers", 28)
        sliding = [layer >= first for layer in range(num_layers)]
    return tuple(window if slides else None for slides in sliding)
