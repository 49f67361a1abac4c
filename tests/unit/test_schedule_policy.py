"""Schedule policies: each is a few rows of a table of waiting requests and the order they are tried in."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.cache.radix_tree import RadixTree
from radixrt.config import CACHE_AWARE_POLICIES, PRIORITY_POLICIES, ScheduleConfig
from radixrt.errors import ConfigError
from radixrt.schedule import policy
from radixrt.schedule.queue import WaitingQueue
from radixrt.schedule.request import Request
from radixrt.types import GenerateRequest, SamplingParams


def waiting(*rows: str | tuple[str, dict[str, Any]]) -> list[Request]:
    """A request for each row: a prompt as text, and what else it asks for."""
    requests = []
    for uid, row in enumerate(rows):
        text, options = (row, {}) if isinstance(row, str) else row
        max_new = options.pop("max_new", 10)
        given = GenerateRequest(uid=uid, prompt=[ord(c) for c in text], sampling=SamplingParams(max_new_tokens=max_new), **options)
        request = Request(given, max_length=len(text) + max_new)
        request.arrival = uid
        request.level = -request.priority
        requests.append(request)
    return requests


def cache_of(*texts: str) -> PrefixCache:
    cache = PrefixCache(tree=RadixTree(), num_slots=1000, num_rows=4, max_length=100)
    for text in texts:
        store(cache, text)
    return cache


def store(cache: PrefixCache, text: str) -> None:
    tokens = array("i", [ord(c) for c in text])
    cache.slots.free(cache.tree.insert(tokens, cache.slots.allocate(len(tokens)), namespace=()).slots[:0])


def order(queue: WaitingQueue) -> list[int]:
    return [ticket.request.uid for ticket in queue.head(1000)]


def queue_of(
    name: str, requests: Sequence[Request], cache: PrefixCache, *, running: Sequence[Request] = (), computed: int = 0
) -> WaitingQueue:
    queue = WaitingQueue(cache, policy.select(name, seed=1))
    for request in requests:
        queue.add(request, 0.0)
    queue.begin(0.0, running, computed)
    return queue


@pytest.mark.parametrize(
    ("name", "cached", "rows", "expected"),
    [
        ("fcfs", [], ["abc", "xyz", "abd"], [0, 1, 2]),
        ("fcfs", ["xyz"], ["abc", "xyz", "abd"], [0, 1, 2]),
        ("fcfs", [], [("a", {"priority": 1}), ("b", {"priority": 3}), ("c", {"priority": 3})], [1, 2, 0]),
        ("priority", [], [("a", {"priority": -1}), "b", ("c", {"priority": 2}), "d"], [2, 1, 3, 0]),
        ("lpm", [], ["abc", "xyz", "abd"], [0, 1, 2]),
        ("lpm", ["xyz"], ["abc", "xyzw", "abd"], [1, 0, 2]),
        ("lpm", ["abcd", "xy"], ["q", "xyz", "abcde", "abq"], [2, 1, 3, 0]),
        ("lpm", ["abc"], ["abq", "abz"], [0, 1]),
        ("lpm", ["abc"], ["abcd", ("q", {"priority": 1})], [1, 0]),
        ("lof", [], [("a", {"max_new": 3}), ("b", {"max_new": 9}), ("c", {"max_new": 3})], [1, 0, 2]),
        ("lof", [], [("a", {"max_new": 3, "priority": 1}), ("b", {"max_new": 9})], [0, 1]),
        ("shortest-prefill-first", ["abcdef"], ["abcdefxyz", "pq", "abcdefx", "rs"], [2, 1, 3, 0]),
        # Two wait below "ab" and one below "x": the heavier branch first, a node's own after those below it.
        ("dfs-weight", ["abc", "abd", "xy"], ["xyz", "abq", "abcq", "abdq"], [2, 3, 1, 0]),
        ("dfs-weight", ["abc", "abd", "xy"], ["xyz", "xyw", "abcq"], [0, 1, 2]),
        ("dfs-weight", [], ["q", "r"], [0, 1]),
        ("routing-key", [], [("a", {"routing_key": "k"}), "b", ("c", {"routing_key": "m"}), ("d", {"routing_key": "l"})], [0, 3, 1, 2]),
    ],
)
def test_waiting_requests_are_tried_in_the_order_of_the_policy(name: str, cached: list[str], rows: list[Any], expected: list[int]) -> None:
    running = waiting(*[("x", {"routing_key": key}) for key in ("l", "k", "k")])
    rows = [(row, {}) if isinstance(row, str) else (row[0], dict(row[1])) for row in rows]
    queue = queue_of(name, waiting(*rows), cache_of(*cached), running=running)
    assert order(queue) == expected
    assert [request.uid for request in queue] == list(range(len(rows))), "the queue itself is by arrival"


def test_hrrn_weighs_what_was_waited_through_against_what_is_to_be_computed() -> None:
    early, late, whole = waiting("abcdefgh", "xy", "pqr")
    queue = queue_of("hrrn", [early], cache_of(), computed=4)
    queue.add(late, 0.0)  # four tokens have been computed when it comes
    queue.begin(0.0, [], 5)
    assert order(queue) == [0, 1], "5 / 8 against 1 / 2"
    queue.begin(0.0, [], 12)
    assert order(queue) == [1, 0], "12 / 8 against 8 / 2"
    queue.add(whole, 0.0)
    assert order(queue)[-1] == whole.uid, "it has waited for nothing yet"


def test_random_tries_each_once_and_not_always_in_the_same_order() -> None:
    queue = queue_of("random", waiting(*"abcdef"), cache_of())
    orders = {tuple(order(queue)) for _ in range(20)}
    assert len(orders) > 1
    assert all(sorted(o) == list(range(6)) for o in orders)
    assert len({o[0] for o in orders}) > 1


@pytest.mark.parametrize("name", policy.POLICIES)
def test_every_policy_is_a_choice_of_the_command_line(name: str) -> None:
    (choices,) = [field.metadata["choices"] for field in fields(ScheduleConfig) if field.name == "schedule_policy"]
    assert {*policy.POLICIES, "auto"} == set(choices)
    assert policy.select(name).uses_matches == (name in CACHE_AWARE_POLICIES)
    assert policy.select(name).uses_levels == (name in PRIORITY_POLICIES)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="lpm, fcfs"):
        policy.select("shortest")


def plain_order(name: str, requests: Sequence[Request], cache: PrefixCache) -> list[int]:
    """The definition of three orders, by a look at everything that waits."""

    def matched(request: Request) -> int:
        return cache.match_length(request.matchable, request.namespace)

    if name == "lpm":
        return [r.uid for r in sorted(requests, key=lambda r: (-matched(r), r.arrival))]
    if name == "shortest-prefill-first":
        return [r.uid for r in sorted(requests, key=lambda r: (len(r.tokens) - matched(r), r.arrival))]
    ends = {r.uid: tuple(r.tokens[: matched(r)]) for r in requests}
    weights = Counter(end[:length] for end in ends.values() for length in range(len(end) + 1))

    def walk(prefix: tuple[int, ...]) -> list[int]:
        children = [end for end in weights if len(end) == len(prefix) + 1 and end[:-1] == prefix]
        below = [uid for child in sorted(children, key=lambda child: -weights[child]) for uid in walk(child)]
        return [*below, *(r.uid for r in requests if ends[r.uid] == prefix)]

    return walk(())


@pytest.mark.parametrize("name", ["lpm", "shortest-prefill-first", "dfs-weight"])
@pytest.mark.parametrize("seed", range(5))
def test_the_order_follows_the_tree_as_it_changes(name: str, seed: int) -> None:
    rng = random.Random(seed)
    cache = cache_of()
    requests = waiting(*["".join(rng.choice("ab") for _ in range(rng.randrange(2, 12))) for _ in range(30)])
    queue = queue_of(name, requests[:20], cache)
    here = requests[:20]
    for step in range(60):
        if step % 6 == 5 and requests[20 + step // 6 :]:
            queue.add(requests[20 + step // 6], 0.0)
            here.append(requests[20 + step // 6])
        elif step % 6 == 4:
            queue.remove(gone := rng.choice(here))
            here.remove(gone)
        elif rng.random() < 0.3:
            cache.slots.free(cache.tree.evict(rng.randrange(1, 6)))
        else:
            store(cache, "".join(rng.choice("ab") for _ in range(rng.randrange(1, 12))))
        found, expected = order(queue), plain_order(name, here, cache)
        if name == "dfs-weight":  # equally heavy branches may be taken in any order
            found, expected = branches(found, here, cache), branches(expected, here, cache)
        assert found == expected


def branches(uids: Sequence[int], requests: Sequence[Request], cache: PrefixCache) -> list[tuple[int, int]]:
    """What the order of a walk says whichever of two equally heavy branches goes first: the weight of each end's branch."""
    by_uid = {request.uid: request for request in requests}
    ends = [tuple(by_uid[uid].tokens[: cache.match_length(by_uid[uid].matchable, ())]) for uid in uids]
    return [(sum(other[:1] == end[:1] for other in ends), end == ()) for end in ends]
