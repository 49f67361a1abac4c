"""The KV cache: the radix tree, the slots it hands out, and ``PrefixCache``, the only place where they meet.

Where does my class go?  A way to choose victims: ``eviction``.  Token ids to slots, and nothing else: ``radix_tree``.
Free slots and per-sequence rows of slots: ``slots``.  K/V tensors: ``kv_pool``.  What a request holds: ``prefix_cache``.
"""
