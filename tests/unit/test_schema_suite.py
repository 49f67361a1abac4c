"""The JSON Schema Test Suite: nothing invalid is ever accepted, and what becomes of each schema is as the expected file says."""

from __future__ import annotations

import json

import pytest
from schema_suite import DRAFTS, EXPECTED, cases, ours, outcome


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("form", ["typed", "untyped"])
def test_the_suite_is_as_expected(draft: str, form: str) -> None:
    """After a change that is meant: ``cd tests && python -m schema_suite --write``, and read the difference."""
    found = {case.name: outcome(case, ours) for case in cases(draft, form)}
    words = {name: result.word for name, result in found.items()}
    expected = {name: word for name, word in json.loads(EXPECTED.read_text()).items() if name.startswith(f"{draft} {form} ")}
    assert [name for name, result in found.items() if result.accepted] == []
    assert words == expected
    assert sum(word == "right" for word in words.values()) > 0.75 * len(words)
