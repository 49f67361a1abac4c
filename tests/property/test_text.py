"""Text does not depend on how it arrives: detokenizing, stop strings and answers under every cut; merges against brute force."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from radixrt.engine.output import OutputProcessor
from radixrt.text.chat import CHATML_TEMPLATE, ChatTemplate
from radixrt.text.detokenizer import Detokenizer
from radixrt.text.gguf_tokenizer import build_gguf
from radixrt.text.stop import StopMatcher
from radixrt.text.tokenizer import Tokenizer, load_tokenizer
from radixrt.types import Finish, FinishReason, SamplingParams, TokenOutput
from radixrt.weights.resolve import resolve_model

TOY = load_tokenizer(None)
MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}  # for which SmolLM2 has no token

texts = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab \n🫠日é\u0301\u200d\ufeff")), max_size=20)
odd_bytes = st.sampled_from([0xF0, 0x9F, 0xAB, 0xA0, 0xE6, 0xC3, 0xA9, 0xED, 0xFF, 257, 258])
byte_soup = st.lists(st.one_of(st.integers(0, 258), odd_bytes), max_size=30)


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2-135m-instruct").tokenizer)


def pushes(tokenizer: Tokenizer, tokens: list[int], *, skip: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


def check_detokenizer(tokenizer: Tokenizer, tokens: list[int], *, skip: bool) -> None:
    parts = pushes(tokenizer, tokens, skip=skip)
    assert "".join(parts) == tokenizer.decode(tokens, skip_special_tokens=skip)
    shown = ""
    for i, part in enumerate(parts[:-1], start=1):
        shown += part
        # What was shown is final: all that follows is kept back only while it may yet become a character.
        whole = tokenizer.decode(tokens[:i], skip_special_tokens=skip)
        assert whole.startswith(shown)
        assert set(whole[len(shown) :]) <= {"\ufffd"}


@given(byte_soup, st.booleans())
def test_pushed_text_joins_to_the_whole_decoding(tokens: list[int], skip: bool) -> None:
    check_detokenizer(TOY, tokens, skip=skip)


@given(texts)
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    parts = pushes(TOY, TOY.encode(text, allow_special=False), skip=True)
    assert "".join(parts) == text
    assert "".join(parts).count("\ufffd") == text.count("\ufffd")
    assert parts[-1] == ""


@pytest.mark.model
@given(data=st.data())
def test_pushed_text_of_model_tokens_joins_to_the_whole_decoding(smollm2: Tokenizer, data: st.DataObject) -> None:
    odd = st.sampled_from(smollm2.encode("🫠龜🥹 café 日本\u200d", allow_special=False))
    tokens = data.draw(st.lists(st.one_of(odd, st.integers(0, smollm2.vocab_size - 1)), max_size=20))
    check_detokenizer(smollm2, tokens, skip=data.draw(st.booleans()))


@pytest.mark.model
@given(text=texts)
def test_model_tokens_give_the_text_back(smollm2: Tokenizer, text: str) -> None:
    assume(not MISSING_BYTES & set(text.encode()))
    for allow_special in (True, False):
        tokens = smollm2.encode(text, allow_special=allow_special)
        assert smollm2.decode(tokens, skip_special_tokens=False) == text


def first_match(text: str, stop: list[str]) -> tuple[int, str] | None:
    """Where the first stop string to be completed ends, and which it is: the longest of those that end there."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stop if s and s in text]
    return (min(ends)[0], min(ends)[2]) if ends else None


few = st.text("ab", max_size=4)


@given(st.lists(st.text("ab", max_size=5), max_size=8), st.lists(few, max_size=4), st.booleans())
@example(["aaa", "ab"], ["aab"], False)
@example(["xabc"], ["abcd", "bc"], False)
def test_stop_strings_do_not_depend_on_the_cut(parts: list[str], stop: list[str], untrimmed: bool) -> None:
    matcher = StopMatcher(stop, no_stop_trim=untrimmed)
    text = "".join(parts)
    expected = first_match(text, stop)
    shown, read, matched = "", "", None
    for part in parts:
        emit, matched = matcher.push(part)
        shown += emit
        read += part
        if matched is not None:
            break
        held = next(n for n in range(len(read), -1, -1) if n == 0 or any(len(s) > n and s.startswith(read[-n:]) for s in stop))
        assert matcher.held == read[len(read) - held :]
        assert shown == read[: len(read) - held]
    if expected is None:
        assert matched is None
        assert shown + matcher.flush() == text
    else:
        end, found = expected
        assert matched == found
        assert shown == text[: end if untrimmed else end - len(found)]


