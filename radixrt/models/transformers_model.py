"""Any other causal language model that transformers knows, with radixrt's attention in place of its own.

Owns the meeting of the two: the model is built from its config by transformers' own classes (never by code from a model
folder), runs over the flattened tokens as one sequence, and its attention function stores and reads K/V through the
ForwardContext, which travels as a keyword argument.  What does not fit is refused when the model is built, by running it
once on two tokens and watching what its layers ask of their attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from radixrt.config import nearest
from radixrt.errors import ConfigError
from radixrt.models.config import ModelShape, token_ids

ATTENTION_NAME = "radixrt"
# Tensors of old checkpoints that transformers computes nowadays.
_COMPUTED = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")
# Names that transformers has changed since checkpoints were written.
_RENAMED = {"embed_out.": "lm_head."}
# Keyword tensors an attention function may be given without using them: positions are in Q and K already.
_POSITIONAL = {"position_ids", "position_embeddings", "cache_position"}


class Attends(Protocol):
    """What the attention function needs of a ForwardContext."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, sliding_window: int | None = None) -> Tensor: ...


class TransformersModel:
    """A causal language model of transformers behind the Model protocol."""

    def __init__(self, model: Any, shape: ModelShape) -> None:
        self.shape = shape
        self._prefix = f"{model.base_model_prefix}."
        self._places, self._tied = _distinct(model.state_dict())
        self._body = model.base_model
        # The head is the whole model with its body replaced, so that scales and caps of the logits stay the model's own.
        setattr(model, model.base_model_prefix, _GivenHidden())
        self._head = model

    def forward(self, input_ids: Tensor, positions: Tensor, context: Attends) -> Tensor:
        """Return hidden states [T, H] of tokens [T] at positions [T], storing their K/V through the context."""
        return _hidden(self._body, input_ids, positions, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [S, V] of hidden states [S, H]."""
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    def places(self) -> Mapping[str, Tensor]:
        """Return the tensors to fill, by Hugging Face name."""
        return self._places

    def place_of(self, name: str) -> str | None:
        """Return the place a checkpoint's tensor fills, None when it is not needed.

        A checkpoint of the bare body lacks the body's prefix; tied weights have one place.
        """
        for old, new in _RENAMED.items():
            if name not in self._places and name.startswith(old):
                name = new + name.removeprefix(old)
        if name not in self._places and name not in self._tied:
            name = self._prefix + name
        name = self._tied.get(name, name)
        return None if name not in self._places and name.endswith(_COMPUTED) else name


def build(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any] | None = None,
    *,
    context_length: int | None = None,
    dtype: torch.dtype,
    device: torch.device,
) -> TransformersModel:
    """Build the model of a config.json, unfilled; ``context_length=None`` takes the model's.

    Raises ConfigError when transformers does not know it, or when its attention does not fit radixrt's.
    """
    hf_config = _hugging_face_config(config)
    name = str(config.get("model_type"))
    transformers.AttentionInterface.register(ATTENTION_NAME, _attention)
    try:
        with no_init_weights(), torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(
                hf_config, dtype=dtype, attn_implementation=ATTENTION_NAME, trust_remote_code=False
            )
        model.tie_weights()
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError) as error:
        raise ConfigError(f"transformers cannot build {name!r}: {_first_line(error)}") from error
    model.eval().requires_grad_(False)
    num_kv_heads, head_dim, num_layers = _watch(model, name)
    supported = getattr(hf_config, "max_position_embeddings", None) or context_length
    if not isinstance(supported, int) or supported < 1:
        raise ConfigError(f"config.json of {name!r} does not tell how long a context may be; say --context-length")
    if context_length is not None and context_length > supported:
        raise ConfigError(f"--context-length {context_length} is more than the {supported} positions the model supports")
    vocab_size = model.get_output_embeddings().weight.shape[0]
    shape = ModelShape(
        architecture=type(model).__name__,
        vocab_size=vocab_size,
        context_length=context_length or supported,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        eos_token_ids=token_ids(vocab_size, (generation_config or {}).get("eos_token_id"), hf_config.eos_token_id),
        bos_token_id=next(iter(token_ids(vocab_size, hf_config.bos_token_id)), None),
    )
    return TransformersModel(model, shape)


class _GivenHidden(nn.Module):
    """A body that returns the hidden states it is given."""

    def forward(self, input_ids: None = None, *, inputs_embeds: Tensor, **_: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)


class _Unfit(Exception):
    """What an attention layer asks for that radixrt's attention cannot give."""


class _Watcher:
    """Stands in for a ForwardContext and records the attention calls of one pass."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.shapes: set[tuple[int, int]] = set()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, sliding_window: int | None = None) -> Tensor:
        if k.shape != v.shape or q.shape[-1] != k.shape[-1] or q.shape[1] % k.shape[1]:
            raise _Unfit(f"its heads differ: q {list(q.shape[1:])}, k {list(k.shape[1:])}, v {list(v.shape[1:])}")
        self.layers.append(layer)
        self.shapes.add((k.shape[1], k.shape[2]))
        return torch.zeros_like(q)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    radixrt_context: Attends,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """Attend from query [1, heads, T, head_dim]; the signature is transformers'.  Returns [1, T, heads, head_dim]."""
    if attention_mask is not None:
        raise _Unfit("it makes an attention mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise _Unfit("its attention is not causal")
    for name, value_asked in asked.items():
        if (isinstance(value_asked, Tensor) and name not in _POSITIONAL) or (name == "softcap" and value_asked is not None):
            raise _Unfit(f"its attention needs {name}")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise _Unfit("its attention layers are not numbered")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    return radixrt_context.attend(layer, q, k, v, scale=scale, sliding_window=sliding_window)[None], None


def _hidden(body: nn.Module, input_ids: Tensor, positions: Tensor, context: Attends) -> Tensor:
    output = body(input_ids=input_ids[None], position_ids=positions[None], use_cache=False, radixrt_context=context)
    hidden: Tensor = output.last_hidden_state
    return hidden[0]


def _watch(model: Any, name: str) -> tuple[int, int, int]:
    """Run the unfilled model on two tokens and return K/V heads, head dimension and number of layers."""
    watcher = _Watcher()
    tokens = torch.arange(2, device=model.device)
    try:
        _hidden(model.base_model, tokens, tokens, watcher)
        if sorted(watcher.layers) != list(range(model.config.num_hidden_layers)):
            raise _Unfit("not every layer attends through transformers' attention interface")
        if len(watcher.shapes) != 1:
            raise _Unfit("its layers have key/value heads of different shapes")
        if set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
            raise _Unfit("it has layers that are neither full nor sliding attention")
    except (_Unfit, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"radixrt cannot run {name!r}: {_first_line(error)}") from error
    num_kv_heads, head_dim = watcher.shapes.pop()
    return num_kv_heads, head_dim, len(watcher.layers)


def _hugging_face_config(config: Mapping[str, Any]) -> Any:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise ConfigError(f"transformers has no model {model_type!r}{nearest(str(model_type), transformers.CONFIG_MAPPING)}")
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{model_type!r} is an encoder-decoder model; only decoders are supported")
    # auto_map names code in the model folder; without it only transformers' own classes remain.
    values = {key: value for key, value in config.items() if key not in ("auto_map", "model_type") and not key.startswith("_")}
    try:
        return transformers.AutoConfig.for_model(model_type, **values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"transformers does not accept the config of {model_type!r}: {_first_line(error)}") from error


def _distinct(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor under its first name, and the other names of tied tensors with their first."""
    first: dict[tuple[int, torch.Size], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        known = first.setdefault((tensor.data_ptr(), tensor.shape), name)
        if known != name:
            tied[name] = known
    return {name: tensors[name] for name in first.values()}, tied


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:300]
