"""Eviction policies: each is a row of a table, the same in both trees, and all of them keep what must be kept."""

from __future__ import annotations

import sys
from array import array
from types import ModuleType
from typing import Any

import pytest

from radixrt.cache import eviction, select_tree
from radixrt.cache.radix_tree import RadixTree
from radixrt.cache.tree import Tree
from radixrt.config import EVICTION_POLICIES, CacheConfig, EngineConfig, Hardware, resolve
from radixrt.errors import ConfigError
from radixrt_kernels import ops

TREES = [False, pytest.param(True, marks=pytest.mark.skipif(not ops.NATIVE, reason="not built"))]


def run(tree: Tree, history: str) -> None:
    """Each letter inserts that token, or matches it when it is stored; ``!`` evicts one token; a capital has priority 1."""
    for letter in history:
        if letter == "!":
            tree.evict(1)
        else:
            token = array("i", [ord(letter.lower())])
            tree.insert(token, token, priority=letter.isupper())


@pytest.mark.parametrize("native", TREES)
@pytest.mark.parametrize(
    ("policy", "config", "history", "victims"),
    [
        ("lru", {}, "abc", "abc"),
        ("lru", {}, "abca", "bca"),
        ("lru", {}, "abcabbac", "bac"),
        ("lfu", {}, "abcaab", "cba"),
        ("lfu", {}, "abcabc", "abc"),
        ("slru", {}, "aaabcb", "cba"),
        ("slru", {"protected_threshold": 1}, "aabcb", "cab"),
        ("fifo", {}, "abcaab", "abc"),
        ("mru", {}, "abca", "acb"),
        ("filo", {}, "abcab", "cba"),
        ("priority", {}, "Abc", "bca"),
        ("priority", {}, "abcAb", "cba"),
        ("cost", {}, "abca", "bca"),
        ("cost", {}, "aabcb", "cab"),
        ("cost", {}, "aaabc", "bca"),
        # What was used often long ago goes before what is new: each victim has raised the floor.
        ("cost", {}, "aab!c", "ac"),
    ],
)
def test_victims_come_in_the_order_of_the_policy(policy: str, config: dict[str, Any], history: str, victims: str, native: bool) -> None:
    tree = select_tree(policy, config, native=native)
    run(tree, history)
    assert "".join(chr(tree.evict(1)[0]) for _ in victims) == victims
    assert not tree.stats().evictable


@pytest.mark.parametrize("native", TREES)
def test_cost_spares_what_lies_deep_in_a_long_sequence(native: bool) -> None:
    tree = select_tree("cost", {"attention_length": 10}, native=native)
    long, other = array("i", range(100)), array("i", range(200, 220))
    tree.insert(long, long)
    tree.insert(other, other)
    assert list(tree.evict(20)) == list(other), "its tokens need less attention to be computed again"


@pytest.mark.parametrize("native", TREES)
@pytest.mark.parametrize("policy", eviction.POLICIES)
def test_the_prompt_of_a_finished_request_outlives_its_output(policy: str, native: bool) -> None:
    tree = select_tree(policy, native=native)
    prompt, output = array("i", [1, 2, 3]), array("i", [4, 5])
    tree.lock(tree.insert(prompt, prompt).node)
    node = tree.insert(output, output, start=tree.match(prompt).node).node
    tree.unlock(tree.match(prompt + output).node)
    tree.match(prompt)
    assert tree.watch(0, prompt + output) == 5 and node
    tree.evict(2)
    assert tree.match_length(prompt + output) == 3


@pytest.mark.parametrize("native", TREES)
@pytest.mark.parametrize("policy", eviction.POLICIES)
def test_every_policy_spares_what_is_locked_and_what_others_stand_on(policy: str, native: bool) -> None:
    tree = select_tree(policy, native=native)
    for text in ([1, 2, 3], [1, 2, 4], [5, 6]):
        tree.insert(array("i", text), array("i", [10 * text[0] + token for token in text]))
    tree.lock(tree.match(array("i", [5, 6])).node)
    assert list(tree.evict(1)) in ([13], [14])
    assert sorted(tree.evict(100)) in ([11, 12, 13], [11, 12, 14])
    assert tree.match_length(array("i", [5, 6])) == 2
    tree.check_invariants()


def test_every_policy_can_be_named_on_the_command_line() -> None:
    assert tuple(eviction.POLICIES) == EVICTION_POLICIES


@pytest.mark.parametrize(
    ("policy", "config", "says"),
    [
        ("random", {}, "lru"),
        ("slur", {}, "did you mean 'slru'"),
        ("lru", {"threshold": 1}, "it takes none"),
        ("slru", {"protect_threshold": 1}, "did you mean 'protected_threshold'"),
        ("slru", {"protected_threshold": 0}, "at least 1"),
        ("slru", {"protected_threshold": True}, "an integer"),
        ("cost", {"attention_length": "long"}, "an integer"),
        ("no_such_module:Policy", {}, "cannot be loaded"),
        ("radixrt.cache.eviction:NoSuchPolicy", {}, "cannot be loaded"),
        ("radixrt.cache.eviction:select", {}, "not a class"),
        ("radixrt.cache.eviction:VictimQueue", {}, "returned None"),
        (":", {}, "cannot be loaded"),
    ],
)
def test_what_is_no_policy_is_refused(policy: str, config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        eviction.select(policy, config)


class Shortest:
    """A policy of a user's."""

    def __init__(self, *, sign: int = 1) -> None:
        self.sign = sign

    def priority(self, node: eviction.NodeFacts) -> tuple[float, ...]:
        return (self.sign * node.size,)


@pytest.fixture
def users_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("users_policies")
    module.Shortest = Shortest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_policies", module)
    return "users_policies:Shortest"


@pytest.mark.parametrize(("config", "victim"), [({}, [3]), ({"sign": -1}, [1, 2])])
def test_a_policy_of_a_users_runs_on_the_python_tree(users_module: str, config: dict[str, Any], victim: list[int]) -> None:
    tree = select_tree(users_module, config)
    assert isinstance(tree, RadixTree)
    for text in ([1, 2], [3]):
        tree.insert(array("i", text), array("i", text))
    assert list(tree.evict(len(victim))) == victim


@pytest.mark.parametrize(("policy", "says"), [("lru", "not built"), ("users_policies:Shortest", "does not know")])
def test_a_native_tree_that_cannot_be_had_is_an_error_and_never_another_tree(
    policy: str, says: str, users_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "NATIVE", policy != "lru")
    with pytest.raises(ConfigError, match=says):
        select_tree(policy, native=True)
    assert isinstance(select_tree(policy), RadixTree)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"radix_eviction_policy": "slur"}, "did you mean 'slru'"),
        ({"radix_eviction_policy_config": "{"}, "not JSON"),
        ({"radix_eviction_policy_config": "[1]"}, "a JSON object"),
        ({"radix_tree": "rust"}, "--radix-tree"),
        ({"radix_tree": "native", "radix_eviction_policy": "a:B"}, "--radix-tree native"),
    ],
)
def test_flags_are_checked_before_anything_is_loaded(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(EngineConfig(cache=CacheConfig(**options)), Hardware())
