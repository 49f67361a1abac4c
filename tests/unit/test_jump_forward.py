"""Drafts of forced text: cut with what came before, and without the tail that a longer token may take the place of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from radixrt.grammar.bitmask import allow_only
from radixrt.grammar.jump_forward import draft_tokens
from radixrt.grammar.vocabulary import Vocabulary


def longest_first(pieces: Sequence[str], text: str) -> list[int]:
    """A tokenizer that always takes the longest piece."""
    tokens = []
    while text:
        token = max((token for token, piece in enumerate(pieces) if piece and text.startswith(piece)), key=lambda token: len(pieces[token]))
        tokens.append(token)
        text = text[len(pieces[token]) :]
    return tokens


class OneOf:
    """A state of the grammar that allows exactly these texts."""

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        self._texts = [text.encode() for text in texts]
        self._vocabulary = vocabulary
        self.accepted: list[int] = []

    def _rests(self) -> list[bytes]:
        done = self._vocabulary.spell(self.accepted)
        return [text[len(done) :] for text in self._texts if text.startswith(done)]

    def accept(self, token: int) -> bool:
        spelled = self._vocabulary.bytes_of(token)
        allowed = spelled is not None and any(rest.startswith(spelled) for rest in self._rests())
        self.accepted += [token] * allowed
        return allowed

    def rollback(self, num_tokens: int) -> None:
        del self.accepted[len(self.accepted) - num_tokens :]

    def fill_mask(self, row: np.ndarray) -> None:
        spelled = self._vocabulary.token_bytes
        allow_only(row, [token for token, text in enumerate(spelled) if text and any(rest.startswith(text) for rest in self._rests())])

    def forced_bytes(self, limit: int) -> bytes:
        rests = [*self._rests(), *([b""] if b"" in self._rests() else [])]
        common = min(rests)
        while not all(rest.startswith(common) for rest in rests):
            common = common[:-1]
        return common[:limit].decode(errors="ignore").encode()


def drafted(pieces: str, texts: Sequence[str], before: str = "", *, max_tokens: int = 99, max_bytes: int = 256) -> str:
    """The pieces of the draft behind ``before``, joined by ``|``."""
    spelled = pieces.split()
    vocabulary = Vocabulary([piece.encode() for piece in spelled], (), lambda text: longest_first(spelled, text))
    state = OneOf(texts, vocabulary)
    assert all(state.accept(token) for token in longest_first(spelled, before))
    recent = list(state.accepted)
    tokens = draft_tokens(state, vocabulary, recent, max_tokens, max_bytes)
    assert state.accepted == recent
    return "|".join(spelled[token] for token in tokens)


LETTERS = 'a b c d e f { } " : é'


@pytest.mark.parametrize(
    ("pieces", "texts", "before", "draft"),
    [
        (LETTERS, ["abc"], "", "a|b|c"),
        (LETTERS, ["abc"], "a", "b|c"),
        (LETTERS, ["abc", "abd"], "", "a|b"),
        (LETTERS, ["ab", "abd"], "a", "b"),
        (LETTERS, ["ab", "cd"], "", ""),
        (LETTERS + " ab abc", ["abd", "abe"], "", "ab"),
        (LETTERS + " abc", ["abce", "abf"], "", ""),  # "abc" may take the place of "a", "b"
        (LETTERS + " abc", ["abd", "abf"], "", "a|b"),  # it may not
        (LETTERS + " bc", ["abce", "abf"], "", "a"),
        (LETTERS + ' ":', ['{"a":b', '{"a"}'], "", "{|\"|a"),
        (LETTERS + ' ":', ['{"a":b', '{"a":c'], "", '{|"|a|":'),
        (LETTERS + ' a"', ['{a"}'], "{", 'a"|}'),  # in the middle any cut will do
        (LETTERS + ' a"', ['{a"}'], "{a", '"|}'),  # the tokenizer would not stop behind "a": the forced text alone
        (LETTERS, ["aé"], "", "a|é"),
    ],
)  # fmt: skip
def test_draft_is_what_a_tokenizer_would_not_change(pieces: str, texts: list[str], before: str, draft: str) -> None:
    assert drafted(pieces, texts, before) == draft


@pytest.mark.parametrize("max_tokens", range(5))
def test_draft_is_cut_at_its_bound(max_tokens: int) -> None:
    assert drafted(LETTERS, ["abcd"], max_tokens=max_tokens) == "a|b|c|d"[: max(2 * max_tokens - 1, 0)]


@pytest.mark.parametrize(("max_bytes", "draft"), [(0, ""), (1, "a"), (2, "a"), (3, "a|é"), (4, "a|é|b")])
def test_forced_text_is_cut_at_a_character(max_bytes: int, draft: str) -> None:
    assert drafted(LETTERS, ["aéb"], max_bytes=max_bytes) == draft


def test_text_that_the_tokenizer_changes_is_not_drafted() -> None:
    vocabulary = Vocabulary([b"a", b"b", b" "], (), lambda text: longest_first(["a", "b", " "], " " + text.replace("b", "a")))
    for texts, draft in ((["ba"], []), (["aa"], [0, 0])):
        assert draft_tokens(OneOf(texts, vocabulary), vocabulary, [], 9) == draft
