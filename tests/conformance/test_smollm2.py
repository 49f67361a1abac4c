"""The default model on its real weights, against transformers on the same file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers
from ragged import Sequences
from torch import Tensor
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from radixrt.config import ModelConfig
from radixrt.runner.loader import LoadedModel, load_model
from radixrt.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.model

NUM_NEW = 64
# Two float32 computations in different orders may choose differently when the best two logits are closer than this.
TIE = 1e-3
PROMPTS = """The capital of France is
Once upon a time, in a small village by the sea,
def fibonacci(n):
Water boils at a temperature of
The three primary colours are
Dear Sir or Madam,
1, 1, 2, 3, 5, 8,
To make a good cup of tea, first
The speed of light is
import numpy as np
In 1969, humans first
She opened the door and saw
The opposite of hot is
SELECT name FROM users WHERE
A haiku about autumn:
The largest planet in our solar system
Il était une fois
{"name": "Ada", "age":
My favourite book is
Photosynthesis is the process by which
Roses are red,
The quick brown fox
def add(a, b):
The mitochondria is
If it rains tomorrow,
Ingredients: flour, sugar, eggs
Shakespeare wrote
How do magnets work?
The square root of 144 is
Der schnelle braune Fuchs
for i in range(10):
Breaking news:
The history of the Roman Empire begins
A man walks into a bar and
<html><head><title>
The best way to learn a language is
Gravity is a force that
Q: What is the meaning of life? A:
Chapter 1
The cat sat on
Albert Einstein was born
Machine learning is
We the People of the United States,
To be, or not to be,
The first step in solving a problem is
class Dog:
Monday, Tuesday, Wednesday,
In conclusion,
The ocean covers about
Thank you for your letter""".splitlines()


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ModelConfig(device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def reference(loaded: LoadedModel) -> Iterator[transformers.PreTrainedModel]:
    """SmolLM2-135M by its published config, with the tensors that transformers itself reads from the GGUF file."""
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(loaded.files.weights[0]), return_tensors=True, model_to_load=model)["tensors"]
    unmatched = model.load_state_dict(tensors, strict=False)
    assert (unmatched.missing_keys, unmatched.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    tokenizer = load_tokenizer(loaded.files.tokenizer)
    assert len(PROMPTS) == 50
    return [tokenizer.encode(prompt) for prompt in PROMPTS]


def reference_logits(model: transformers.PreTrainedModel, rows: list[list[int]]) -> list[Tensor]:
    """Logits of each row; rows are padded on the right, where causal attention does not see it."""
    longest = max(map(len, rows))
    with torch.inference_mode():
        logits = model(torch.tensor([row + [0] * (longest - len(row)) for row in rows])).logits
    return [logits[index, : len(row)] for index, row in enumerate(rows)]


def test_shape_is_read_from_the_file(loaded: LoadedModel) -> None:
    shape = loaded.shape
    assert (shape.vocab_size, shape.context_length, shape.num_layers) == (49152, 8192, 30)
    assert (shape.num_kv_heads, shape.head_dim, shape.eos_token_ids, shape.bos_token_id) == (3, 64, (2,), 1)


def test_logits(loaded: LoadedModel, reference: transformers.PreTrainedModel, prompts: list[list[int]]) -> None:
    tokens = [token for prompt in prompts[:20] for token in prompt]
    (ours,) = Sequences(loaded.model).extend({0: tokens})
    (theirs,) = reference_logits(reference, [tokens])
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0.0)


def test_logits_of_a_chunked_prompt(loaded: LoadedModel, reference: transformers.PreTrainedModel, prompts: list[list[int]]) -> None:
    # Other shapes, other summation orders: the bound is relative to logits that reach 30.
    tokens = [token for prompt in prompts[:12] for token in prompt]
    sequences = Sequences(loaded.model)
    ours = torch.cat([sequences.extend({0: chunk})[0] for chunk in (tokens[:30], tokens[30:31], tokens[31:])])
    (theirs,) = reference_logits(reference, [tokens])
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)


def test_greedy_text_of_fifty_prompts(loaded: LoadedModel, reference: transformers.PreTrainedModel, prompts: list[list[int]]) -> None:
    """Every token we choose is the one transformers chooses after the same tokens, which makes the texts equal by induction."""
    sequences, chosen = Sequences(loaded.model, num_slots=8192), [list[int]() for _ in prompts]
    steps = dict(enumerate(prompts))
    for _ in range(NUM_NEW):
        logits = sequences.extend(steps)
        steps = {row: [int(row_logits[-1].argmax())] for row, row_logits in enumerate(logits)}
        for row, step in steps.items():
            chosen[row] += step
    texts = [prompt + answer for prompt, answer in zip(prompts, chosen, strict=True)]
    for begin in range(0, len(texts), 10):
        for index, theirs in enumerate(reference_logits(reference, texts[begin : begin + 10]), start=begin):
            predicted = theirs[len(prompts[index]) - 1 : -1]
            ours = predicted.gather(1, torch.tensor(chosen[index])[:, None])[:, 0]
            gaps = predicted.max(dim=-1).values - ours
            assert float(gaps.max()) < TIE, f"prompt {index}: another token by {float(gaps.max())} at {int(gaps.argmax())}"
