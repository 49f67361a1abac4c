"""The core's side of what people ask about the cache: pins, where a prompt leaves it, a look at the tree, KV events.

Answers questions between steps and looks after what depends on time.  Schedules nothing and holds no slots.
"""

from __future__ import annotations

from array import array

from radixrt.cache.kv_events import BlockLog
from radixrt.cache.pins import PinBoard
from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.reuse import ReuseGaps
from radixrt.engine.kv_publisher import KVPublisher
from radixrt.engine.questions import (
    AnyAnswer,
    CacheQuestion,
    Done,
    DropTails,
    Explain,
    Explained,
    Pinned,
    PinPrefix,
    TreeView,
    Unpin,
    ViewTree,
)

# Tokens that may have been computed after those an answer ended with, before the core heard of a stop string.
MAX_BEYOND = 64


class CacheDesk:
    """Attaches pins, reuse gaps and, given a publisher, KV events to a cache.

    Args:
        pin_budget: share of the slots that pins may hold.
        max_pin_ttl: seconds that a pin may last without being used.
    """

    def __init__(self, cache: PrefixCache, *, pin_budget: float, max_pin_ttl: float, publisher: KVPublisher | None = None) -> None:
        self._cache = cache
        self._publisher = publisher
        self.pins = cache.pins = PinBoard(cache.tree, budget=int(cache.num_slots * pin_budget), max_ttl=max_pin_ttl)
        self.reuse = cache.reuse = ReuseGaps(cache.num_slots)
        if publisher is not None:
            cache.blocks = BlockLog(cache.num_slots, medium=publisher.medium)
            self.publish()

    def tick(self, now: float) -> None:
        """Take in the time, in seconds, before a step."""
        self.reuse.now = now
        self.pins.tick(now)

    def publish(self) -> None:
        """Send what has happened to the cache since the last call."""
        blocks = self._cache.blocks
        if self._publisher is not None and blocks is not None and (events := blocks.take()):
            self._publisher.publish(events)

    def answer(self, question: CacheQuestion, now: float) -> AnyAnswer:
        """Answer a question.  Raises RequestError."""
        self.tick(now)
        cache = self._cache
        match question:
            case PinPrefix(id, tokens, namespace, ttl):
                pin = self.pins.pin(id, array("i", tokens), namespace=namespace, ttl=ttl, now=now)
                return Pinned(0, 0.0) if pin is None else Pinned(pin.num_tokens, pin.expires - now)
            case Unpin(id):
                return Done(self.pins.unpin(id))
            case Explain(tokens, namespace):
                return Explained(cache.divergence(array("i", tokens), namespace))
            case ViewTree(namespace, depth, min_tokens, limit):
                nodes = cache.tree.describe(namespace, depth=depth, min_tokens=min_tokens)
                return TreeView(nodes[:limit], len(nodes))
            case DropTails(tails, namespace):
                for tokens, keep in tails:
                    self._drop_tail(array("i", tokens), namespace, keep)
                self.publish()
                return Done(True)

    def _drop_tail(self, tokens: array[int], namespace: tuple[str, ...], keep: int) -> None:
        matched, beyond = self._cache.tree.divergence(tokens, namespace=namespace, limit=MAX_BEYOND + 1)
        if matched == len(tokens) and len(beyond) <= MAX_BEYOND:
            tokens.extend(beyond)
        self._cache.drop_tail(tokens, namespace, keep)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()


