"""A grammar that can be checked by hand: a finite set of texts, over any vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from radixrt.grammar.bitmask import allow_only
from radixrt.grammar.jump_forward import draft_tokens
from radixrt.grammar.vocabulary import Vocabulary


class TextGrammar:
    """Exactly these texts."""

    memory_bytes = 1000

    def __init__(self, texts: Iterable[str], vocabulary: Vocabulary) -> None:
        self.texts = sorted({text.encode() for text in texts})
        self.vocabulary = vocabulary
        self._known: dict[bytes, tuple[list[bytes], list[int]]] = {}

    def after(self, so_far: bytes) -> tuple[list[bytes], list[int]]:
        """How the texts that start so go on, and the tokens that may come next."""
        if so_far not in self._known:
            words = self.vocabulary
            rests = [text[len(so_far) :] for text in self.texts if text.startswith(so_far)]
            heads = {rest[:size] for rest in rests for size in range(1, words.max_token_bytes + 1)}
            fitting = sorted(words.token_of[head] for head in heads if head in words.token_of)
            self._known[so_far] = rests, [*fitting, *(words.end_ids if b"" in rests else ())]
        return self._known[so_far]

    @property
    def min_tokens(self) -> int:
        return min(map(len, self.texts))

    def new_state(self) -> TextState:
        return TextState(self, [])


class TextState:
    """A ``GrammarState``: the tokens so far, and nothing else."""

    def __init__(self, grammar: TextGrammar, tokens: Sequence[int]) -> None:
        self._grammar = grammar
        self._words = grammar.vocabulary
        self.tokens = list(tokens)

    @property
    def _rests(self) -> list[bytes]:
        return self._grammar.after(self._words.spell(self.tokens))[0]

    def _allowed(self) -> list[int]:
        return [] if self._ended else self._grammar.after(self._words.spell(self.tokens))[1]

    @property
    def _ended(self) -> bool:
        return bool(self.tokens) and self._words.is_end(self.tokens[-1])

    def accept(self, token: int) -> bool:
        if token not in self._allowed():
            return False
        self.tokens.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self.tokens)
        del self.tokens[len(self.tokens) - num_tokens :]

    def fill_mask(self, row: np.ndarray) -> None:
        allow_only(row, self._allowed())

    def draft(self, max_tokens: int) -> Sequence[int]:
        return draft_tokens(self, self._words, self.tokens[-4:], max_tokens)

    def is_finished(self) -> bool:
        return self._ended or self._rests == [b""]

    def is_accepting(self) -> bool:
        return self._ended or b"" in self._rests

    def fork(self) -> TextState:
        return TextState(self._grammar, self.tokens)

    def forced_bytes(self, limit: int) -> bytes:
        if self._ended:
            return b""
        first, last = min(self._rests), max(self._rests)
        same = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), min(len(first), len(last)))
        return first[: min(same, limit)]

    def close(self, max_tokens: int) -> list[int] | None:
        shortest = min(self._rests, key=len)
        return [self._words.token_of[bytes([byte])] for byte in shortest] if len(shortest) <= max_tokens else None
