"""What the states of the engines that match token by token have in common: ends, which no matcher sees, and shared masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from radixrt.errors import GrammarError
from radixrt.grammar.closer import close_tokens, first_choice
from radixrt.grammar.jump_forward import draft_tokens
from radixrt.grammar.outline import Place
from radixrt.grammar.shared_masks import SharedMasks, Spot, Way
from radixrt.grammar.vocabulary import Vocabulary

RECENT = 4

M = TypeVar("M")


class MatcherState(ABC, Generic[M]):
    """A ``GrammarState`` over a matcher of text tokens.

    Where the masks on its way are known, or what must come next, tokens are accepted by them: the matcher follows when it is asked
    for something, so that a walk through drafts and back need not move it at all.
    """

    __slots__ = ("_at", "_ended", "_forces", "_masks", "_num_behind", "_spots", "_tokens", "_vocabulary")

    def __init__(self, matcher: M, vocabulary: Vocabulary, masks: SharedMasks) -> None:
        self._at = matcher
        self._num_behind = 0
        self._vocabulary = vocabulary
        self._masks = masks
        self._tokens: list[int] = []
        self._spots: list[Spot | None] = [masks.start()]  # before each token, as far as a mask was asked for
        self._forces = [b""]  # before each token, what is known to come next; asking anew costs time for all of it
        self._ended = False

    @abstractmethod
    def is_accepting(self) -> bool: ...

    @abstractmethod
    def is_finished(self) -> bool: ...

    @abstractmethod
    def forced_bytes(self, limit: int) -> bytes: ...

    @abstractmethod
    def fork(self) -> MatcherState[M]: ...

    @abstractmethod
    def _consume(self, token: int) -> bool:
        """Advance the matcher by a text token; False, with nothing changed, when the grammar forbids it."""

    @abstractmethod
    def _take_back(self, num_tokens: int) -> None: ...

    @abstractmethod
    def _make_mask(self, row: np.ndarray) -> None:
        """Write the mask of a state that has not ended; raises GrammarError where it cannot be known."""

    def _compose_mask(self, place: Place | None, row: np.ndarray) -> bool:
        """Write the mask of a place without the matcher, where that can be done; False, with anything in the row, where it cannot."""
        return False

    def string_end(self) -> bytes:
        """Return a shortest text that ends the string that is open, its quote with it, where that is known."""
        return b""

    def _is_broken(self) -> bool:
        """Whether the matcher can go nowhere any more, whatever its place."""
        return False

    @property
    def _matcher(self) -> M:
        """The matcher, where the accepted tokens lead; raises GrammarError where it does not follow them."""
        if self._num_behind:
            tokens = self._tokens[-self._num_behind :]
            self._num_behind = 0
            if not all(map(self._consume, tokens)):
                raise GrammarError("The engine of the grammar refused text that it had allowed.")
        return self._at

    @property
    def _forced(self) -> bytes:
        """What is known to come next."""
        return self._forces[-1]

    @_forced.setter
    def _forced(self, text: bytes) -> None:
        self._forces[-1] = text

    def accept(self, token: int) -> bool:
        if self._ended:
            return False
        if self._vocabulary.is_end(token):
            self._ended = self.is_accepting()
            return self._ended
        spelled = self._vocabulary.bytes_of(token)
        if spelled is None:
            return False
        if self._is_broken():
            return False
        forced = self._forces[-1]
        follows = forced.startswith(spelled)
        spot = self._spots[-1] if len(self._spots) > len(self._tokens) else None
        mask = None if spot is None else spot.mask
        if follows or (mask is not None and mask[token >> 5] >> (token & 31) & 1):
            self._num_behind += 1
        elif mask is not None or not self._consume(token):
            return False
        self._tokens.append(token)
        self._forces.append(forced[len(spelled) :] if follows else b"")
        return True

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            behind = min(num_tokens, self._num_behind)
            self._num_behind -= behind
            if num_tokens > behind:
                self._take_back(num_tokens - behind)
            del self._tokens[-num_tokens:]
            del self._spots[len(self._tokens) + 1 :], self._forces[len(self._tokens) + 1 :]

    def fill_mask(self, row: np.ndarray) -> None:
        if len(row) != self._vocabulary.num_words:
            row = row[: self._vocabulary.num_words]
        if self._ended:
            row[:] = self._vocabulary.end_mask
            return
        spot = self._spot()
        if self._is_broken():
            self._make_mask(row)
        elif spot is not None and spot.mask is not None:
            spot.was_used = True
            row[:] = spot.mask
        else:
            if not self._compose_mask(spot.place if spot is not None else None, row):
                self._make_mask(row)
            self._masks.keep(spot, row)

    def draft(self, max_tokens: int) -> Sequence[int]:
        return draft_tokens(self, self._vocabulary, self._tokens[-RECENT:], max_tokens)

    def close(self, max_tokens: int) -> Sequence[int] | None:
        place = self._place()
        if place is not None and self._masks.knows_ways(place) and not self._ended and not self._is_broken():
            way = self._shared_way(place)
            if way is not None and len(way) <= max_tokens:
                return list(way)
        return self._way(max_tokens)

    def _way(self, max_tokens: int) -> Sequence[int] | None:
        return close_tokens(self.fork(), self._vocabulary, max_tokens)

    def _shared_way(self, place: Place) -> Sequence[int] | None:
        """A way to an end that is a function of the place, whatever is kept: the first choice, and the way from where it leads.

        Every place on the way then knows its own, so that inside a string one choice is made for each new character.
        Where first choices lead to no end in time, the way is searched for.
        """
        masks, state, tokens, places = self._masks, None, list[int](), [place]
        while (known := masks.way(places[-1])) is None and len(tokens) < masks.reach:
            at = state or self
            if at.is_accepting():
                known = Way((), is_greedy=True)
                break
            token = first_choice(at, self._vocabulary)
            if token is None:
                break
            after = masks.outline.after(places[-1], self._vocabulary.bytes_of(token) or b"")
            if after is None:
                break
            if state is not None or masks.way(after) is None:
                state = state or self.fork()
                if not state.accept(token):
                    break
            tokens.append(token)
            places.append(after)
        if not tokens and known is not None:
            return known.tokens
        if known is None or known.tokens is None or not known.is_greedy or len(tokens) + len(known.tokens) >= masks.reach:
            found = self._way(masks.reach)
            masks.keep_way(place, Way(None if found is None else tuple(found), is_greedy=False))
            return found
        for at_place in range(len(tokens) + 1):
            masks.keep_way(places[at_place], Way((*tokens[at_place:], *known.tokens), is_greedy=True))
        return (*tokens, *known.tokens)

    def _place(self) -> Place | None:
        """Where the accepted tokens lead."""
        spot = self._spot()
        return None if spot is None else spot.place

    def _spot(self) -> Spot | None:
        for token in self._tokens[len(self._spots) - 1 :]:
            self._spots.append(self._masks.after(self._spots[-1], token, self._vocabulary.bytes_of(token) or b""))
        return self._spots[-1]

    def _copy_to(self, other: MatcherState[M]) -> None:
        other._tokens, other._spots = self._tokens.copy(), self._spots.copy()
        other._forces, other._ended = self._forces.copy(), self._ended
