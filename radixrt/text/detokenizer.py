"""Turns a stream of tokens into text: one incremental UTF-8 decoder per answer, over bytes, never over slices of ids."""

from __future__ import annotations

import codecs

from radixrt.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one answer, token by token; what it has returned never changes.

    ``push`` returns only whole characters: bytes of a character in the making are kept back, bytes that can no longer
    become one are U+FFFD.  The answer continues a prompt, so a leading space is text.  All that was returned, joined,
    is the text of the tokens decoded at once.

    Args:
        skip_special_tokens: control tokens have no text.
        spaces_between_special_tokens: accepted for SGLang's sake; like there, it changes nothing for the kinds of
            vocabulary radixrt reads, whose pieces carry their own spaces.
    """

    __slots__ = ("_decoder", "_skip_special_tokens", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = _UTF8(errors="replace")

    def push(self, token: int) -> str:
        """Return the text that became final with this token."""
        if self._skip_special_tokens and self._tokenizer.is_special(token):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """Return what an unfinished character leaves at the end of the answer: U+FFFD or nothing."""
        return self._decoder.decode(b"", True)
