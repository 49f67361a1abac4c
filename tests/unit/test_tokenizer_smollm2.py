"""The default model's tokenizer: ids as ``transformers`` gives them, control tokens, speed on long texts."""

from __future__ import annotations

import time

import pytest

from radixrt.text.detokenizer import Detokenizer
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.weights.resolve import resolve_model

pytestmark = pytest.mark.model

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2-135m-instruct").tokenizer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        (SYSTEM, [2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]),
        ("\n", [198]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("<|im_start|>user", [1, 4093]),
    ],
)
def test_ids_are_those_of_the_original_tokenizer(tokenizer: Tokenizer, text: str, expected: list[int]) -> None:
    assert tokenizer.encode(text) == expected


def test_vocabulary_and_named_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.eos_token_ids == (2, 0)
    assert sorted(tokenizer.special_tokens.values()) == list(range(17))
    assert not tokenizer.space_prefix


def test_spelled_control_token_is_one_id_or_seven_plain_ones(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_end|>") == [2]
    assert len(tokenizer.encode("<|im_end|>", allow_special=False)) == 7


@pytest.mark.parametrize("emoji", ["\U0001fae0", "\U0001f979", "👩\u200d🚀"])
def test_character_of_several_tokens_comes_whole(tokenizer: Tokenizer, emoji: str) -> None:
    tokens = tokenizer.encode(emoji)
    assert len(tokens) > 1
    detokenizer = Detokenizer(tokenizer)
    pushes = [detokenizer.push(token) for token in tokens]
    assert pushes[0] == ""
    assert "".join(pushes) == emoji
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("unit", ["The year was long. ", "x", " ", "\U0001fae0", "\n", "<|im_end|>"])
def test_long_text_is_encoded_in_seconds(tokenizer: Tokenizer, unit: str) -> None:
    text = (unit * 200_000)[:200_000]
    started = time.perf_counter()
    tokens = tokenizer.encode(text, allow_special=False)
    assert time.perf_counter() - started < 10  # a fraction of a second; a quadratic encoder would need an hour
    assert tokenizer.decode(tokens) == text
