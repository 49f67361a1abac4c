"""A map that forgets what was used longest ago when its values hold too many bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class ByteCache(Generic[V]):
    """Values by key, at most ``max_bytes`` of them in all; one that is larger alone is not kept.

    Values grow (a grammar keeps masks it has made), so their size is said anew at each use.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[bytes, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, value: V, size: int) -> None:
        """Keep a value of ``size`` bytes, or note the new size of one that is kept, and forget others."""
        self.drop(key)
        if size > self.max_bytes:
            return
        self._entries[key] = (value, size)
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= self._entries.popitem(last=False)[1][1]

    def drop(self, key: bytes) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.num_bytes -= entry[1]
