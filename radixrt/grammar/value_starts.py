"""The tokens that reach from forced text into the value behind it, where a schema says what that may be.

An engine would walk its vocabulary for them.  They are few; whether they fit is mostly seen from their bytes, and what is not is
asked of it one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.grammar.forced_masks import allow
from radixrt.grammar.fsm.tables import DEAD
from radixrt.grammar.number_spellings import Numbers
from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.string_bounds import Bounds
from radixrt.grammar.string_masks import read_characters
from radixrt.grammar.string_patterns import Body
from radixrt.grammar.vocabulary import MAX_AROUND, SHORT, Vocabulary

MAX_STARTS = 256
"""For how many texts it is kept which tokens begin with them."""
MAX_PERHAPS = 12
"""So many tokens are asked for one by one in less time than an engine's mask takes."""
MANY = 64
"""More tokens than this that begin with a text are not looked through."""
_BEHIND = rb"[,\]} \t\r\n]"
_BEHIND_VALUE = re.compile(_BEHIND)
_VALUES = {
    "number": re.compile(rb"-?[0-9]*(\.[0-9]*)?([eE][+-]?[0-9]*)?(" + _BEHIND + rb".*)?", re.DOTALL),
    "positive": re.compile(rb"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]*)?(" + _BEHIND + rb".*)?", re.DOTALL),
    "object": re.compile(rb'\{[ \t\r\n]*("|\}|$).*', re.DOTALL),
    "array": re.compile(rb'\[[ \t\r\n]*(["\-0-9tfn\[\]{]|$).*', re.DOTALL),
    "boolean": re.compile(rb"(t|tr|tru|f|fa|fal|fals|(true|false)(" + _BEHIND + rb".*)?)", re.DOTALL),
    "null": re.compile(rb"(n|nu|nul|null(" + _BEHIND + rb".*)?)", re.DOTALL),
    "string": re.compile(rb'"'),
    "behind": re.compile(_BEHIND + rb".*", re.DOTALL),
}
"""What bytes are like that begin a value of a type, and perhaps go on behind it; some others may be as well.  Of a string it is the
quote alone, and numbers that are zero or more have no sign.  ``behind`` is what comes behind a value."""

_DIGITS = tuple(b"%d" % digit for digit in range(10))
_BEGINS = {
    "number": (b"-", *_DIGITS), "positive": _DIGITS, "object": (b"{",), "array": (b"[",), "boolean": (b"true", b"false"),
    "null": (b"null",), "string": (b'"',), "behind": (b",", b"]", b"}", b" ", b"\t", b"\r", b"\n"),
}  # fmt: skip
"""Text of which they begin with some or all."""
_SURE = {
    "number": re.compile(rb"-?(0|[1-9][0-9]*)?"),
    "boolean": re.compile(rb"t|tr|tru|true|f|fa|fal|fals|false"),
    "null": re.compile(rb"n|nu|nul|null"),
}
"""Which of them may come where nothing is asked of the value but its type."""

_VALUE = b' "{[-0123456789tfn'
_BEHIND_WHOLE = b",}]:"
_JSON = {ord("{"): b'"}', ord("["): _VALUE + b"]", **dict.fromkeys(b",: ", _VALUE), **dict.fromkeys(b'}]"', _BEHIND_WHOLE)}
"""What may follow a byte outside strings where white space is fixed; other bytes are of words and numbers."""
_WORDS = b"0123456789+-.eEtrufalsn" + _BEHIND_WHOLE
_NUMERIC = b"-0123456789.eE+"
_NUMBERS = {
    (is_begun, is_whole): re.compile(rb"(?=[-+0-9.eE])(" + digits + rb")(" + _BEHIND + rb".*)?", re.DOTALL)
    for is_begun, is_whole, digits in (
        (False, True, rb"-?[0-9]*"),
        (True, True, rb"[0-9]+"),
        (False, False, rb"-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?"),
        (True, False, rb"[+-]?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?"),
    )
}
"""What begins a number, or goes on with one that is begun, whole or any, and perhaps goes on behind it."""


