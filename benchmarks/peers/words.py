"""Prompts of exact token counts: words that are one token each wherever they stand."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from radixrt.errors import ConfigError
from radixrt.text.tokenizer import Tokenizer

NUM_WORDS = 1500
NUM_OPENERS = 100
_WORD = re.compile(rb" [a-z]{3,12}")
_LETTER = re.compile(rb"[a-z]")


class Vocabulary:
    """Openers and words of a tokenizer; an opener and n - 1 words are n tokens.

    Where a tokenizer joins nothing, as that of the toy model, letters stand for words.  Raises ConfigError for one in which
    neither words with their space nor letters are single tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.words = [text for text in _spelled(tokenizer, _WORD) if self.count(text) == 1][:NUM_WORDS]
        self.openers = [text.strip() for text in self.words if self.count(text.strip()) == 1][:NUM_OPENERS]
        if not self.openers:
            self.openers = self.words = [text for text in _spelled(tokenizer, _LETTER) if self.count(text) == 1]
        sample = "".join([*self.openers[:1], *self.words])
        if not self.words or self.count(sample) != 1 + len(self.words):
            raise ConfigError("no prompts of exact lengths can be made with this tokenizer")

    def count(self, text: str) -> int:
        """The tokens of a text, none added."""
        return len(self.tokenizer.encode(text, add_special_tokens=False, allow_special=False))


class Words:
    """Random prompts; a function of the vocabulary and the seed."""

    def __init__(self, vocabulary: Vocabulary, seed: str) -> None:
        self.random = random.Random(seed)
        self._vocabulary = vocabulary

    def prompt(self, num_tokens: int) -> str:
        """A text of exactly ``num_tokens`` tokens."""
        return self.random.choice(self._vocabulary.openers) + self.more(num_tokens - 1)

    def more(self, num_tokens: int) -> str:
        """A text of ``num_tokens`` tokens that can be written behind a prompt."""
        return "".join(self.random.choices(self._vocabulary.words, k=num_tokens))

    def fill(self, text: str, num_tokens: int) -> str:
        """Write words behind a text until it has ``num_tokens`` tokens; one that has more stays as it is."""
        return text + self.more(max(0, num_tokens - self._vocabulary.count(text)))


def _spelled(tokenizer: Tokenizer, pattern: re.Pattern[bytes]) -> Iterator[str]:
    for token in range(tokenizer.vocab_size):
        spelling = tokenizer.token_bytes(token)
        if not tokenizer.is_special(token) and pattern.fullmatch(spelling):
            yield spelling.decode()
