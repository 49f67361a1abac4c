"""Masks of places where the schema says what may come, put together from the tokens that begin with it, without an engine.

An engine makes states of its lexer wherever a text is new to its grammar, and its matcher has to be moved there first; both take it
longer than the mask.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radixrt.grammar.forced_masks import allow, deny
from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.string_bounds import Bounds
from radixrt.grammar.string_masks import StringTokens, string_tokens
from radixrt.grammar.structure import MAX_AHEAD, MAX_TEXTS, Ahead, Structure, common
from radixrt.grammar.value_starts import value_starts
from radixrt.grammar.vocabulary import Vocabulary

FEW = 16
"""More tokens than this are not looked at one by one, but those that begin with what comes behind their first bytes."""
MANY_TEXTS = 3
"""More texts than this are looked at together where they begin alike."""
UNCLOSED = Bounds(1 << 30, None)
"""The bounds of strings that no token closes."""


class StructureMasks:
    """The masks of one grammar's places as far as its schema tells them.  ``escapes``: as in ``StringTokens``."""

    def __init__(self, outline: Outline, vocabulary: Vocabulary, escapes: str) -> None:
        self._structure = Structure(outline, escapes)
        self._starts = value_starts(vocabulary, escapes)
        self._escapes = escapes
        self._vocabulary = vocabulary
        self._behind: dict[bytes, list[int] | None] = {}

    def forced(self, place: Place) -> bytes | None:
        """Return all bytes that must come next; None where they are not known."""
        ahead = self._structure.ahead(place)
        found, is_all = (b"", False) if ahead is None else self._structure.forced(ahead)
        return found if is_all else None

    def write(self, place: Place, row: np.ndarray) -> bool:
        """Write the packed mask of a place; False, with anything in the row, where it is not known."""
        ahead = self._structure.ahead(place)
        if ahead is None or ahead.unsure:
            return False
        if not (ahead.numbers or ahead.is_key or ahead.is_end) and ahead.string is None:
            forced = ahead.texts[0][0] if len(ahead.texts) == 1 else common([text for text, _ in ahead.texts])
            if forced and not self._vocabulary.trie.fill_starts(forced, row):
                return True
        found = _Found()
        if not self._collect(b"", place, ahead, found):
            return False
        row[:] = 0 if found.others is None else found.others
        deny(row, found.denied)
        for mask in found.masks:
            row |= mask
        allow(row, found.tokens)
        return True

    def following(self, place: Place | None, strings: StringTokens) -> bytes | None:
        """Return which of the texts that tokens have behind a string may come at a place, 0 or 1 in their order; None where that is not
        known."""
        mask = np.empty(self._vocabulary.num_words, dtype=np.int32)
        if place is None or not self.write(place, mask):
            return None
        fits = strings.fitting(mask)
        for number in strings.unsure:
            goes = self._structure.goes(place, strings.rests[number]) if strings.rests[number] else True
            if goes is None:
                return None
            fits[number] = goes
        return bytes(fits)

    def _collect(self, before: bytes, place: Place, ahead: Ahead, found: _Found) -> bool:
        """Find the tokens that begin with all of a text and then with what may come at the place behind it, and those that begin the
        text and that; False where that is not known."""
        if ahead.unsure or len(ahead.texts) > MAX_TEXTS:
            return False
        if ahead.is_end and not before:
            found.masks.append(self._vocabulary.end_mask)
        texts = ahead.texts
        if len(texts) > MANY_TEXTS:
            texts = self._without_same_start(before, texts, found)
        for text, then in texts:
            if not (self._collect_text(before + text, then, found) if text else self._collect_behind(then, found)):
                return False
        if ahead.numbers and not self._collect_numbers(before, ahead, found):
            return False
        if ahead.string is not None and not self._collect_string(before + b'"', ahead, found):
            return False
        return not ahead.is_key or self._collect_key(before, place, found)

    def _without_same_start(self, before: bytes, texts: list[tuple[bytes, Place]], found: _Found) -> list[tuple[bytes, Place]]:
        """Find the tokens of texts that begin alike for longer than a token goes on, and return the others."""
        left: list[tuple[bytes, Place]] = []
        for first in {text[:1] for text, _ in texts}:
            alike = [one for one in texts if one[0][:1] == first]
            begun, longer = self._vocabulary.around(before + common([text for text, _ in alike])) if first else ((), alike)
            if longer:
                left += alike
            else:
                found.tokens += begun
        return left

    def _collect_text(self, text: bytes, then: Place, found: _Found) -> bool:
        begun, longer = self._starts.around(text, self._vocabulary)
        found.tokens += begun
        if then.kind or longer is None or len(longer) > FEW:
            ahead = self._structure.ahead(then)
            return ahead is not None and self._collect(text, then, ahead, found)
        return self._collect_going(longer, then, found)

    def _collect_going(self, tokens: Iterable[tuple[int, bytes]], place: Place, found: _Found) -> bool:
        """Find the tokens whose bytes, the second of each, may come at a place; False where that is not known."""
        for token, rest in tokens:
            goes = self._structure.goes(place, rest)
            if goes is None:
                return False
            if goes:
                found.tokens.append(token)
        return True

    def _collect_behind(self, place: Place, found: _Found) -> bool:
        """The same for what comes behind a whole value, which is the same whatever that was."""
        if not place.open_at:
            found.masks.append(self._vocabulary.end_mask)
            return True
        if place.text not in self._behind:
            if len(self._behind) >= MAX_AHEAD:
                self._behind.clear()
            behind, ahead = _Found(), self._structure.ahead(place)
            is_known = ahead is not None and self._collect(b"", place, ahead, behind)
            self._behind[place.text] = behind.tokens if is_known and not behind.masks else None
        tokens = self._behind[place.text]
        found.tokens += tokens or ()
        return tokens is not None

    def _collect_numbers(self, before: bytes, ahead: Ahead, found: _Found) -> bool:
        going, ending = self._starts.numbers(before, ahead.numbers, ahead.spelled, self._vocabulary)
        found.tokens += going
        return self._collect_going(ending, ahead.behind, found)

    def _collect_string(self, before: bytes, ahead: Ahead, found: _Found) -> bool:
        assert ahead.string is not None
        found.tokens += self._vocabulary.around(before)[0]
        mask, enders = self._starts.strings(before, self._vocabulary).within(ahead.string)
        found.masks.append(mask)
        return self._collect_going(enders, ahead.behind, found)

    def _collect_key(self, before: bytes, place: Place, found: _Found) -> bool:
        if not before:
            return self._collect_in_key(place, found)
        starts = self._starts.strings(before, self._vocabulary)
        found.masks.append(starts.within(UNCLOSED)[0])
        for one, behind in starts.key_closers:
            goes = self._structure.key_ends(place, one.text[: len(one.text) - len(behind)], behind)
            if goes is None:
                return False
            if goes:
                found.tokens.append(one.token)
        return True

    def _collect_in_key(self, place: Place, found: _Found) -> bool:
        """The same between two characters of a key that the schema does not name, and that goes on to no name either."""
        strings = string_tokens(self._vocabulary, self._escapes)
        behind = self._structure.behind_key(place)
        fits = bytearray(len(strings.rests))
        for number, rest in enumerate(strings.rests):
            if not rest or rest.startswith(b":"):
                goes = not rest or self._structure.goes(behind, rest)
                if goes is None:
                    return False
                fits[number] = goes
        found.others = strings.closing(bytes(fits)).allowed
        spelled = place.text[place.value_at :]
        for name in self._structure.named(place):
            if name.startswith(spelled):
                rest = name[len(spelled) :]
                begun, longer = self._vocabulary.around(rest)
                found.denied += [*(token for token in begun if self._vocabulary.bytes_of(token) == rest), *longer]
        return True


class _Found:
    """Tokens one by one, and packed masks; ``others`` is one of keys that are not named, of which some are denied."""

    __slots__ = ("denied", "masks", "others", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.denied: list[int] = []
        self.masks: list[np.ndarray] = []
        self.others: np.ndarray | None = None
