"""What a vocabulary tells of its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixrt.grammar.vocabulary import Vocabulary

TOKENS = [b"a", b"ab", b"", b"</s>", None, b"a"]


def vocabulary(tokens: list[bytes | None] = TOKENS, end_ids: tuple[int, ...] = (3, 40), size: int = 41) -> Vocabulary:
    return Vocabulary(tokens, end_ids, lambda text: [0] * len(text), size)


def test_only_text_has_bytes() -> None:
    assert [vocabulary().bytes_of(token) for token in range(-1, 8)] == [None, b"a", b"ab", None, None, None, b"a", None, None]


def test_end_tokens_fill_the_end_mask_alone() -> None:
    bits = np.unpackbits(vocabulary().end_mask.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [3, 40] and len(bits) == 64


def test_a_spelling_has_its_lowest_id() -> None:
    assert vocabulary().token_of == {b"a": 0, b"ab": 1}


def test_lengths_are_those_of_tokens_with_that_start() -> None:
    words = vocabulary([b"a", b"ab", b"abcd", b"b", b"bc", b"abce"], ())
    assert words.lengths_of == {b"a": (1,), b"ab": (4, 2, 1), b"b": (1,), b"bc": (2, 1)}


def test_tokens_spell_a_text() -> None:
    assert vocabulary().spell([1, 0, 3, 4, 5]) == b"abaa"


@pytest.mark.parametrize(
    "other",
    [vocabulary(size=42), vocabulary(end_ids=(3,)), vocabulary([*TOKENS[:5], b"b"]), vocabulary([b"", b"aab", *TOKENS[2:]])],
)
def test_fingerprints_tell_vocabularies_apart(other: Vocabulary) -> None:
    assert vocabulary().fingerprint == vocabulary().fingerprint != other.fingerprint


@pytest.mark.parametrize(("end_ids", "size"), [((41,), 41), ((-1,), 41), ((3,), 5)])
def test_ids_outside_the_logits_are_refused(end_ids: tuple[int, ...], size: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        vocabulary(end_ids=end_ids, size=size)


PIECES = st.sampled_from([b"\xff", b"\xff\xff", b"aa", b"a", b"aab", b"ab", b"b"])


@given(st.lists(st.binary(max_size=4) | PIECES), st.binary(max_size=2) | PIECES)
def test_extensions_are_the_longer_tokens_with_that_start(tokens: list[bytes], prefix: bytes) -> None:
    longer = {token for token, spelled in enumerate(tokens) if spelled.startswith(prefix) and len(spelled) > len(prefix)}
    assert set(vocabulary([*tokens], (), len(tokens)).extensions(prefix).tolist()) == longer


@given(st.lists(PIECES, max_size=9), st.binary(max_size=2) | PIECES | st.just(b"aabaab"))
def test_around_a_text_are_what_it_starts_with_and_what_starts_with_it(tokens: list[bytes], text: bytes) -> None:
    words = vocabulary([*tokens], (), len(tokens))
    starts = {token for token, spelled in enumerate(tokens) if text.startswith(spelled)}
    for _ in range(2):  # found, and kept
        found, longer = words.around(text)
        assert set(found) == starts and len(found) == len(starts)
        assert longer == words.extensions(text).tolist()
    assert [tokens[token] for token in words.starts(text)] == sorted({tokens[token] for token in starts}, key=len, reverse=True)
