"""The tokens of a model as grammars see them: the bytes each stands for, which ids end a text, and how a text is cut.

Made once for each model, and shared by every grammar; it knows no tokenizer, only what one told it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np

from radixrt.grammar.bitmask import allow_only
from radixrt_kernels.ops import TokenTrie

SHORT = 6
"""Of texts of at most so many bytes it is kept what is around them: they are found between values, over and over."""
MAX_AROUND = 4096


class Vocabulary:
    """What grammars know of the tokens of a model.

    Args:
        token_bytes: the exact bytes of each id; None (or nothing) for control tokens and unused ids, which no mask allows.
        end_ids: ids that end a text; masks allow all of them exactly where a grammar's text may end.
        encode: cuts a text into ids, without begin and end tokens; spellings of control tokens are ordinary text.
        size: the width of the model's logits, which may be more than the number of tokens.

    Raises ValueError for ids outside ``size``.
    """

    def __init__(
        self, token_bytes: Sequence[bytes | None], end_ids: Iterable[int], encode: Callable[[str], list[int]], size: int | None = None
    ) -> None:
        self.size = len(token_bytes) if size is None else size
        self.num_words = (self.size + 31) // 32
        """The length of a packed mask row."""
        self.end_ids = tuple(sorted(set(end_ids)))
        self.token_bytes = tuple(spelled or None for spelled in token_bytes)
        self.encode = encode
        self._around: dict[bytes, tuple[list[int], list[int]]] = {}
        if len(self.token_bytes) > self.size or not all(0 <= token < self.size for token in self.end_ids):
            raise ValueError(f"{len(self.token_bytes)} tokens that end a text with {self.end_ids} do not fit {self.size} logits")

    def bytes_of(self, token: int) -> bytes | None:
        """Return the bytes that a token adds to a text; None for ids that no text holds: control, end and unused ids."""
        return self._text_bytes[token] if 0 <= token < len(self._text_bytes) else None

    def is_end(self, token: int) -> bool:
        """Tell whether a token ends a text."""
        return token in self._end_set

    def spell(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes that tokens add to a text."""
        return b"".join(self.bytes_of(token) or b"" for token in tokens)

    @cached_property
    def end_mask(self) -> np.ndarray:
        """A packed row that allows the end tokens alone; not to be written to."""
        row = np.zeros(self.num_words, dtype=np.int32)
        allow_only(row, list(self.end_ids))
        row.setflags(write=False)
        return row

    @cached_property
    def token_of(self) -> dict[bytes, int]:
        """The token of each spelling, the lowest id where there are several."""
        return {spelled: token for token, spelled in reversed(list(enumerate(self._text_bytes))) if spelled is not None}

    def extensions(self, prefix: bytes) -> np.ndarray:
        """Return the ids, int64, of the text tokens that start with a prefix and are longer."""
        spellings, tokens = self._in_order
        if len(prefix) > 1 and len(prefix) >= self.lengths_of.get(prefix[:2], (1,))[0]:
            return tokens[:0]
        first = bisect_right(spellings, prefix)
        head = prefix.rstrip(b"\xff")
        last = bisect_left(spellings, head[:-1] + bytes((head[-1] + 1,)), first) if head else len(spellings)
        return tokens[first:last]

    def starts(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that a text starts with, the longest first; of those spelled alike the lowest id."""
        for length in self.lengths_of.get(text[:2], (1,)):
            if length <= len(text) and (token := self.token_of.get(text[:length])) is not None:
                yield token

    def around(self, text: bytes) -> tuple[list[int], list[int]]:
        """Return all tokens that a text starts with, those spelled alike as well, and its ``extensions``; neither is to be changed."""
        known = self._around.get(text)
        if known is None:
            tokens = [twin for token in self.starts(text) for twin in self._twins.get(token, (token,))]
            known = tokens, self.extensions(text).tolist()
            if len(text) <= SHORT and len(self._around) < MAX_AROUND:
                self._around[text] = known
        return known

    @cached_property
    def trie(self) -> TokenTrie:
        """The text tokens, to be walked with an automaton over bytes."""
        spellings, tokens = self._in_order
        ends = np.cumsum([len(spelled) for spelled in spellings], dtype=np.int32)
        return TokenTrie(b"".join(spellings), ends, tokens.astype(np.int32))

    @cached_property
    def lengths_of(self) -> dict[bytes, tuple[int, ...]]:
        """By its first two bytes, how long a token may be: longest first, one byte always among them."""
        lengths: dict[bytes, set[int]] = {}
        for spelled in self.token_of:
            lengths.setdefault(spelled[:2], {1}).add(len(spelled))
        return {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}

    @cached_property
    def max_token_bytes(self) -> int:
        """The length of the longest token."""
        return max(map(len, self.token_of), default=0)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that masks depend on; equal vocabularies have equal ones."""
        digest = sha256(repr((self.size, self.end_ids)).encode())
        for spelled in self.token_bytes:
            digest.update(b"-" if spelled is None else b"%d:%b" % (len(spelled), spelled))
        return digest.hexdigest()

    @cached_property
    def _in_order(self) -> tuple[list[bytes], np.ndarray]:
        """Text tokens in the order of their spellings."""
        pairs = sorted((spelled, token) for token, spelled in enumerate(self._text_bytes) if spelled is not None)
        return [spelled for spelled, _ in pairs], np.array([token for _, token in pairs], dtype=np.int64)

    @cached_property
    def _twins(self) -> dict[int, tuple[int, ...]]:
        """By its lowest id, the ids of a spelling that has several."""
        ids: dict[bytes, list[int]] = {}
        for token, spelled in enumerate(self._text_bytes):
            if spelled is not None and self.token_of[spelled] != token:
                ids.setdefault(spelled, []).append(token)
        return {self.token_of[spelled]: (self.token_of[spelled], *others) for spelled, others in ids.items()}

    @cached_property
    def _end_set(self) -> frozenset[int]:
        return frozenset(self.end_ids)

    @cached_property
    def _text_bytes(self) -> tuple[bytes | None, ...]:
        return tuple(None if token in self._end_set else spelled for token, spelled in enumerate(self.token_bytes))


def whole_characters(text: bytes, limit: int) -> bytes:
    """Return at most ``limit`` bytes of a text that starts at a character, cut where one ends."""
    cut = text[:limit]
    for back in range(1, min(4, len(cut)) + 1):
        byte = cut[-back]
        if byte & 0xC0 != 0x80:  # the last character starts here
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return cut if length <= back else cut[:-back]
    return cut
