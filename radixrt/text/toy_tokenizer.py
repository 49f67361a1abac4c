"""The tokenizer of the toy model: a byte is a token, plus three control tokens; results can be checked by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radixrt.text.library_tokenizer import require_unicode

_SPECIAL_TOKENS = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
_SPELLINGS = re.compile("(" + "|".join(re.escape(spelling) for spelling in _SPECIAL_TOKENS) + ")")


class ToyTokenizer:
    """Implements ``Tokenizer`` over the bytes of UTF-8."""

    vocab_size = 256 + len(_SPECIAL_TOKENS)
    special_tokens = _SPECIAL_TOKENS
    eos_token_ids = (256, 258)
    bos_token: str | None = None
    eos_token: str | None = "<|endoftext|>"
    chat_template: str | None = None
    space_prefix = False

    def __init__(self) -> None:
        self._pieces = [bytes([byte]) for byte in range(256)] + [spelling.encode() for spelling in _SPECIAL_TOKENS]

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        require_unicode(text)
        if not allow_special:
            return list(text.encode())
        tokens: list[int] = []
        for i, part in enumerate(_SPELLINGS.split(text)):
            tokens.extend([_SPECIAL_TOKENS[part]] if i % 2 else part.encode())
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.vocab_size else b""

    def is_special(self, token: int) -> bool:
        return 256 <= token < self.vocab_size

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        shown = (token for token in tokens if not (skip_special_tokens and self.is_special(token)))
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")
