"""What a router makes of KV events, and what it ought to make of them."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.cache.kv_events import BLOCK_SIZE, AllBlocksCleared, BlockRemoved, BlockStored, Event
from radixrt.cache.radix_tree import RadixTree
from radixrt.types import Namespace


class Mirror:
    """What a router makes of the events: for each block its whole prefix, found through its parents."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[Namespace, tuple[int, ...]]] = {}

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.blocks.clear()
                case BlockRemoved(hashes, medium):
                    assert medium == "CPU"
                    for block in hashes:
                        del self.blocks[block]
                case BlockStored():
                    space = Namespace(event.lora_name or "", event.cache_salt or "", event.extra_key or "")
                    prefix: tuple[int, ...] = ()
                    if event.parent_block_hash is not None:
                        parent_space, prefix = self.blocks[event.parent_block_hash]
                        assert parent_space == space
                    assert len(event.token_ids) == len(event.block_hashes) * event.block_size
                    for i, block in enumerate(event.block_hashes):
                        prefix += tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size])
                        assert block not in self.blocks
                        self.blocks[block] = (space, prefix)

    def prefixes(self) -> set[tuple[Namespace, tuple[int, ...]]]:
        prefixes = set(self.blocks.values())
        assert len(prefixes) == len(self.blocks)
        return prefixes


def stored_blocks(tree: RadixTree) -> set[tuple[Namespace, tuple[int, ...]]]:
    """Every whole block the tree holds, by its whole prefix."""
    found = set()
    prefixes: dict[int, tuple[int, ...]] = {}
    spaces: dict[int, Namespace] = {}
    for node in tree.walk():
        if node.parent is None:
            prefixes[node.handle], spaces[node.handle] = (), node.namespace
            continue
        above = prefixes[node.parent.handle]
        space = spaces[node.handle] = spaces[node.parent.handle]
        prefix = prefixes[node.handle] = above + tuple(node.key)
        for end in range(len(above) // BLOCK_SIZE * BLOCK_SIZE + BLOCK_SIZE, len(prefix) + 1, BLOCK_SIZE):
            found.add((space, prefix[:end]))
    return found
