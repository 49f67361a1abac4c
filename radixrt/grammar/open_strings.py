"""Masks inside the open strings of a grammar of which only the length counts, or whose automaton is known.

What stays inside is a table of the vocabulary; what may close the string depends on what comes behind it, which is the same for all
strings that begin at one place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from radixrt.grammar.outline import Place
from radixrt.grammar.pattern_masks import pattern_masks
from radixrt.grammar.shared_masks import SharedMasks
from radixrt.grammar.string_bounds import Bounds
from radixrt.grammar.string_masks import Closing, StringTokens, string_tokens
from radixrt.grammar.string_patterns import Body
from radixrt.grammar.structure_masks import StructureMasks
from radixrt.grammar.vocabulary import Vocabulary

Following = Callable[[bytes, StringTokens], bytes | None]
"""Tells which of the texts that tokens have behind a string may come behind one that is a text away, 0 or 1 in their order."""


class OpenStrings:
    """The strings of one grammar.  ``escapes``: as in ``StringTokens``."""

    def __init__(self, masks: SharedMasks, structure: StructureMasks, vocabulary: Vocabulary, escapes: str) -> None:
        self._masks = masks
        self._structure = structure
        self._vocabulary = vocabulary
        self._escapes = escapes

    def write(self, place: Place, row: np.ndarray, following: Following) -> bool | None:
        """Write the packed mask of a place; False, with anything in the row, where it is not known, None where no such string is open.
        ``following`` asks the engine."""
        asked = self._masks.outline.string(place)
        if asked is not None and asked.body is not None:
            return self._write_under(asked.body, place, row, following)
        if asked is not None and asked.bounds is not None:
            return self._write_free(asked.bounds, place, row, following)
        return None

    def forced(self, place: Place) -> bytes | None:
        """Return all bytes that must come next at a place; None where they are not known."""
        asked = self._masks.outline.string(place)
        if asked is None or (asked.body is None and asked.bounds is None):
            return self._structure.forced(place)
        if place.partial:
            return b""
        if asked.body is not None:
            text, goes_on = asked.body.forced(place.state)
        else:
            assert asked.bounds is not None
            text, goes_on = (b'"', False) if place.length == asked.bounds.most else (b"", True)
        after = None if goes_on else self._masks.outline.after(place, text)
        behind = None if after is None else self._structure.forced(after)
        return text if goes_on else None if behind is None else text + behind

    def end(self, place: Place) -> bytes:
        """Return a shortest text that ends the string open at a place, its quote with it, where its automaton is known."""
        asked = self._masks.outline.string(place)
        return b"" if asked is None or asked.body is None else asked.body.tables.shortest_end(place.state)

    def _write_free(self, bounds: Bounds, place: Place, row: np.ndarray, following: Following) -> bool:
        strings = string_tokens(self._vocabulary, self._escapes)
        need, room = max(0, bounds.fewest - place.length), None if bounds.most is None else bounds.most - place.length
        if place.partial:
            ends = pattern_masks(self._vocabulary, self._escapes).ends(place.partial, self._vocabulary)
            if ends is None or (room is not None and ends.most > room):
                return False
            row[:] = ends.mask
            return True
        if need > strings.longest_closer:
            row[:] = strings.inside(room)
            return True
        closing = self._closing(place, b"a" * need + b'"', following)
        if closing is None:
            return False
        closing.write(row, strings.inside(room), need, room)
        return True

    def _write_under(self, body: Body, place: Place, row: np.ndarray, following: Following) -> bool:
        masks = pattern_masks(self._vocabulary, self._escapes)
        if place.partial and masks.ends(place.partial, self._vocabulary) is None:
            return False
        may = masks.of(body, place.state, self._vocabulary)
        if place.partial or not may.closes:
            row[:] = may.mask
            return True
        closing = self._closing(place, body.tables.shortest_end(place.state), following)
        if closing is None:
            return False
        np.bitwise_and(may.mask, closing.allowed, out=row)
        return True

    def _closing(self, place: Place, end: bytes, following: Following) -> Closing | None:
        """What may close the string open at a place that may ``end`` like this; None when that cannot be told."""
        closing = self._masks.closing(place.text)
        if closing is None:
            strings = string_tokens(self._vocabulary, self._escapes)
            fits = self._structure.following(self._masks.outline.after(place, end), strings)
            if fits is None:
                fits = following(end, strings)
            if fits is None:
                return None
            closing = strings.closing(fits)
            self._masks.keep_closing(place.text, closing)
        return closing
