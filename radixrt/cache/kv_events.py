"""What happened to the cache, told in blocks, so that a router can mirror which prefixes this engine holds.

The tree knows single tokens; the events speak of logical blocks of 16, named by chained 64-bit hashes of all the tokens
up to their end and of the namespace, in the msgpack form that vLLM and SGLang publish.  A block is stored once its last
token is, and removed as soon as its last token is evicted: leaves are evicted from their tails, so the last goes first.
Where the events are sent is not known here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from radixrt.cache.tree import Tokens

BLOCK_SIZE = 16


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Consecutive blocks of one sequence; ``parent_block_hash`` names the block before the first, None at the start."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing is cached any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class BlockLog:
    """Turns changes of the tree into events, in order.

    ``_hashes[slot]`` is the hash of the block whose last token the tree keeps in that slot, 0 for none: that is all it
    takes to find a block's parent and to tell which blocks go with evicted slots.
    """

    def __init__(self, num_slots: int, *, block_size: int = BLOCK_SIZE, medium: str = "CPU") -> None:
        self.block_size = block_size
        self.medium = medium
        self._hashes = np.zeros(num_slots, np.int64)
        self._events: list[Event] = [AllBlocksCleared()]  # whoever mirrors an engine that was here before starts anew

    def stored(self, tokens: Tokens, slots: np.ndarray, start: int, end: int, namespace: Hashable) -> None:
        """The tree now holds positions [start, end) of a sequence; ``slots`` are those of all its positions up to ``end``."""
        size = self.block_size
        first = start // size
        if end // size <= first:
            return
        parts = namespace if isinstance(namespace, tuple) else ()
        parent = int(self._hashes[slots[first * size - 1]]) if first else 0
        before = parent
        hashes = []
        for at in range(first * size, end // size * size, size):
            before = _chain(before or _seed(parts), tokens[at : at + size])
            self._hashes[slots[at + size - 1]] = before
            hashes.append(before)
        adapter, salt, extra = (*parts, "", "", "")[:3]
        self._events.append(
            BlockStored(
                block_hashes=hashes, parent_block_hash=parent or None, token_ids=tokens[first * size : end // size * size].tolist(),
                block_size=size, lora_id=None, medium=self.medium, lora_name=adapter or None, cache_salt=salt or None,
                extra_key=extra or None,
            )
        )

    def removed(self, slots: Tokens) -> None:
        """The tree has given up these slots."""
        at = np.frombuffer(slots, np.int32)
        hashes = self._hashes[at]
        gone = hashes[hashes != 0]
        if len(gone):
            self._hashes[at] = 0
            self._events.append(BlockRemoved(gone.tolist(), self.medium))

    def cleared(self) -> None:
        """The tree has been emptied."""
        self._hashes[:] = 0
        self._events = [AllBlocksCleared()]

    def take(self) -> list[Event]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events


def _seed(namespace: Sequence[str]) -> int:
    """Where the chain of a namespace begins; parts are never joined without their lengths."""
    digest = blake2b(digest_size=8)
    for part in namespace:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return _signed(digest.digest())


def _chain(before: int, tokens: Tokens) -> int:
    return _signed(blake2b(before.to_bytes(8, "big", signed=True) + tokens.tobytes(), digest_size=8).digest())


def _signed(digest: bytes) -> int:
    return int.from_bytes(digest, "big", signed=True) or 1
