"""KV events against a mirror: whoever reads them knows at every moment which blocks the tree holds."""

from __future__ import annotations

import random
from array import array

import msgspec
import pytest
from block_mirror import Mirror, stored_blocks

from radixrt.cache.kv_events import BlockLog, BlockStored
from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.types import Namespace

SPACES = (Namespace(), Namespace(cache_salt="a"), Namespace(extra_key="a"))


def make(num_slots: int = 200) -> tuple[PrefixCache, BlockLog]:
    cache = PrefixCache(tree=RadixTree(), num_slots=num_slots, num_rows=8, max_length=num_slots)
    cache.blocks = BlockLog(num_slots)
    return cache, cache.blocks


@pytest.mark.parametrize("seed", range(8))
def test_a_mirror_of_the_events_equals_the_tree(seed: int) -> None:
    rng = random.Random(seed)
    cache, log = make()
    mirror = Mirror()
    running: list[tuple[Lease, array[int], int]] = []
    preambles = [[rng.randrange(5) for _ in range(rng.randrange(60))] for _ in range(4)]
    for _ in range(300):
        action = rng.random()
        if action < 0.4 and cache.page_table.num_free:
            tokens = array("i", rng.choice(preambles) + [rng.randrange(3) for _ in range(rng.randrange(1, 50))])
            lease = cache.admit(tokens[:-1], rng.choice(SPACES))
            assert lease is not None
            running.append((lease, tokens, lease.length))
        elif action < 0.8 and running:
            i = rng.randrange(len(running))
            lease, tokens, done = running[i]
            count = min(rng.randrange(1, 25), len(tokens) - done)
            if count and cache.extend(lease, count):
                running[i] = (lease, tokens, done + count)
                cache.publish(lease, tokens, done + count)
        elif action < 0.99 and running:
            lease, tokens, done = running.pop(rng.randrange(len(running)))
            cache.release(lease, tokens, done)
        elif action > 0.997:
            cache.clear()
            running.clear()
        mirror.take(log.take())
        assert mirror.prefixes() == stored_blocks(cache.tree)
    assert cache.tree.stats().evicted > 0


def test_blocks_are_named_by_all_that_comes_before_and_by_their_namespace() -> None:
    cache, log = make()
    hashes = []
    for space in SPACES:
        for start in (0, 1):
            tokens = array("i", [start, *range(1, 32)])
            lease = cache.admit(tokens, space)
            assert lease is not None
            cache.extend(lease, len(tokens))
            cache.release(lease, tokens, len(tokens))
    for event in log.take():
        if isinstance(event, BlockStored):
            assert event.parent_block_hash is None
            hashes += event.block_hashes
    assert len(hashes) == len(set(hashes)) == 12
    assert all(-(2**63) <= block < 2**63 for block in hashes)


def test_hashes_do_not_depend_on_the_engine() -> None:
    first, second = make(), make(500)
    hashes = []
    for cache, log in (first, second):
        tokens = array("i", range(40))
        lease = cache.admit(tokens, SPACES[1])
        assert lease is not None
        cache.extend(lease, 40)
        cache.publish(lease, tokens, 7 if cache is first[0] else 40)
        cache.release(lease, tokens, 40)
        hashes.append([block for event in log.take() if isinstance(event, BlockStored) for block in event.block_hashes])
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 2


def test_wire_form_is_the_tagged_map_that_vllm_and_sglang_send() -> None:
    cache, log = make()
    tokens = array("i", range(16))
    lease = cache.admit(tokens, SPACES[1])
    assert lease is not None
    cache.extend(lease, 16)
    cache.release(lease, tokens, 16)
    cleared, stored = msgspec.msgpack.decode(msgspec.msgpack.encode(log.take()))
    assert cleared == {"type": "AllBlocksCleared"}
    (block,) = stored.pop("block_hashes")
    assert isinstance(block, int)
    assert stored == {
        "type": "BlockStored", "parent_block_hash": None, "token_ids": list(range(16)), "block_size": 16, "lora_id": None,
        "medium": "CPU", "cache_salt": "a",
    }  # fmt: skip
    cache.drop_tail(tokens, SPACES[1], 15)
    (removed,) = msgspec.msgpack.decode(msgspec.msgpack.encode(log.take()))
    assert removed == {"type": "BlockRemoved", "block_hashes": [block], "medium": "CPU"}