class Reaching(NamedTuple):
    """Tokens that may come for sure, as a packed mask (None for none) and one by one, and those that only an engine knows of; no
    others may."""

    mask: np.ndarray | None
    surely: list[int]
    perhaps: list[int]


class Begun(NamedTuple):
    """What a token has of a string: its bytes and how many characters they begin; what follows the quote where they close it."""

    token: int
    text: bytes
    length: int
    rest: bytes | None


class ValueStarts:
    """The tokens of a vocabulary by the text that they begin with before a value.  ``escapes``: as in ``StringTokens``."""

    def __init__(self, vocabulary: Vocabulary, escapes: str) -> None:
        self._escapes = escapes
        self._num_words = vocabulary.num_words
        self._strings: dict[bytes, StringStarts] = {}
        self._values: dict[tuple[bytes, str], list[tuple[int, bytes]]] = {}
        self._around: dict[bytes, tuple[list[int], list[tuple[int, bytes]] | None]] = {}
        self._begun: dict[tuple[bytes, bool, bool], list[tuple[int, bytes, bytes]]] = {}
        self._numbers: dict[tuple[bytes, tuple[Numbers, ...], bytes], tuple[list[int], list[tuple[int, bytes]]]] = {}

    def reaching(self, outline: Outline, place: Place | None, forced: bytes, vocabulary: Vocabulary) -> Reaching | None:
        """Return the tokens that start with all of the text forced at a place and go on; None where the schema does not tell."""
        if place is None or not outline.forgets:
            return None
        after = outline.after(place, forced)
        if after is None or after.kind not in ("", "s"):
            return None
        if outline.is_whole(after):
            return Reaching(None, [], [])
        if outline.is_behind_value(after):
            behind = [token for token, _ in self.beginning("behind", forced, vocabulary)]
            return Reaching(None, [], behind) if len(behind) <= MAX_PERHAPS else None
        if after.kind == "s":
            return self._in_string(outline, after, forced, vocabulary) if forced.endswith(b'"') and not after.length else None
        asked = outline.asked(after)
        if asked is None or asked.kinds is None:
            return None
        mask, surely, perhaps = None, list[int](), list[int]()
        if "string" in asked.kinds:
            quoted = outline.after(after, b'"')
            within = None if quoted is None else self._in_string(outline, quoted, forced + b'"', vocabulary)
            if within is None:
                return None
            mask, perhaps = within.mask, [*within.perhaps]
        for kind in sorted(asked.kinds):
            tokens = self.beginning("positive" if kind == "number" and asked.is_positive else kind, forced, vocabulary)
            sure = _SURE.get(kind) if asked.is_free else None
            for token, begun in tokens:
                (surely if sure is not None and sure.fullmatch(begun) else perhaps).append(token)
        return Reaching(mask, surely, perhaps) if len(perhaps) <= MAX_PERHAPS else None

    def _in_string(self, outline: Outline, start: Place, text: bytes, vocabulary: Vocabulary) -> Reaching | None:
        """The same for text whose last byte opens a string, before the first of its characters."""
        asked = outline.string(start)
        string = None if asked is None else asked.body if asked.bounds is None else asked.bounds
        if string is not None:
            mask, enders = self.strings(text, vocabulary).within(string)
            return Reaching(mask, [], [token for token, _ in enders])
        if (texts := outline.texts(start)) is not None:
            return Reaching(None, [], self.strings(text, vocabulary).among(texts))
        return None

    def strings(self, text: bytes, vocabulary: Vocabulary) -> StringStarts:
        """Return the tokens that begin with a text whose last byte opens a string."""
        if text not in self._strings:
            if len(self._strings) >= MAX_STARTS:
                self._strings.clear()
            self._strings[text] = StringStarts(_begun(vocabulary, text, self._escapes), self._num_words)
        return self._strings[text]

    def beginning(self, kind: str, text: bytes, vocabulary: Vocabulary) -> list[tuple[int, bytes]]:
        """Return the tokens that begin with a text and then with what a value of a type may begin with, which is the second of each."""
        if (text, kind) not in self._values:
            if len(self._values) >= MAX_STARTS:
                self._values.clear()
            pattern, around = _VALUES[kind], [vocabulary.around(text + begin) for begin in _BEGINS[kind]]
            spelled = ((token, (vocabulary.bytes_of(token) or b"")[len(text) :]) for both in around for tokens in both for token in tokens)
            self._values[text, kind] = [(token, begun) for token, begun in spelled if begun and pattern.fullmatch(begun)]
        return self._values[text, kind]

    def around(self, text: bytes, vocabulary: Vocabulary) -> tuple[list[int], list[tuple[int, bytes]] | None]:
        """Return all tokens that a text outside strings starts with, and those that start with all of it and go on with what JSON may
        have, which is the second of each; None where those that start with it are many."""
        found = self._around.get(text)
        if found is None:
            begun, longer = vocabulary.around(text)
            spelled = ((token, (vocabulary.bytes_of(token) or b"")[len(text) :]) for token in longer)
            found = begun, None if len(longer) > MANY else [(token, rest) for token, rest in spelled if _may_go_on(text, rest)]
            if len(text) <= SHORT and len(self._around) < MAX_AROUND:
                self._around[text] = found
        return found

    def numbers(
        self, before: bytes, numbers: tuple[Numbers, ...], spelled: bytes, vocabulary: Vocabulary
    ) -> tuple[list[int], list[tuple[int, bytes]]]:
        """Return the tokens that begin with all of a text and go on with a number of which some bytes are spelled, and those that end
        it, with what they have behind it."""
        key = before, numbers, spelled
        if key not in self._numbers:
            if len(self._numbers) >= MAX_STARTS:
                self._numbers.clear()
            going: list[int] = []
            ending: list[tuple[int, bytes]] = []
            begins, is_whole = _of_any(numbers)
            for token, digits, behind in self._digits(before, vocabulary, bool(spelled), all(of.kind == "integer" for of in numbers)):
                if not behind:
                    if begins(spelled + digits):
                        going.append(token)
                elif is_whole(spelled + digits):
                    ending.append((token, behind))
            self._numbers[key] = going, ending
        return self._numbers[key]

    def _digits(self, before: bytes, vocabulary: Vocabulary, is_begun: bool, is_whole: bool) -> list[tuple[int, bytes, bytes]]:
        """The tokens that begin with a text and what numbers are made of, that, and what they have behind it."""
        key = before, is_begun, is_whole
        if key not in self._begun:
            if len(self._begun) >= MAX_STARTS:
                self._begun.clear()
            pattern = _NUMBERS[is_begun, is_whole]
            starts = _NUMERIC if is_begun else _NUMERIC[:11]
            tokens = sorted({token for byte in starts for both in vocabulary.around(before + bytes((byte,))) for token in both})
            spelled = ((token, (vocabulary.bytes_of(token) or b"")[len(before) :]) for token in tokens)
            found = ((token, pattern.fullmatch(text)) for token, text in spelled)
            self._begun[key] = [(token, match[1], match[2] or b"") for token, match in found if match is not None]
        return self._begun[key]


