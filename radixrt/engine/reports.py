"""What people are told about the cache: reports and explanations as plain values, tokens spelled out as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from radixrt.text.tokenizer import Tokenizer
from radixrt.types import CacheReport, Divergence, Namespace

# Tokens of text that show a place.
SHOWN_TOKENS = 8


def report_view(report: CacheReport, prompt: Sequence[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return ``{"matched", "computed", "waited", "diverged_at"}``; tokens, milliseconds by reason, and as ``place_view``."""
    return {
        "matched": report.matched,
        "computed": report.computed,
        "waited": {reason: round(1000 * seconds, 3) for reason, seconds in report.waited.items()},
        "diverged_at": None if report.divergence is None else place_view(report.divergence, prompt, tokenizer),
    }


def node_view(node: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a node of the tree with the text of its first tokens; a cache salt, which is a secret, shows as a digest."""
    space = Namespace(*node["namespace"])
    salt = blake2b(space.cache_salt.encode(), digest_size=4).hexdigest() if space.cache_salt else ""
    text = tokenizer.decode(node["first_tokens"], skip_special_tokens=False)
    return {**node, "namespace": space._replace(cache_salt=salt)._asdict(), "text": text}


def place_view(divergence: Divergence, prompt: Sequence[int], tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return where and how a prompt leaves the nearest cached sequence, or None when no cached sequence goes on there."""
    at = divergence.matched
    if at >= len(prompt) or not divergence.cached_next:
        return None

    def text(tokens: Sequence[int]) -> str:
        return tokenizer.decode(list(tokens), skip_special_tokens=False)

    here, cached = prompt[at : at + SHOWN_TOKENS], divergence.cached_next[:SHOWN_TOKENS]
    return {
        "token": at,
        "text_before": text(prompt[max(0, at - SHOWN_TOKENS) : at]),
        "text_here": text(here), "text_cached": text(cached),
        "tokens_here": list(here), "tokens_cached": list(cached),
    }
