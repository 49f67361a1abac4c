"""A follower of the cache's events, who knows nothing else of the cache."""

from __future__ import annotations

from radixrt.cache.kv_events import AllBlocksCleared, BlockLog, BlockRemoved, BlockStored


class Mirror:
    """The blocks that are stored, by what has been told of them."""

    def __init__(self, log: BlockLog) -> None:
        self.blocks: set[int] = set()
        self._log = log

    def follow(self) -> None:
        """Take in what has happened; raises AssertionError for an event that cannot follow those before it."""
        for event in self._log.take():
            match event:
                case BlockStored():
                    parent = event.parent_block_hash
                    assert parent is None or parent in self.blocks, "a block goes on from one that is stored"
                    assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                    self.blocks.update(event.block_hashes)
                case BlockRemoved():
                    assert self.blocks.issuperset(event.block_hashes), "only what is stored is removed"
                    self.blocks.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.blocks.clear()
