"""Schedule policies: each is a few rows of a table of waiting requests and the order they are tried in."""

from __future__ import annotations

from array import array
from dataclasses import fields

import pytest

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.config import ScheduleConfig
from radixrt.errors import ConfigError
from radixrt.schedule import policy
from radixrt.schedule.request import Request
from radixrt.types import GenerateRequest, SamplingParams


def waiting(*prompts: str) -> list[Request]:
    requests = [GenerateRequest(uid=uid, prompt=[ord(c) for c in text], sampling=SamplingParams()) for uid, text in enumerate(prompts)]
    return [Request(request, max_length=100) for request in requests]


def cache_of(*texts: str) -> PrefixCache:
    cache = PrefixCache(tree=RadixTree(), num_slots=100, num_rows=4, max_length=100)
    for text in texts:
        tokens = array("i", [ord(c) for c in text])
        cache.tree.insert(tokens, cache.slots.allocate(len(tokens)), namespace=())
    return cache


@pytest.mark.parametrize(
    ("name", "cached", "prompts", "order"),
    [
        ("fcfs", [], ["abc", "xyz", "abd"], [0, 1, 2]),
        ("fcfs", ["xyz"], ["abc", "xyz", "abd"], [0, 1, 2]),
        ("lpm", [], ["abc", "xyz", "abd"], [0, 1, 2]),
        ("lpm", ["xyz"], ["abc", "xyzw", "abd"], [1, 0, 2]),
        ("lpm", ["abcd", "xy"], ["q", "xyz", "abcde", "abq"], [2, 1, 3, 0]),
        ("lpm", ["abc"], ["abq", "abz"], [0, 1]),
    ],
)
def test_waiting_requests_are_tried_in_the_order_of_the_policy(name: str, cached: list[str], prompts: list[str], order: list[int]) -> None:
    requests = waiting(*prompts)
    before = list(requests)
    assert [request.uid for request in policy.select(name).order(requests, cache_of(*cached))] == order
    assert requests == before


@pytest.mark.parametrize("name", policy.POLICIES)
def test_every_policy_is_a_choice_of_the_command_line(name: str) -> None:
    (choices,) = [field.metadata["choices"] for field in fields(ScheduleConfig) if field.name == "schedule_policy"]
    assert name in choices


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fcfs, lpm"):
        policy.select("shortest")
