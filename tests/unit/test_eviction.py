"""Eviction policies: each is a row of a table, and all of them keep what must be kept."""

from __future__ import annotations

from array import array
from dataclasses import fields

import pytest

from radixrt.cache import eviction
from radixrt.cache.radix_tree import RadixTree
from radixrt.config import CacheConfig
from radixrt.errors import ConfigError


def tree_after(policy: str, history: str) -> RadixTree:
    """A tree of one-token sequences: each letter of the history inserts that token, or matches it when it is stored."""
    tree = RadixTree(eviction.select(policy))
    for letter in history:
        token = array("i", [ord(letter)])
        tree.insert(token, token)
    return tree


@pytest.mark.parametrize(
    ("policy", "history", "victims"),
    [
        ("lru", "abc", "abc"),
        ("lru", "abca", "bca"),
        ("lru", "abcabbac", "bac"),
    ],
)
def test_victims_come_in_the_order_of_the_policy(policy: str, history: str, victims: str) -> None:
    tree = tree_after(policy, history)
    assert "".join(chr(tree.evict(1)[0]) for _ in victims) == victims


@pytest.mark.parametrize("policy", eviction.POLICIES)
def test_every_policy_spares_what_is_locked_and_what_others_stand_on(policy: str) -> None:
    tree = RadixTree(eviction.select(policy))
    for text in ([1, 2, 3], [1, 2, 4], [5, 6]):
        tree.insert(array("i", text), array("i", [10 * text[0] + token for token in text]))
    tree.lock(tree.match(array("i", [5, 6])).node)
    assert list(tree.evict(1)) in ([13], [14])
    assert sorted(tree.evict(100)) in ([11, 12, 13], [11, 12, 14])
    assert tree.match_length(array("i", [5, 6])) == 2
    tree.check_invariants()


@pytest.mark.parametrize("policy", eviction.POLICIES)
def test_every_policy_is_a_choice_of_the_command_line(policy: str) -> None:
    (choices,) = [field.metadata["choices"] for field in fields(CacheConfig) if field.name == "radix_eviction_policy"]
    assert policy in choices


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="lru"):
        eviction.select("random")
