"""Small random models, saved by transformers and loaded by us, against transformers' own logits and greedy text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conformance_models import BASE, OTHER, OURS, PROMPT, VOCAB, save
from ragged import Sequences
from torch import Tensor

from radixrt.config import ModelConfig
from radixrt.errors import ConfigError
from radixrt.models.llama import Llama
from radixrt.models.transformers_model import TransformersModel
from radixrt.runner.loader import LoadedModel, load_model

THEIRS: dict[str, transformers.PreTrainedConfig] = {
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=0
    ),
    "gpt-neox": transformers.GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=256, rotary_pct=0.5, bos_token_id=1, eos_token_id=0,
    ),
    "olmo2": transformers.Olmo2Config(**BASE),
    "gemma2": transformers.Gemma2Config(
        **BASE, head_dim=12, sliding_window=6, attn_logit_softcapping=None, final_logit_softcapping=5.0
    ),
    "cohere": transformers.CohereConfig(**BASE, logit_scale=0.2),
}  # fmt: skip


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_model(ModelConfig(model_path=str(folder), device="cpu", dtype="float32", **options))


@pytest.fixture(scope="module", params=[*OURS, *THEIRS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[transformers.PreTrainedModel, LoadedModel]:
    folder = tmp_path_factory.mktemp(request.param)
    reference = save({**OURS, **THEIRS}[request.param], folder)
    loaded = load(folder)
    assert isinstance(loaded.model, Llama if request.param in OURS else TransformersModel)
    return reference, loaded


def logits_of(reference: transformers.PreTrainedModel, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([tokens])).logits[0].float()
    return logits


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0.0)


def test_whole_prompt(pair: tuple[transformers.PreTrainedModel, LoadedModel]) -> None:
    reference, loaded = pair
    (ours,) = Sequences(loaded.model).extend({0: PROMPT})
    assert ours.dtype == torch.float32
    assert_same(ours, logits_of(reference, PROMPT))


def test_ragged_rows_chunks_and_a_shared_prefix(pair: tuple[transformers.PreTrainedModel, LoadedModel]) -> None:
    reference, loaded = pair
    theirs, other = logits_of(reference, PROMPT), logits_of(reference, OTHER)
    branch = PROMPT[:9] + OTHER
    sequences = Sequences(loaded.model)
    first, short = sequences.extend({0: PROMPT[:10], 1: OTHER[:6]})
    second, last = sequences.extend({0: PROMPT[10:15], 1: OTHER[6:]})
    sequences.share(0, 2, 9)
    third, hit = sequences.extend({0: PROMPT[15:], 2: OTHER})
    assert_same(torch.cat((first, second, third)), theirs)
    assert_same(torch.cat((short, last)), other)
    assert_same(hit, logits_of(reference, branch)[9:])


def test_greedy_text(pair: tuple[transformers.PreTrainedModel, LoadedModel]) -> None:
    reference, loaded = pair
    theirs = reference.generate(
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=16, do_sample=False, eos_token_id=-1,
        pad_token_id=0,
    )[0, len(PROMPT) :].tolist()  # fmt: skip
    sequences, ours, step = Sequences(loaded.model), list[int](), PROMPT
    for _ in range(16):
        (logits,) = sequences.extend({0: step})
        step = [int(logits[-1].argmax())]
        ours += step
    assert ours == theirs


def test_shape_is_what_the_config_says(pair: tuple[transformers.PreTrainedModel, LoadedModel]) -> None:
    reference, loaded = pair
    config = reference.config
    assert loaded.shape.vocab_size == VOCAB
    assert loaded.shape.num_layers == config.num_hidden_layers
    assert loaded.shape.eos_token_ids == (0,)
    assert loaded.shape.bos_token_id == 1


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_transformers_code_and_ours_agree_on_one_folder(name: str, tmp_path: Path) -> None:
    save(OURS[name], tmp_path)
    ours, theirs = load(tmp_path, model_impl="radixrt"), load(tmp_path, model_impl="transformers")
    assert (type(ours.model), type(theirs.model)) == (Llama, TransformersModel)
    (left,), (right,) = (Sequences(loaded.model).extend({0: PROMPT}) for loaded in (ours, theirs))
    assert_same(left, right)


def test_shards_load_like_one_file(tmp_path: Path) -> None:
    reference = save(OURS["llama"], tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    seen: list[tuple[int, int, str]] = []
    loaded = load_model(
        ModelConfig(model_path=str(tmp_path), device="cpu", dtype="float32"), progress=lambda *step: seen.append(step)
    )
    assert_same(Sequences(loaded.model).extend({0: PROMPT})[0], logits_of(reference, PROMPT))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1] > 0


def test_body_only_checkpoint_loads(tmp_path: Path) -> None:
    reference = save(THEIRS["gpt2"], tmp_path)
    config = (tmp_path / "config.json").read_text()
    reference.base_model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(config)
    assert_same(Sequences(load(tmp_path).model).extend({0: PROMPT})[0], logits_of(reference, PROMPT))


def test_dummy_weights_need_no_files_and_depend_on_the_seed(tmp_path: Path) -> None:
    OURS["qwen3"].architectures = ["Qwen3ForCausalLM"]
    OURS["qwen3"].save_pretrained(tmp_path)
    first, again, other = (load(tmp_path, load_format="dummy", random_seed=seed) for seed in (1, 1, 2))
    logits = [Sequences(loaded.model).extend({0: PROMPT})[0] for loaded in (first, again, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert torch.isfinite(logits[0]).all()


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": 64}, "shape"),
        ({"num_hidden_layers": 4}, "missing: model.layers.3"),
        ({"num_hidden_layers": 2}, "not part of the model: model.layers.2"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"rope_parameters": {"rope_type": "strange"}}, "strange"),
        ({"hidden_act": "__import__"}, "activation"),
    ],
)
def test_config_that_does_not_fit_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    save(OURS["llama"], tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=complaint):
        load(tmp_path)


def test_context_length_may_be_shortened_and_not_exceeded(tmp_path: Path) -> None:
    save(OURS["llama"], tmp_path)
    assert load(tmp_path, context_length=100).shape.context_length == 100
    with pytest.raises(ConfigError, match="257 is more than the 256"):
        load(tmp_path, context_length=257)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (transformers.T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2), "encoder-decoder"),
        (transformers.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4), "cannot run 'mamba'"),
        (transformers.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2), "cannot run 'bloom'"),
        (THEIRS["gemma2"].__class__(**{**BASE, "head_dim": 12, "attn_logit_softcapping": 50.0}), "softcap"),
    ],
)
def test_models_that_cannot_run_are_refused_with_a_reason(
    config: transformers.PreTrainedConfig, complaint: str, tmp_path: Path
) -> None:
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        load(tmp_path, load_format="dummy")


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    save(THEIRS["olmo2"], tmp_path)
    (tmp_path / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\nclass EvilConfig: pass\n")
    edit_config(tmp_path, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.EvilConfig"})
    load(tmp_path)
    edit_config(tmp_path, model_type="evil", architectures=["Evil"])
    with pytest.raises(ConfigError, match="transformers has no model 'evil'"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()