class StringStarts:
    """Tokens that begin with one text that opens a string."""

    def __init__(self, begun: Iterable[Begun], num_words: int) -> None:
        self._begun = list(begun)
        self._num_words = num_words
        self._longest = max((one.length for one in self._begun), default=0)
        self._by_first: dict[int, list[Begun]] = {}
        for one in self._begun:
            self._by_first.setdefault(one.text[0], []).append(one)
        self._of_length: dict[tuple[int, int], tuple[np.ndarray, list[tuple[int, bytes]]]] = {}
        self._of_body: WeakKeyDictionary[Body, tuple[np.ndarray, list[tuple[int, bytes]]]] = WeakKeyDictionary()
        self.key_closers = [(one, one.rest) for one in self._begun if one.rest is not None and one.rest[:1] in (b"", b":")]
        """Those that close it as a key, where no blank follows, with what follows the quote."""

    def within(self, string: Bounds | Body) -> tuple[np.ndarray, list[tuple[int, bytes]]]:
        """Return those that may come where a string is asked nothing but its length, or has an automaton: a packed mask of the tokens that
        have nothing behind it, and those that go on as may follow a value, with what they have there."""
        return self._under(string) if isinstance(string, Body) else self._free(string)

    def _free(self, bounds: Bounds) -> tuple[np.ndarray, list[tuple[int, bytes]]]:
        fewest = min(bounds.fewest, self._longest + 1)
        most = self._longest if bounds.most is None else min(bounds.most, self._longest)
        if (fewest, most) not in self._of_length:
            fits = [one for one in self._begun if one.length <= most and (one.rest is None or one.length >= fewest)]
            self._of_length[fewest, most] = self._fitting(fits)
        return self._of_length[fewest, most]

    def _under(self, body: Body) -> tuple[np.ndarray, list[tuple[int, bytes]]]:
        found = self._of_body.get(body)
        if found is None:
            found = self._fitting([one for one in self._begun if body.tables.walk(0, one.text) != DEAD])
            self._of_body[body] = found
        return found

    def _fitting(self, fits: list[Begun]) -> tuple[np.ndarray, list[tuple[int, bytes]]]:
        """Tokens that fit as far as the string goes."""
        surely = np.zeros(self._num_words, dtype=np.int32)
        allow(surely, [one.token for one in fits if not one.rest])
        return surely, [(one.token, one.rest) for one in fits if one.rest and _BEHIND_VALUE.match(one.rest)]

    def among(self, texts: list[bytes]) -> list[int]:
        """Those that agree with one of the texts that the string may have."""
        found = dict.fromkeys(
            one.token for text in texts for one in self._by_first.get((text + b'"')[0], ())
            if text.startswith(one.text) or one.text.startswith(text + b'"')
        )  # fmt: skip
        return list(found)


