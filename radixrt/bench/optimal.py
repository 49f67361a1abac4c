"""The best hit rate that any cache could have had on requests that were served in a given order.

An infinite cache computes every distinct prefix once.  A cache of ``capacity`` tokens does best when it evicts what is
used again furthest in the future (L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966).
On a tree that needs no rule of its own: whoever uses a token uses everything above it, so what is used last is always the
tail of a leaf.  Requests are taken one at a time, each with the whole capacity: what runs at once can only do worse.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from radixrt_kernels.ops import common_prefix_length

Tokens = array


@dataclass(frozen=True, slots=True)
class Served:
    """One request: prompt and output, all of which the cache may hold afterwards."""

    tokens: Tokens[int]
    num_prompt: int
    namespace: Hashable = None

    @property
    def num_matchable(self) -> int:
        """Tokens that may come from a cache: the last one of the prompt is computed to get logits."""
        return self.num_prompt - 1


@dataclass(slots=True, eq=False)
class _Edge:
    """A run of tokens that is always used as a whole, since it is cut wherever a request ends or leaves it."""

    key: Tokens[int]
    depth: int
    children: dict[int, _Edge] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)  # requests that could find it in a cache, in order
    num_used: int = 0
    resident: int = 0

    @property
    def next_use(self) -> float:
        return self.uses[self.num_used] if self.num_used < len(self.uses) else math.inf


def cached_tokens(served: Sequence[Served], capacity: int | None = None) -> list[int]:
    """Return how many prompt tokens of each request the best cache of ``capacity`` tokens (None: infinite) finds.

    Every request alone must fit the capacity.
    """
    paths = _paths(served)
    edges = {id(edge): edge for path in paths for edge in path}
    # Entries are never withdrawn: one whose edge was used since says an earlier use than the newer one, and so comes after it.
    heap: list[tuple[float, int, int]] = []  # (-next use, -depth, id)
    found = []
    held = 0
    for request, path in zip(served, paths, strict=True):
        hits = 0
        for edge in path:
            if edge.depth + len(edge.key) <= request.num_matchable:
                hits += edge.resident
                edge.num_used += 1
            held += len(edge.key) - edge.resident
            edge.resident = len(edge.key)
        found.append(hits)
        if capacity is None:
            continue
        while held > capacity:
            assert heap, "a request alone must fit the capacity"
            edge = edges[heap[0][2]]
            gone = min(edge.resident, held - capacity)
            edge.resident -= gone
            held -= gone
            if edge.resident:
                break
            heapq.heappop(heap)
        for edge in path:
            heapq.heappush(heap, (-edge.next_use, -edge.depth, id(edge)))
    return found


def hit_rate(served: Sequence[Served], capacity: int | None = None) -> float:
    """Return the share of prompt tokens that the best cache of ``capacity`` tokens finds."""
    return sum(cached_tokens(served, capacity)) / max(1, sum(request.num_prompt for request in served))


def distinct_tokens(served: Sequence[Served]) -> int:
    """Return how many tokens a cache holds that has seen all requests and forgets nothing."""
    return sum({id(edge): len(edge.key) for path in _paths(served) for edge in path}.values())


def _paths(served: Sequence[Served]) -> list[list[_Edge]]:
    """Build the tree of all requests and return the edges that each one runs through."""
    roots: dict[Hashable, _Edge] = {}
    for request in served:
        root = roots.setdefault(request.namespace, _Edge(array("i"), 0))
        _insert(root, request.tokens[: request.num_matchable])
        _insert(root, request.tokens)
    paths = []
    for i, request in enumerate(served):
        path, edge, at = [], roots[request.namespace], 0
        while at < len(request.tokens):
            edge = edge.children[request.tokens[at]]
            at += len(edge.key)
            if at <= request.num_matchable:
                edge.uses.append(i)
            path.append(edge)
        paths.append(path)
    return paths


def _insert(edge: _Edge, tokens: Tokens[int]) -> None:
    at = 0
    while at < len(tokens):
        child = edge.children.get(tokens[at])
        if child is None:
            edge.children[tokens[at]] = _Edge(tokens[at:], at)
            return
        shared = common_prefix_length(child.key, 0, tokens, at)
        if shared < len(child.key):
            lower = _Edge(child.key[shared:], at + shared, child.children)
            child.key, child.children = child.key[:shared], {child.key[shared]: lower}
        at += shared
        edge = child
