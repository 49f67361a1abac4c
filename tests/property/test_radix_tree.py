"""The radix tree against a plain dictionary of prefixes: matches, slots, counts, locks and victims."""

from __future__ import annotations

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from radixrt.cache.radix_tree import RadixTree

TOKENS = st.lists(st.integers(0, 2), max_size=12).map(tuple)
NAMESPACES = st.sampled_from(["a", "b"])
Key = tuple[str, tuple[int, ...]]


class TreeAgainstDictionary(RuleBasedStateMachine):
    """``stored`` maps every cached (namespace, prefix) to its slot; ``locked`` holds the prefixes somebody has locked."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree()
        self.stored: dict[Key, int] = {}
        self.locked: list[tuple[int, Key]] = []
        self.last_used: dict[Key, int] = {}
        self.clock = 0
        self.next_slot = 0

    def longest(self, namespace: str, tokens: tuple[int, ...]) -> int:
        length = 0
        while length < len(tokens) and (namespace, tokens[: length + 1]) in self.stored:
            length += 1
        return length

    def use(self, namespace: str, tokens: tuple[int, ...]) -> None:
        self.clock += 1
        for length in range(1, len(tokens) + 1):
            self.last_used[namespace, tokens[:length]] = self.clock

    def slots_of(self, namespace: str, tokens: tuple[int, ...]) -> list[int]:
        return [self.stored[namespace, tokens[: i + 1]] for i in range(len(tokens))]

    def new_slots(self, count: int) -> array[int]:
        self.next_slot += count
        return array("i", range(self.next_slot - count, self.next_slot))

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def peek(self, namespace: str, tokens: tuple[int, ...]) -> None:
        before = self.tree.stats()
        assert self.tree.match_length(array("i", tokens), namespace=namespace) == self.longest(namespace, tokens)
        assert self.tree.stats() == before

    @rule(namespace=NAMESPACES, tokens=TOKENS, keep=st.booleans())
    def match(self, namespace: str, tokens: tuple[int, ...], keep: bool) -> None:
        found = self.tree.match(array("i", tokens), namespace=namespace)
        length = self.longest(namespace, tokens)
        assert found.slots.tolist() == self.slots_of(namespace, tokens[:length])
        self.use(namespace, tokens[:length])
        if keep:
            self.tree.lock(found.node)
            self.locked.append((found.node, (namespace, tokens[:length])))

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def insert(self, namespace: str, tokens: tuple[int, ...]) -> None:
        slots = self.new_slots(len(tokens))
        length = self.longest(namespace, tokens)
        done = self.tree.insert(array("i", tokens), slots, namespace=namespace)
        assert done.num_present == length
        self.store(namespace, tokens, slots, length)
        assert done.slots.tolist() == self.slots_of(namespace, tokens)

    def store(self, namespace: str, tokens: tuple[int, ...], slots: array[int], length: int) -> None:
        for i in range(length, len(tokens)):
            self.stored[namespace, tokens[: i + 1]] = slots[i]
        self.use(namespace, tokens)

    @precondition(lambda self: self.locked)
    @rule(which=st.integers(0, 1 << 16), more=TOKENS)
    def insert_below_a_lock(self, which: int, more: tuple[int, ...]) -> None:
        at = which % len(self.locked)
        node, (namespace, held) = self.locked[at]
        tokens = held + more
        length = self.longest(namespace, tokens)
        slots = self.new_slots(len(more))
        done = self.tree.insert(array("i", more), slots, start=node)
        assert done.num_present == length - len(held)
        self.store(namespace, tokens, array("i", [0] * len(held)) + slots, length)
        assert done.slots.tolist() == self.slots_of(namespace, tokens)[len(held) :]
        self.tree.lock(done.node)
        self.tree.unlock(node)
        self.locked[at] = (done.node, (namespace, tokens))
        self.touch_path(namespace, held)

    @precondition(lambda self: self.locked)
    @rule(which=st.integers(0, 1 << 16))
    def unlock(self, which: int) -> None:
        node, (namespace, tokens) = self.locked.pop(which % len(self.locked))
        self.tree.unlock(node)
        self.touch_path(namespace, tokens)

    def touch_path(self, namespace: str, tokens: tuple[int, ...]) -> None:
        for length in range(1, len(tokens) + 1):
            self.last_used[namespace, tokens[:length]] = self.clock

    @rule(count=st.integers(0, 8))
    def evict(self, count: int) -> None:
        freed = self.tree.evict(count).tolist()
        safe = {(n, tokens[:i]) for _, (n, tokens) in self.locked for i in range(1, len(tokens) + 1)}
        by_slot = {slot: key for key, slot in self.stored.items()}
        assert len(set(freed)) == len(freed)
        evictable = len(self.stored) - len(safe)
        assert len(freed) == min(count, evictable), "exactly what is asked for, or all there is"
        for key in (by_slot[slot] for slot in freed):
            assert key not in safe, "a locked prefix survives"
            del self.stored[key]
        inner = {(n, tokens[:-1]) for n, tokens in self.stored}
        leaves = [key for key in self.stored if key not in inner and key not in safe]
        newest_freed = max((self.last_used[by_slot[slot]] for slot in freed), default=0)
        assert all(self.last_used[leaf] >= newest_freed for leaf in leaves), "the least recently used goes first"
        for namespace, tokens in self.stored:
            assert len(tokens) == 1 or (namespace, tokens[:-1]) in self.stored, "leaves go before what they hang on"

    @rule()
    def clear(self) -> None:
        self.tree.clear()
        self.stored.clear()
        self.locked.clear()

    @invariant()
    def agree(self) -> None:
        self.tree.check_invariants()
        safe = {(n, tokens[:i]) for _, (n, tokens) in self.locked for i in range(1, len(tokens) + 1)}
        stats = self.tree.stats()
        assert (stats.evictable, stats.locked) == (len(self.stored) - len(safe), len(safe))
        assert sorted(self.tree.stored_slots()) == sorted(self.stored.values())


TestTreeAgainstDictionary = TreeAgainstDictionary.TestCase
TestTreeAgainstDictionary.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
