"""The Python tree, the compiled tree and a plain dictionary of prefixes through the same operations: matches, slots, counts,
locks, pins, watchers and victims."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixrt.cache import eviction, select_tree
from radixrt.cache.tree import Tree
from radixrt_kernels.ops import NATIVE

# The beginning of one sequence and then anything: so that sequences share long prefixes and end inside each other's edges.
BASE = (0, 1, 2, 2, 1, 0, 0, 2, 1, 1, 0, 2)
TOKENS = st.builds(lambda shared, tail: BASE[:shared] + tuple(tail), st.integers(0, len(BASE)), st.lists(st.integers(0, 2), max_size=5))
NAMESPACES = st.sampled_from(["a", "b"])
WHICH = st.integers(0, 1 << 16)
Key = tuple[str, tuple[int, ...]]


def ids(tokens: tuple[int, ...]) -> array[int]:
    return array("i", tokens)


@dataclass
class Held:
    """A prefix that is locked or pinned, and the handle each tree gave it."""

    nodes: list[int]
    namespace: str
    tokens: tuple[int, ...]


class Trees:
    """Every implementation, driven as one: they must answer alike.  Handles are lists, one for each."""

    def __init__(self, policy: str) -> None:
        self.each: list[Tree] = [select_tree(policy, native=native) for native in ([False, True] if NATIVE else [False])]

    def __call__(self, name: str, *args: Any, start: list[int] | None = None, **options: Any) -> Any:
        answers = [
            getattr(tree, name)(*args, **options, **({} if start is None else {"start": start[i]})) for i, tree in enumerate(self.each)
        ]
        plain = [answer.tolist() if isinstance(answer, array) else answer for answer in answers]
        assert all(answer == plain[0] for answer in plain), f"{name}: {plain}"
        return answers[0]

    def at_nodes(self, name: str, nodes: list[int]) -> None:
        for tree, node in zip(self.each, nodes, strict=True):
            getattr(tree, name)(node)

    def find(self, name: str, *args: Any, start: list[int] | None = None, **options: Any) -> tuple[list[int], Any]:
        """Of operations that answer with a node and other things: the nodes, and what must be equal."""
        nodes, answers = [], []
        for i, tree in enumerate(self.each):
            node, *rest = getattr(tree, name)(*args, **options, **({} if start is None else {"start": start[i]}))
            nodes.append(node)
            answers.append([part.tolist() if isinstance(part, array) else part for part in rest])
        assert all(answer == answers[0] for answer in answers), f"{name}: {answers}"
        return nodes, answers[0]


class TreesAgainstDictionary(RuleBasedStateMachine):
    """``stored`` maps every cached (namespace, prefix) to its slot; ``locked`` and ``pinned`` hold what somebody wants kept."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[Key, int] = {}
        self.locked: list[Held] = []
        self.pinned: list[Held] = []
        self.watched: dict[int, Key] = {}
        self.told: dict[int, int] = {}
        self.last_used: dict[Key, int] = {}
        self.clock = self.next_slot = self.next_key = 0

    @initialize(policy=st.sampled_from(["lru", *eviction.POLICIES]))
    def choose(self, policy: str) -> None:
        self.policy = policy
        self.trees = Trees(policy)

    def longest(self, namespace: str, tokens: tuple[int, ...]) -> int:
        length = 0
        while length < len(tokens) and (namespace, tokens[: length + 1]) in self.stored:
            length += 1
        return length

    def use(self, namespace: str, tokens: tuple[int, ...]) -> None:
        self.clock += 1
        self.touch_path(namespace, tokens)

    def touch_path(self, namespace: str, tokens: tuple[int, ...]) -> None:
        for length in range(1, len(tokens) + 1):
            self.last_used[namespace, tokens[:length]] = self.clock

    def slots_of(self, namespace: str, tokens: tuple[int, ...]) -> list[int]:
        return [self.stored[namespace, tokens[: i + 1]] for i in range(len(tokens))]

    def new_slots(self, count: int) -> array[int]:
        self.next_slot += count
        return array("i", range(self.next_slot - count, self.next_slot))

    def covered(self, held: list[Held]) -> set[Key]:
        return {(part.namespace, part.tokens[:i]) for part in held for i in range(1, len(part.tokens) + 1)}

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def peek(self, namespace: str, tokens: tuple[int, ...]) -> None:
        before = self.trees("stats")
        assert self.trees("match_length", ids(tokens), namespace=namespace) == self.longest(namespace, tokens)
        matched, following = self.trees("divergence", ids(tokens), namespace=namespace, limit=3)
        assert matched == self.longest(namespace, tokens)
        assert (namespace, tokens[:matched] + tuple(following)) in self.stored or not following
        assert self.trees("stats") == before

    @rule(namespace=NAMESPACES, tokens=TOKENS, then=st.sampled_from(["", "lock", "pin"]))
    def match(self, namespace: str, tokens: tuple[int, ...], then: str) -> None:
        nodes, (slots,) = self.trees.find("match", ids(tokens), namespace=namespace)
        tokens = tokens[: self.longest(namespace, tokens)]
        assert slots == self.slots_of(namespace, tokens)
        self.use(namespace, tokens)
        if then:
            self.trees.at_nodes(then, nodes)
            (self.locked if then == "lock" else self.pinned).append(Held(nodes, namespace, tokens))

    @rule(namespace=NAMESPACES, tokens=TOKENS, priority=st.integers(-1, 2))
    def insert(self, namespace: str, tokens: tuple[int, ...], priority: int) -> None:
        slots = self.new_slots(len(tokens))
        length = self.longest(namespace, tokens)
        _, (stored, num_present) = self.trees.find("insert", ids(tokens), slots, namespace=namespace, priority=priority)
        assert num_present == length
        self.store(namespace, tokens, slots, length)
        assert stored == self.slots_of(namespace, tokens)

    def store(self, namespace: str, tokens: tuple[int, ...], slots: array[int], length: int) -> None:
        for i in range(length, len(tokens)):
            self.stored[namespace, tokens[: i + 1]] = slots[i]
        self.use(namespace, tokens)

    @precondition(lambda self: self.locked)
    @rule(which=WHICH, more=TOKENS, along=st.booleans())
    def insert_below_a_lock(self, which: int, more: tuple[int, ...], along: bool) -> None:
        held = self.locked[which % len(self.locked)]
        if along:
            more = BASE[len(held.tokens) :][: len(more)]
        tokens = held.tokens + more
        length = self.longest(held.namespace, tokens)
        slots = self.new_slots(len(more))
        nodes, (stored, num_present) = self.trees.find("insert", ids(more), slots, start=held.nodes)
        assert num_present == length - len(held.tokens)
        self.store(held.namespace, tokens, array("i", [0] * len(held.tokens)) + slots, length)
        assert stored == self.slots_of(held.namespace, tokens)[len(held.tokens) :]
        self.trees.at_nodes("lock", nodes)
        self.trees.at_nodes("unlock", held.nodes)
        self.touch_path(held.namespace, held.tokens)
        held.nodes, held.tokens = nodes, tokens

    @precondition(lambda self: self.locked)
    @rule(which=WHICH)
    def unlock(self, which: int) -> None:
        held = self.locked.pop(which % len(self.locked))
        self.trees.at_nodes("unlock", held.nodes)
        self.touch_path(held.namespace, held.tokens)

    @precondition(lambda self: self.pinned)
    @rule(which=WHICH)
    def unpin(self, which: int) -> None:
        self.trees.at_nodes("unpin", self.pinned.pop(which % len(self.pinned)).nodes)

    @rule(count=st.integers(0, 8) | st.just(50))
    def evict(self, count: int) -> None:
        locked, pinned = self.covered(self.locked), self.covered(self.pinned)
        freed = self.forget(self.trees("evict", count).tolist())
        assert len(freed) == min(count, len(self.stored) + len(freed) - len(locked)), "exactly what is asked for, or all there is"
        assert not locked & set(freed), "a locked prefix survives"
        unpinned = self.stored.keys() - locked - pinned
        assert not unpinned or not pinned & set(freed), "what is pinned goes when nothing else is left"
        if self.policy == "lru":
            inner = {(n, tokens[:-1]) for n, tokens in self.stored}
            leaves = self.stored.keys() - inner - locked
            newest = max(((key in pinned, self.last_used[key]) for key in freed), default=(False, 0))
            assert all((leaf in pinned, self.last_used[leaf]) >= newest for leaf in leaves), "the least recently used goes first"

    @rule(namespace=NAMESPACES, tokens=TOKENS, keep=st.integers(0, 6))
    def drop_tail(self, namespace: str, tokens: tuple[int, ...], keep: int) -> None:
        kept = self.covered(self.locked) | self.covered(self.pinned)
        freed = self.forget(self.trees("drop_tail", ids(tokens), namespace=namespace, keep=keep).tolist())
        assert not kept & set(freed)
        assert all(name == namespace and stored == tokens[: len(stored)] and len(stored) > keep for name, stored in freed)

    def forget(self, slots: list[int]) -> list[Key]:
        by_slot = {slot: key for key, slot in self.stored.items()}
        freed = [by_slot[slot] for slot in slots]
        for key in freed:
            del self.stored[key]
        for namespace, tokens in self.stored:
            assert len(tokens) == 1 or (namespace, tokens[:-1]) in self.stored, "leaves go before what they hang on"
        for held in self.pinned:
            held.tokens = held.tokens[: self.longest(held.namespace, held.tokens)]
        return freed

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def watch(self, namespace: str, tokens: tuple[int, ...]) -> None:
        self.next_key += 1
        self.watched[self.next_key] = (namespace, tokens)
        length = self.trees("watch", self.next_key, memoryview(ids(tokens)), namespace=namespace)
        assert length == self.longest(namespace, tokens)
        self.told[self.next_key] = length

    @precondition(lambda self: self.watched)
    @rule(which=WHICH)
    def unwatch(self, which: int) -> None:
        key = sorted(self.watched)[which % len(self.watched)]
        self.trees("unwatch", key)
        del self.watched[key], self.told[key]

    @rule()
    def take_changed(self) -> None:
        lengths = {key: self.longest(*watched) for key, watched in self.watched.items()}
        changed = [dict(tree.take_changed()) for tree in self.trees.each]
        assert all(each == {key: length for key, length in lengths.items() if length != self.told[key]} for each in changed)
        self.told = lengths

    @precondition(lambda self: len(self.stored) > 20)
    @rule()
    def clear(self) -> None:
        self.trees("clear")
        self.stored.clear()
        self.locked.clear()
        for held in self.pinned:  # to be unpinned all the same
            held.tokens = ()

    @rule(depth=st.integers(0, 3), min_tokens=st.integers(0, 3))
    def look(self, depth: int, min_tokens: int) -> None:
        views = [tree.describe(depth=depth, min_tokens=min_tokens) for tree in self.trees.each]
        for view in views:
            order = {facts.pop("handle"): at for at, facts in enumerate(view)}
            for facts in view:
                facts["parent"] = order.get(facts["parent"])
        assert all(view == views[0] for view in views)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "trees"):
            return
        self.trees("check_invariants")
        locked, pinned = self.covered(self.locked), self.covered(self.pinned)
        stats = self.trees("stats")
        assert (stats.evictable, stats.locked, stats.pinned) == (len(self.stored) - len(locked), len(locked), len(pinned - locked))
        for tree in self.trees.each:
            assert sorted(tree.stored_slots()) == sorted(self.stored.values())


TestTreesAgainstDictionary = TreesAgainstDictionary.TestCase
# Two machines of five end before their hundredth step, so more are made than the 200 whose 20,000 steps are wanted.
TestTreesAgainstDictionary.settings = settings(max_examples=280, stateful_step_count=100, deadline=None)
