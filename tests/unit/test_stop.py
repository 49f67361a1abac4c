"""Stop strings: which one wins, what is held back, and that no character of a match leaks."""

from __future__ import annotations

import time

import pytest

from radixrt.text.stop import StopMatcher


def feed(matcher: StopMatcher, *texts: str) -> tuple[list[str], str | None]:
    shown = []
    for text in texts:
        emit, matched = matcher.push(text)
        shown.append(emit)
        if matched is not None:
            return shown, matched
    return [*shown, matcher.flush()], None


@pytest.mark.parametrize(
    ("stop", "texts", "shown", "matched"),
    [
        (["END"], ["abc"], ["abc", ""], None),
        (["END"], ["abENDcd"], ["ab"], "END"),
        (["END"], ["abE", "N", "Dcd"], ["ab", "", ""], "END"),
        (["END"], ["abE", "N", "x"], ["ab", "", "ENx", ""], None),
        (["END"], ["abEN"], ["ab", "EN"], None),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], "\n\n"),
        (["aab"], ["aaa", "ab"], ["a", "a"], "aab"),  # what is held back shrinks to a shorter candidate
        (["abab"], ["abaabab"], ["aba"], "abab"),
        (["bc", "abcd"], ["xabcd"], ["xa"], "bc"),  # the match that ends first
        (["bc", "abc"], ["xabc"], ["x"], "abc"),  # both end at once: the longest
        (["abc", "b"], ["xab"], ["xa"], "b"),
        (["é日"], ["é", "日"], ["", ""], "é日"),
        (["a", "a"], ["ba"], ["b"], "a"),
        (["", "x"], ["abx"], ["ab"], "x"),
        ([""], ["ab"], ["ab", ""], None),
        ([], ["ab"], ["ab", ""], None),
    ],
)
def test_matching(stop: list[str], texts: list[str], shown: list[str], matched: str | None) -> None:
    assert feed(StopMatcher(stop), *texts) == (shown, matched)


def test_untrimmed_text_ends_with_the_stop() -> None:
    assert feed(StopMatcher(["END", "X"], no_stop_trim=True), "abE", "NDcd") == (["ab", "END"], "END")


def test_held_is_what_was_not_shown_yet() -> None:
    matcher = StopMatcher(["END"])
    matcher.push("aEN")
    assert matcher.held == "EN"
    assert matcher.flush() == "EN"
    assert matcher.held == ""
    assert matcher.push("D") == ("D", None)  # what was flushed is no longer part of a match


@pytest.mark.parametrize("stop", [["a" * 5000 + "b"], ["a" * n + "b" for n in range(1, 60)]])
def test_time_is_linear_in_the_text(stop: list[str]) -> None:
    matcher = StopMatcher(stop)
    started = time.perf_counter()
    for _ in range(20_000):
        matcher.push("aaaaa")
    assert time.perf_counter() - started < 5  # a fraction of a second; re-reading the held-back text would take minutes


def test_matchers_of_the_same_stops_share_what_is_immutable_and_nothing_else() -> None:
    stop = tuple(chr(ord("a") + i) * 256 for i in range(16))
    first, second = StopMatcher(stop), StopMatcher(stop)
    assert first._automaton is second._automaton
    assert first.push("a" * 255) == ("", None)
    assert second.push("a") == ("", None)
    assert second.held == "a"
    assert first.push("a") == ("", "a" * 256)
    assert StopMatcher(["b"]).push("ab") == ("a", "b")