def value_starts(vocabulary: Vocabulary, escapes: str) -> ValueStarts:
    """Return the tokens of a vocabulary by what they begin with, filled while it is used."""
    known = _known.setdefault(vocabulary, {})
    if escapes not in known:
        known[escapes] = ValueStarts(vocabulary, escapes)
    return known[escapes]


def _of_any(numbers: tuple[Numbers, ...]) -> tuple[Callable[[bytes], bool], Callable[[bytes], bool]]:
    """Whether one of some kinds of numbers may begin so, and whether it is one."""
    if len(numbers) == 1:
        return numbers[0].begins, numbers[0].is_whole
    return lambda text: any(of.begins(text) for of in numbers), lambda text: any(of.is_whole(text) for of in numbers)


def _may_go_on(text: bytes, rest: bytes) -> bool:
    """Whether JSON may have bytes behind a text outside strings, as far as their neighbours tell, up to where a string begins."""
    before = text[-1]
    for byte in rest:
        if byte not in _JSON.get(before, _WORDS):
            return False
        if byte == ord('"'):
            return True
        before = byte
    return True


def _begun(vocabulary: Vocabulary, start: bytes, escapes: str) -> Iterator[Begun]:
    for token in vocabulary.extensions(start).tolist():
        text = (vocabulary.bytes_of(token) or b"")[len(start) :]
        match read_characters(text, escapes):
            case int() as length:
                yield Begun(token, text, length, None)
            case (length, rest):
                yield Begun(token, text, length, rest)


_known: WeakKeyDictionary[Vocabulary, dict[str, ValueStarts]] = WeakKeyDictionary()