@given(
    st.data(),
    st.text("ab🫠", min_size=1, max_size=10),
    st.lists(st.text("ab🫠", max_size=3), max_size=3),
    st.sampled_from(["length", "eos"]),
)
def test_answer_does_not_depend_on_how_tokens_arrive(data: st.DataObject, text: str, stop: list[str], end: str) -> None:
    tokens = [*text.encode(), *([256] if end == "eos" else [])]
    finish = Finish(FinishReason.STOP, matched=256) if end == "eos" else Finish(FinishReason.LENGTH)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens)), max_size=5)) | {0, len(tokens)})
    processor = OutputProcessor(TOY)
    processor.add(1, rid="r", index=0, num_prompt=1, sampling=SamplingParams(stop=tuple(stop)), want_logprobs=False)
    events = []
    for start, stop_at in pairwise(cuts):
        event, _ = processor.push(TokenOutput(1, tokens[start:stop_at], finish if stop_at == len(tokens) else None))
        events += [event] if event is not None else []

    expected = first_match(text, stop)
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
    shown = "".join(event.text_delta for event in events)
    delivered = [token for event in events for token in event.token_ids_delta]
    if expected is None:
        assert (shown, events[-1].finish, delivered) == (text, finish, tokens)
    else:
        shown_end, found = expected
        assert shown == text[: shown_end - len(found)]
        assert events[-1].finish == Finish(FinishReason.STOP, matched=found)
        assert delivered == list(text[:shown_end].encode())
    assert events[-1].usage.completion_tokens == len(delivered)


fragments = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "<", "|>", "system\n", "\ufdd0", "é"])
spelled = st.lists(fragments, max_size=8)


@given(spelled.map("".join), st.sampled_from(["content", "parts", "system"]))
def test_user_text_never_becomes_a_control_token(text: str, place: str) -> None:
    chat = ChatTemplate(TOY, CHATML_TEMPLATE)

    def messages(content: str) -> list[dict[str, Any]]:
        part: Any = [{"type": "text", "text": content}] if place == "parts" else content
        return [{"role": "system" if place == "system" else "user", "content": part}, {"role": "user", "content": content}]

    tokens, plain = chat.encode(messages(text)), chat.encode(messages("x"))
    assert [token for token in tokens if TOY.is_special(token)] == [token for token in plain if TOY.is_special(token)]
    assert TOY.decode(tokens, skip_special_tokens=False) == TOY.decode(plain, skip_special_tokens=False).replace("\nx<", f"\n{text}<")


PIECES = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "▁▁", "aa", "aaa", "ca", "c▁"]


def best_score_first(text: str, score: dict[str, float]) -> list[str]:
    """SentencePiece's BPE as defined: join the neighbours whose union scores best, the leftmost of equals, until none is left."""
    pieces = list(text)
    while True:
        joined = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in score]
        if not joined:
            return pieces
        i = min(joined)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def space_marked(ranking: list[str]) -> tuple[Tokenizer, dict[str, float]]:
    score = {piece: -float(rank) for rank, piece in enumerate(ranking)}
    tokens = sorted(ranking)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", *tokens],
        "tokenizer.ggml.token_type": [2] + [1] * len(tokens),
        "tokenizer.ggml.scores": [0.0, *(score[token] for token in tokens)],
    }
    return build_gguf(metadata, name="test"), score


@settings(max_examples=60)
@given(st.permutations(PIECES), st.booleans(), st.lists(st.text("abc ", min_size=1, max_size=12), min_size=1, max_size=5))
def test_space_marked_merges_equal_the_definition(ranking: list[str], spanning: bool, samples: list[str]) -> None:
    """``c▁`` spans the start of a word, so with it words must not be cut apart first."""
    tokenizer, score = space_marked([piece for piece in ranking if spanning or piece != "c▁"])
    for text in samples:
        pieces = best_score_first("▁" + text.replace(" ", "▁"), score)
        assert [tokenizer.token_bytes(token) for token in tokenizer.encode(text)] == [piece.replace("▁", " ").encode() for piece in pieces]
