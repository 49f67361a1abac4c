"""Looking at a tree without changing it: what is stored, and where a sequence leaves what is stored."""

from __future__ import annotations

from typing import Any

from radixrt.cache.node import Node, advance
from radixrt.cache.tree import Tokens

NUM_FIRST_TOKENS = 8


def describe(root: Node, depth: int, min_tokens: int) -> list[dict[str, Any]]:
    """Plain facts of the nodes below a root, parents before children, larger subtrees first."""
    totals = _subtree_tokens(root)
    shown = []
    stack = [(child, 1) for child in _largest_last(root, totals)] if depth > 0 else []
    while stack:
        node, level = stack.pop()
        if totals[node.handle] < min_tokens:
            continue
        assert node.parent is not None
        shown.append(
            {
                "handle": node.handle,
                "parent": None if node.parent is root else node.parent.handle,
                "namespace": root.namespace,
                "tokens": len(node.key),
                "subtree_tokens": totals[node.handle],
                "first_tokens": node.key[:NUM_FIRST_TOKENS].tolist(),
                "locks": node.locks,
                "pins": node.pins,
                "hits": node.hits,
                "last_access": node.last_access,
                "children": len(node.children),
            }
        )
        if level < depth:
            stack.extend((child, level + 1) for child in _largest_last(node, totals))
    return shown


def divergence(root: Node | None, tokens: Tokens, limit: int) -> tuple[int, list[int]]:
    """How many leading tokens are stored, and up to ``limit`` that follow these in the tree, by the latest used path."""
    node, offset, length = advance(root, 0, tokens, 0)
    following: list[int] = []
    while node is not None and len(following) < limit:
        following.extend(node.key[offset : offset + limit - len(following)])
        node, offset = max(node.children.values(), key=lambda child: (child.last_access, -child.key[0]), default=None), 0
    return length, following


def _subtree_tokens(root: Node) -> dict[int, int]:
    order = [root]
    for node in order:
        order.extend(node.children.values())
    totals: dict[int, int] = {}
    for node in reversed(order):
        totals[node.handle] = len(node.key) + sum(totals[child.handle] for child in node.children.values())
    return totals


def _largest_last(node: Node, totals: dict[int, int]) -> list[Node]:
    return sorted(node.children.values(), key=lambda child: (totals[child.handle], -child.key[0]))
