"""Rules of the scheduler and the cache, each taken out in turn: whoever checks them must notice."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.cache.prefix_cache import Lease, PrefixCache
from radixrt.cache.tree import Tree
from radixrt.schedule.request import Request, Status
from radixrt.schedule.step import ScheduledRow
from radixrt.schedule.verify import Verifier


def match_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "match_limit", property(lambda request: len(request.tokens)))


class Unlockable:
    """A radix tree, whichever it is, whose locks hold nothing."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def lock(self, node: int) -> None:
        return

    unlock = lock


def no_lock(patch: pytest.MonkeyPatch) -> None:
    init = PrefixCache.__init__

    def wrong(cache: PrefixCache, *, tree: Tree, **rest: Any) -> None:
        init(cache, tree=Unlockable(tree), **rest)

    patch.setattr(PrefixCache, "__init__", wrong)


def free_shared(patch: pytest.MonkeyPatch) -> None:
    release = PrefixCache.release

    def wrong(cache: PrefixCache, lease: Lease, *rest: object, **options: object) -> None:
        cache.slots.free(cache.page_table.rows[lease.row, : lease.num_shared].tolist())
        release(cache, lease, *rest, **options)  # type: ignore[arg-type]

    patch.setattr(PrefixCache, "release", wrong)


def no_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ScheduledRow, "is_void", property(lambda row: row.request.status is Status.FINISHED))


def publish_drafts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "num_sure", property(lambda request: min(request.num_computed, len(request.tokens))))


def keep_refuted(patch: pytest.MonkeyPatch) -> None:
    def wrong(verifier: Verifier, request: Request, position: int) -> None:
        del request.tokens[position:]  # the K/V computed from the refuted draft stays

    patch.setattr(Verifier, "_roll_back", wrong)


REMOVED_RULES = (match_all, no_lock, free_shared, no_epoch, publish_drafts, keep_refuted)
