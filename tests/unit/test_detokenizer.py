"""Text comes in whole characters, as soon as they are whole, and never changes afterwards."""

from __future__ import annotations

import pytest

from radixrt.text.detokenizer import Detokenizer
from radixrt.text.gguf_tokenizer import build_gguf
from radixrt.text.tokenizer import load_tokenizer

TOY = load_tokenizer(None)


@pytest.mark.parametrize(
    ("tokens", "pushes", "rest"),
    [
        (b"abc", ["a", "b", "c"], ""),
        ("é".encode(), ["", "é"], ""),
        ("🫠".encode(), ["", "", "", "🫠"], ""),
        (b"\xf0\x9f", ["", ""], "\ufffd"),
        (b"\xf0\x9fa", ["", "", "\ufffda"], ""),
        (b"\xffa", ["\ufffd", "a"], ""),
        (b"\x80\x80", ["\ufffd", "\ufffd"], ""),
        (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd"], ""),  # a surrogate is no character
        (b"\x00", ["\x00"], ""),
        (b"\xef\xbb\xbfa", ["", "", "\ufeff", "a"], ""),  # a byte-order mark is text like any other
        ([104, 258, 105], ["h", "", "i"], ""),
        ([0xC3, 258, 0xA9], ["", "", "é"], ""),  # a skipped token is not there at all
        ([9999, 104], ["", "h"], ""),
    ],
)
def test_push_returns_only_what_is_final(tokens: bytes | list[int], pushes: list[str], rest: str) -> None:
    detokenizer = Detokenizer(TOY)
    assert [detokenizer.push(token) for token in tokens] == pushes
    assert detokenizer.flush() == rest


def test_control_tokens_show_their_spelling_when_not_skipped() -> None:
    detokenizer = Detokenizer(TOY, skip_special_tokens=False)
    assert [detokenizer.push(token) for token in (104, 0xC3, 258, 257)] == ["h", "", "\ufffd<|im_end|>", "<|im_start|>"]


def test_flush_leaves_nothing_behind() -> None:
    detokenizer = Detokenizer(TOY)
    detokenizer.push(0xF0)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert detokenizer.push(104) == "h"


def test_answer_keeps_the_space_it_starts_with() -> None:
    """An answer continues its prompt: only the text of a whole prompt drops the space its tokenizer wrote."""
    pieces = ["<unk>", "▁", "▁Paris"]
    tokenizer = build_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [2, 1, 1],
            "tokenizer.ggml.scores": [0.0, -1.0, -2.0],
        },
        name="test",
    )
    assert tokenizer.decode([2, 2]) == "Paris Paris"
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in (2, 1, 2)] == [" Paris", " ", " Paris"]
