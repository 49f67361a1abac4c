"""The KV cache: the radix tree, the slots it hands out, and ``PrefixCache``, the only place where they meet.

Where does my class go?  A way to choose victims: ``eviction``.  Token ids to slots, and nothing else: ``radix_tree`` (its
operations: ``tree``; sequences that wait: ``watch``; looking at it: ``views``).  Free slots and per-sequence rows of slots:
``slots``.  K/V tensors: ``kv_pool``.  What a request holds: ``prefix_cache``.  What is to stay: ``pins``.  What has happened, told
in blocks: ``kv_events``.  How long prefixes lie unused: ``reuse``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from radixrt.cache import eviction
from radixrt.cache.radix_tree import RadixTree
from radixrt.cache.tree import Tree
from radixrt.errors import ConfigError
from radixrt_kernels import ops

logger = logging.getLogger(__name__)


def select_tree(policy: str, config: Mapping[str, Any] | None = None, *, native: bool | None = None) -> Tree:
    """Return an empty tree with that eviction policy, built with ``config``; the compiled one where there is a choice.

    ``native``: True for the compiled tree or ConfigError, False for the Python one, None for the compiled one if it was
    built and knows the policy.  Raises ConfigError as ``eviction.select`` does.
    """
    chosen = eviction.select(policy, config)
    missing = ""
    if policy not in eviction.POLICIES:
        missing = f"it does not know the eviction policy {policy!r}"
    elif not ops.NATIVE:
        missing = "it was not built, or RADIXRT_NO_NATIVE is set"
    if native and missing:
        raise ConfigError(f"the native radix tree is not available: {missing}")
    if native is False or missing:
        logger.info("radix tree: Python (%s)", missing or "as asked for")
        return RadixTree(chosen)
    logger.info("radix tree: native")
    # Its results are named tuples of its own, with the fields of ours.
    return cast(Tree, ops.native_radix_tree(policy, **vars(chosen)))
