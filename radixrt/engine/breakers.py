"""DRY's sequence breakers, from text to tokens."""

from __future__ import annotations

import functools

import numpy as np

from radixrt.errors import RequestError
from radixrt.samplers import Breakers
from radixrt.text.tokenizer import Tokenizer

# Lists of breakers that are remembered; clients send the same ones with every request.
KEPT = 64


class BreakerTable:
    """What breakers are in the tokens of one vocabulary; safe to use from several threads.

    A token is a breaker when its text holds one; a breaker of more than one token is one where it is spelled as the tokenizer
    spells it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.resolve = functools.lru_cache(maxsize=KEPT)(self._resolve)

    def _resolve(self, texts: tuple[str, ...]) -> Breakers:
        """Return the tokens of breakers.  Raises RequestError for lone surrogates."""
        try:
            needles = [text.encode() for text in texts]
        except UnicodeEncodeError:
            name = "dry_sequence_breakers"
            raise RequestError(f"{name} holds lone surrogates.", param=name, code="invalid_value") from None
        holds = np.array([any(needle in spelled for needle in needles) for spelled in self._spellings], dtype=bool)
        cut = (tuple(self._tokenizer.encode(text, add_special_tokens=False, allow_special=False)) for text in texts)
        return Breakers(np.packbits(holds).tobytes(), tuple(tokens for tokens in cut if len(tokens) > 1))

    @functools.cached_property
    def _spellings(self) -> list[bytes]:
        tokenizer = self._tokenizer
        return [b"" if tokenizer.is_special(token) else tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
