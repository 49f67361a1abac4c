"""The list of ops: signature and meaning of each, and the one place that picks an implementation.

``NATIVE`` tells whether the compiled module is used.  It is not when it was never built (``RADIXRT_NO_NATIVE=1 pip
install``), or when ``RADIXRT_NO_NATIVE=1`` is set at run time.  A compiled module that is there but does not load is an
error, never a silent fallback.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixrt_kernels._native import RadixTree

NATIVE = os.environ.get("RADIXRT_NO_NATIVE", "0") in ("", "0") and importlib.util.find_spec("radixrt_kernels._native") is not None

if TYPE_CHECKING or NATIVE:
    from radixrt_kernels._native import ByteAutomaton, TokenTrie, common_prefix_length
else:
    from radixrt_kernels.reference import ByteAutomaton, TokenTrie, common_prefix_length

__all__ = ["NATIVE", "ByteAutomaton", "TokenTrie", "common_prefix_length", "native_radix_tree"]


def native_radix_tree(policy: str, **options: int) -> RadixTree:
    """Return an empty compiled radix tree with a built-in eviction policy; only where ``NATIVE``.

    Its definition is ``radixrt.cache.radix_tree``.
    """
    from radixrt_kernels import _native

    return _native.RadixTree(policy, **options)
