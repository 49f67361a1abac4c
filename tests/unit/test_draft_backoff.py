"""When drafts become fewer, and when more again."""

from __future__ import annotations

import pytest

from radixrt.schedule.backoff import WINDOW, DraftBackoff


@pytest.mark.parametrize(
    ("notes", "limit"),
    [
        ([], 32),
        ([(WINDOW - 1, 0)], 32),
        ([(WINDOW, WINDOW // 2)], 32),
        ([(WINDOW, WINDOW // 2 - 1)], 16),
        ([(WINDOW - 1, 0), (1, 1)], 16),
        ([(WINDOW, 0)] * 3, 4),
        ([(WINDOW, 0)] * 9, 1),
        ([(WINDOW, 0)] * 9 + [(1, 1)] * (WINDOW - 1), 1),
        ([(WINDOW, 0)] * 9 + [(1, 1)] * WINDOW, 2),
        ([(WINDOW, 0)] * 2 + [(32, 32)] * 9, 32),
        ([(WINDOW, WINDOW)] * 3 + [(WINDOW, 0)], 16),
    ],
)
def test_limit_follows_what_is_accepted(notes: list[tuple[int, int]], limit: int) -> None:
    backoff = DraftBackoff(32)
    for offered, accepted in notes:
        backoff.note(offered, accepted)
    assert backoff.limit == limit


def test_no_drafts_stay_none() -> None:
    backoff = DraftBackoff(0)
    backoff.note(WINDOW, 0)
    assert backoff.limit == 0
