"""Text in, tokens out, and back: tokenizers, incremental detokenizing, stop strings and chat templates.

Knows nothing of the cache, the schedule or HTTP.
"""
