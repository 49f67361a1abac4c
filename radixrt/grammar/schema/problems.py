"""How a schema is refused."""

from __future__ import annotations

from radixrt.errors import GrammarError


def refused(keyword: str, pointer: str, why: str) -> GrammarError:
    """Return the error for a keyword at a place."""
    return GrammarError(f"The schema cannot be enforced: {keyword} at #{pointer or '/'}: {why}.", code="unsupported_schema")
