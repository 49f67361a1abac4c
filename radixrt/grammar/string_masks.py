"""Masks inside a JSON string of which only the length matters, put together from parts that a vocabulary has once.

An engine walks most of the vocabulary to find the tokens that are short enough, and does so again at each character.  Here they
are sorted once by how many characters of a string they take: those that stay inside a string, and those that close it, which
depend on what may follow.
"""

from __future__ import annotations

import codecs
import re
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.grammar.vocabulary import Vocabulary

MAX_CLOSING = 64
"""How many sets of what may follow strings are kept."""
_BEHIND = b",]} \t\r\n"
_SPECIAL = re.compile(rb'["\\\x00-\x1F\x7F]')


class StringTokens:
    """The tokens of a vocabulary that may come inside a JSON string, between two characters.

    ``escapes``: the characters that may follow a backslash, each of which makes one character.
    """

    def __init__(self, vocabulary: Vocabulary, escapes: str) -> None:
        inside: list[tuple[int, int]] = []
        closers: list[tuple[int, int, bytes]] = []
        for token in range(vocabulary.size):
            spelled = vocabulary.bytes_of(token)
            match None if spelled is None else read_characters(spelled, escapes):
                case int() as length:
                    inside.append((token, length))
                case (length, rest):
                    closers.append((token, length, rest))
        tokens, lengths = np.array(inside, dtype=np.int64).reshape(-1, 2).T
        self.longest = int(lengths.max(initial=0))
        """Characters of the longest token that stays inside."""
        self._inside = np.zeros((self.longest + 1, vocabulary.num_words), dtype=np.int32)
        np.bitwise_or.at(self._inside.view(np.uint32), (lengths, tokens >> 5), _bits(tokens))
        np.bitwise_or.accumulate(self._inside, axis=0, out=self._inside)
        self.rests = sorted({rest for _, _, rest in closers})
        """What tokens have behind the quote that closes a string."""
        behind = [(number, vocabulary.token_of.get(rest)) for number, rest in enumerate(self.rests) if not rest or rest[0] in _BEHIND]
        self._rest_tokens = [(number, token) for number, token in behind if token is not None]
        self.unsure = [number for number, token in behind if token is None]
        """Which of the rests may come behind a value, and are no tokens."""
        numbers = {rest: number for number, rest in enumerate(self.rests)}
        table = np.array([(token, length, numbers[rest]) for token, length, rest in closers], dtype=np.int64).reshape(-1, 3)
        self._closers, self._lengths, self._rests = table.T.copy()
        self.longest_closer = int(self._lengths.max(initial=0))
        """Characters before the quote of the token that has most."""
        self._closing: dict[bytes, Closing] = {}

    def inside(self, room: int | None) -> np.ndarray:
        """The packed mask of the tokens that stay inside a string with room for so many more characters; None: for any number."""
        mask: np.ndarray = self._inside[self.longest if room is None else min(room, self.longest)]
        return mask

    def fitting(self, mask: np.ndarray) -> bytearray:
        """Return which of the ``rests`` are tokens that a packed mask allows behind a value, 0 or 1 in their order."""
        words, fits = mask.data, bytearray(len(self.rests))
        for number, token in self._rest_tokens:
            fits[number] = words[token >> 5] >> (token & 31) & 1
        return fits

    def closing(self, fits: bytes) -> Closing:
        """The tokens with a quote before one of the ``rests`` that fit (0 or 1, in their order)."""
        if (known := self._closing.get(fits)) is None:
            if len(self._closing) >= MAX_CLOSING:
                self._closing.clear()
            chosen = np.frombuffer(fits, dtype=np.bool_)[self._rests]
            known = self._closing[fits] = Closing(self._closers[chosen], self._lengths[chosen], self.inside(None))
        return known


class Closing:
    """Tokens that close a string, by how many characters they have before the quote."""

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, inside: np.ndarray) -> None:
        self._tokens, self._lengths = tokens, lengths
        self._longest = int(lengths.max(initial=0))
        self._of: dict[tuple[int, int], np.ndarray] = {}
        self._num_words = len(inside)
        self.allowed = self._mask(0, self._longest) | inside
        """The packed mask of these, and of all tokens that stay inside a string."""

    def write(self, row: np.ndarray, inside: np.ndarray, need: int, room: int | None) -> None:
        """Write a packed mask: the tokens inside, and those that close behind at least ``need`` and at most ``room`` characters."""
        most = self._longest if room is None or room > self._longest else room
        np.bitwise_or(inside, self._mask(min(need, self._longest + 1), most), out=row)

    def _mask(self, need: int, room: int) -> np.ndarray:
        mask = self._of.get((need, room))
        if mask is None:
            tokens = self._tokens[(self._lengths >= need) & (self._lengths <= room)]
            mask = self._of[need, room] = np.zeros(self._num_words, dtype=np.int32)
            np.bitwise_or.at(mask.view(np.uint32), tokens >> 5, _bits(tokens))
        return mask


def string_tokens(vocabulary: Vocabulary, escapes: str) -> StringTokens:
    """Return the tokens of a vocabulary, sorted when first asked for."""
    known = _known.setdefault(vocabulary, {})
    if escapes not in known:
        known[escapes] = StringTokens(vocabulary, escapes)
    return known[escapes]


def _bits(tokens: np.ndarray) -> np.ndarray:
    """The bit of each token in its word of a packed mask."""
    bits: np.ndarray = np.left_shift(1, tokens & 31).astype(np.uint32)
    return bits


def read_characters(spelled: bytes, escapes: str) -> int | tuple[int, bytes] | None:
    """How many characters of a string the bytes begin; with what follows the quote where they close it; None where they are none."""
    if not _SPECIAL.search(spelled):
        try:
            return len(spelled.decode())
        except UnicodeDecodeError:  # a character that does not end here, or does not start
            pass
    decoder, length, at = codecs.getincrementaldecoder("utf-8")(), 0, 0
    is_whole = True
    while at < len(spelled):
        byte = spelled[at]
        if is_whole and byte == ord('"'):
            return length, spelled[at + 1 :]
        if is_whole and byte == ord("\\"):
            if at + 1 < len(spelled) and chr(spelled[at + 1]) not in escapes:
                return None
            at, length = at + 2, length + 1
            continue
        if byte < 0x20 or byte == 0x7F:
            return None
        length += is_whole
        try:
            is_whole = bool(decoder.decode(spelled[at : at + 1]))
        except UnicodeDecodeError:
            return None
        at += 1
    return length


_known: WeakKeyDictionary[Vocabulary, dict[str, StringTokens]] = WeakKeyDictionary()
