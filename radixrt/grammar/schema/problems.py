"""How a schema is refused."""

from __future__ import annotations

from radixrt.errors import GrammarError


def refused(keyword: str, pointer: str, why: str) -> GrammarError:
    """Return the error for a keyword at a place."""
    message = f"The schema cannot be enforced: {keyword} at #{pointer or '/'}: {why}."
    return GrammarError(message, code="unsupported_schema", keyword=keyword, pointer=pointer)
