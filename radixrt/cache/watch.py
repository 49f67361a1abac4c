"""Sequences that wait, and how much of each the tree holds: kept up to date from changes of the tree, never by a sweep.

A watcher sits at the place where its match ends, which is a node and a length, and is filed there under the token it
would need next.  Only what happens at that place can change its length, so the tree reports each change of
a node and the watchers concerned are matched on from where they sit.  Ten thousand watchers at the end of one node cost
nothing when a child with another first token appears there.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator

from radixrt.cache.node import Node, advance
from radixrt.cache.tree import Tokens

_NOTHING = array("i")
COMPLETE = -1  # the next token of a sequence that is stored whole


class Watcher:
    """A sequence, the place where its match ends, and the length that was last told."""

    __slots__ = ("key", "namespace", "place", "tokens", "told")

    def __init__(self, key: int, tokens: Tokens, namespace: Hashable) -> None:
        self.key = key
        self.tokens = tokens
        self.namespace = namespace
        self.place: Place
        self.told = 0

    @property
    def length(self) -> int:
        return self.place.length

    @property
    def next_token(self) -> int:
        return self.tokens[self.length] if self.length < len(self.tokens) else COMPLETE


class Place:
    """The watchers whose match ends inside the edge of ``node`` or at its end, ``length`` tokens below the root, by next
    token.  The place of a namespace of which nothing is matched has no node, because roots come and go."""

    __slots__ = ("length", "node", "waiting")

    def __init__(self, node: Node | None, length: int) -> None:
        self.node = node
        self.length = length
        self.waiting: dict[int, dict[int, Watcher]] = {}

    def watchers(self) -> list[Watcher]:
        return [watcher for group in self.waiting.values() for watcher in group.values()]


class Watchers:
    """All watchers of a tree.  The tree calls ``added grew split trimmed removed cleared`` as its nodes change."""

    def __init__(self) -> None:
        self._watchers: dict[int, Watcher] = {}
        self._changed: dict[int, Watcher] = {}
        self._unmatched: dict[Hashable, Place] = {}

    def __iter__(self) -> Iterator[Watcher]:
        return iter(self._watchers.values())

    def __len__(self) -> int:
        return len(self._watchers)

    def __getitem__(self, key: int) -> Watcher:
        return self._watchers[key]

    def add(self, key: int, tokens: Tokens, namespace: Hashable, root: Node | None) -> int:
        """Watch a sequence from now on and return its matched length."""
        assert key not in self._watchers, "[watch] key is watched already"
        watcher = self._watchers[key] = Watcher(key, tokens, namespace)
        self._match_on(watcher, root, 0)
        self._changed.pop(key, None)
        watcher.told = watcher.length
        return watcher.length

    def discard(self, key: int) -> None:
        if (watcher := self._watchers.pop(key, None)) is not None:
            self._changed.pop(key, None)
            self._leave(watcher)
            watcher.tokens = _NOTHING  # nodes of a tree that was emptied may still refer to the watcher

    def take_changed(self) -> list[tuple[int, int]]:
        """Return (key, length) of every watcher whose length is another than it was last told."""
        changed = []
        for watcher in self._changed.values():
            if watcher.length != watcher.told:
                watcher.told = watcher.length
                changed.append((watcher.key, watcher.length))
        self._changed.clear()
        return changed

    def added(self, parent: Node, child: Node) -> None:
        """A child with a new first token hangs below ``parent``."""
        place = self._unmatched.get(parent.namespace) if parent.parent is None else (parent.places or {}).get(parent.end)
        self._wake(place, parent, child.key[0])

    def grew(self, node: Node, old_end: int) -> None:
        """The edge of ``node``, which ended at ``old_end``, has become longer."""
        if node.places:
            self._wake(node.places.get(old_end), node, node.key[old_end - node.start])

    def split(self, upper: Node, lower: Node) -> None:
        """``upper`` has taken the head of the edge of ``lower``."""
        for length, place in list((lower.places or {}).items()):
            if length <= upper.end:
                assert lower.places is not None
                del lower.places[length]
                place.node = upper
                upper.places = upper.places or {}
                upper.places[length] = place

    def trimmed(self, node: Node) -> None:
        """The edge of ``node`` has lost its tail."""
        for length, place in list((node.places or {}).items()):
            if length > node.end:
                self._retreat(place, node, node.end)

    def removed(self, node: Node) -> None:
        """``node`` is about to go."""
        assert node.parent is not None
        for place in list((node.places or {}).values()):
            self._retreat(place, node.parent, node.start)

    def cleared(self) -> None:
        """The tree is empty; nodes no longer count."""
        self._unmatched.clear()
        for watcher in self._watchers.values():
            self._sit(watcher, None, 0)

    def _wake(self, place: Place | None, node: Node, token: int) -> None:
        if place is not None:
            for watcher in list(place.waiting.get(token, {}).values()):
                self._leave(watcher)
                self._match_on(watcher, node, place.length)

    def _retreat(self, place: Place, node: Node, length: int) -> None:
        for watcher in place.watchers():
            self._leave(watcher)
            self._sit(watcher, node, length)

    def _match_on(self, watcher: Watcher, node: Node | None, length: int) -> None:
        """Match the rest of a sequence from a place on and let the watcher sit where the match ends."""
        offset = 0 if node is None else length - node.start
        node, _, length = advance(node, offset, watcher.tokens, length)
        self._sit(watcher, node, length)

    def _sit(self, watcher: Watcher, node: Node | None, length: int) -> None:
        if node is None or node.parent is None:
            place = self._unmatched.get(watcher.namespace)
            if place is None:
                place = self._unmatched[watcher.namespace] = Place(None, 0)
        else:
            if node.places is None:
                node.places = {}
            place = node.places.get(length)
            if place is None:
                place = node.places[length] = Place(node, length)
        watcher.place = place
        place.waiting.setdefault(watcher.next_token, {})[watcher.key] = watcher
        self._changed[watcher.key] = watcher

    def _leave(self, watcher: Watcher) -> None:
        place, token = watcher.place, watcher.next_token
        group = place.waiting[token]
        del group[watcher.key]
        if group:
            return
        del place.waiting[token]
        if place.waiting:
            return
        if place.node is None:
            del self._unmatched[watcher.namespace]
        else:
            assert place.node.places is not None
            del place.node.places[place.length]
