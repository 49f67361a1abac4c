"""Sessions against plain concatenation, and what they say they leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.engine import sessions
from radixrt.engine.sessions import SessionParams, Sessions, Tails, Turn
from radixrt.errors import Overloaded, RequestError
from radixrt.types import SHARED, Namespace

BOS = 1


class Talk:
    """One session whose requests are answered at once."""

    def __init__(self, **options: Any) -> None:
        self.sessions = Sessions()
        self.id = self.sessions.open(now=0.0, **options)
        self.ended: list[str] = []

    def start(
        self, rid: str, tokens: list[int], after: str | None = None, *, namespace: Namespace = SHARED, **options: Any
    ) -> tuple[list[int], Turn]:
        params = SessionParams(id=self.id, rid=after, **options)
        prompt = self.sessions.prompt(params, tokens, bos=BOS)
        turn, self.ended = self.sessions.add(params, rid, tokens, bos=BOS, namespace=namespace, now=0.0)
        assert turn.prompt().tolist() == prompt
        return prompt, turn

    def say(
        self, rid: str, tokens: list[int], output: list[int], after: str | None = None, *, cached: int = 0, **options: Any
    ) -> list[int]:
        """Return the prompt that was made of ``tokens``."""
        prompt, turn = self.start(rid, tokens, after, **options)
        self.sessions.push(turn, output, cached)
        assert self.sessions.finish(turn, 0.0) == []
        return prompt


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, [1, 2, 3, 10, 11, 5]),
        ({"offset": 0}, [1, 2, 3, 10, 11, 5]),
        ({"offset": 2}, [1, 2, 5]),
        ({"offset": -1}, [1, 2, 3, 10, 5]),
        ({"offset": -9}, [5]),
        ({"offset": 9}, [1, 2, 3, 10, 11, 5]),
        ({"drop_previous_output": True}, [1, 2, 3, 5]),
        ({"drop_previous_output": True, "offset": -1}, [1, 2, 5]),
        ({"replace": True}, [1, 2, 3, 10, 11, 5]),
    ],
)
def test_a_request_continues_from_prompt_and_output(options: dict[str, Any], prompt: list[int]) -> None:
    talk = Talk()
    assert talk.say("a", [1, 2, 3], [10, 11]) == [1, 2, 3]
    assert talk.say("b", [1, 5], [12], "a", **options) == prompt  # without its own beginning-of-sequence token


def test_branches_continue_from_the_same_request() -> None:
    talk = Talk()
    talk.say("a", [1, 2], [3])
    assert talk.say("b", [4], [5], "a") == [1, 2, 3, 4]
    assert talk.say("c", [6], [7], "a") == [1, 2, 3, 6]
    assert talk.say("d", [8], [9], "b") == [1, 2, 3, 4, 5, 8]
    assert talk.say("e", [8], [9], "c", offset=3) == [1, 2, 3, 8]
    assert talk.say("f", [0], [0], "d") == [1, 2, 3, 4, 5, 8, 9, 0]


def test_a_request_without_rid_begins_anew() -> None:
    talk = Talk()
    talk.say("a", [1, 2], [3])
    assert talk.say("b", [1, 7], [5]) == [1, 7]
    assert talk.say("c", [1, 7], [5], "a") == [1, 2, 3, 7]


def test_replacing_forgets_and_ends_what_followed() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    talk.start("c", [5], "b")
    talk.say("other", [6], [7], "a")
    talk.say("d", [8], [9], "a", replace=True)
    assert talk.ended == ["c"]
    for rid in ("b", "c", "other"):
        with pytest.raises(RequestError):
            talk.say("x", [1], [2], rid)
    assert talk.say("e", [0], [0], "d") == [1, 2, 8, 9, 0]
    assert talk.sessions.num_tokens == 6


def test_replacing_everything_leaves_only_the_new_request() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    talk.say("c", [5], [6], replace=True)
    assert talk.sessions.num_tokens == 2
    with pytest.raises(RequestError):
        talk.say("x", [1], [2], "a")


def test_a_running_request_is_continued_only_by_replacing_it() -> None:
    talk = Talk()
    _, turn = talk.start("a", [1, 2])
    talk.sessions.push(turn, [3], 0)
    with pytest.raises(RequestError) as refused:
        talk.say("b", [4], [5], "a")
    assert refused.value.code == "rid_running"
    assert talk.say("b", [4], [5], "a", replace=True) == [1, 2, 3, 4]
    assert talk.ended == ["a"]
    talk.sessions.push(turn, [99], 0)  # too late
    assert talk.say("c", [6], [7], "b") == [1, 2, 3, 4, 5, 6]
    assert talk.say("d", [6], [7], "a") == [1, 2, 3, 6]


@pytest.mark.parametrize(("params", "code"), [({"id": "none"}, "unknown_session"), ({"rid": "none"}, "unknown_rid")])
def test_what_is_not_there_is_refused(params: dict[str, str], code: str) -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    with pytest.raises(RequestError) as refused:
        talk.sessions.prompt(SessionParams(**({"id": talk.id} | params)), [1], bos=None)
    assert (refused.value.code, refused.value.status) == (code, 400)


def test_a_rid_names_one_request_of_a_session() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [1], [2], "a")
    with pytest.raises(RequestError) as refused:
        talk.say("a", [3], [4])
    assert refused.value.code == "duplicate_rid"
    talk.say("b", [3], [4], "a", replace=True)
    assert talk.say("c", [5], [6], "b") == [1, 2, 3, 4, 5]


def test_what_is_refused_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_TOKENS", 10)
    talk = Talk()
    talk.say("a", [1], [2])
    talk.say("b", [3], [4], "a")
    with pytest.raises(Overloaded):
        talk.say("c", [0] * 11, [0], "a", replace=True)
    assert talk.say("d", [5], [6], "b") == [1, 2, 3, 4, 5]


def test_an_id_is_open_once_and_free_again_when_closed() -> None:
    talk = Talk(id="mine")
    with pytest.raises(RequestError):
        talk.sessions.open("mine", now=0.0)
    talk.sessions.close("mine")
    with pytest.raises(RequestError):
        talk.sessions.close("mine")
    assert talk.sessions.open("mine", now=0.0) == "mine"


def tails(found: Tails) -> set[tuple[tuple[int, ...], int]]:
    return {(tuple(tokens), keep) for _, tokens, keep in found}


def test_closing_names_each_branch_and_what_of_it_was_there_before() -> None:
    talk = Talk()
    talk.say("a", [1, 2, 3], [4], cached=2)
    talk.say("b", [5], [6], "a", cached=4)
    talk.say("c", [7, 8], [9], "a", cached=5)  # one more than the history it continues: somebody else's
    assert tails(talk.sessions.close(talk.id)) == {((1, 2, 3, 4, 5, 6), 2), ((1, 2, 3, 4, 7, 8, 9), 5)}
    assert (len(talk.sessions), talk.sessions.num_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("first", "second", "keep"),
    [
        (3, 5, 2),  # the sibling computed the token that both begin with
        (3, 6, 6),  # one more than that was somebody else's
        (5, 5, 5),  # neither of the two computed it
    ],
)
def test_what_a_sibling_computed_is_not_somebody_elses(first: int, second: int, keep: int) -> None:
    talk = Talk()
    talk.say("a", [1, 2, 3], [4], cached=2)
    talk.say("b", [5, 6], [7], "a", cached=first)
    talk.say("c", [5, 8], [9], "a", cached=second)
    assert ((1, 2, 3, 4, 5, 8, 9), keep) in tails(talk.sessions.close(talk.id))


def test_a_session_closed_while_it_runs_leaves_its_tails_when_it_has_ended() -> None:
    talk = Talk()
    _, turn = talk.start("a", [1, 2])
    assert talk.sessions.close(talk.id) == []
    talk.sessions.push(turn, [3], 1)
    assert tails(talk.sessions.finish(turn, 0.0)) == {((1, 2, 3), 1)}


def test_a_closed_session_leaves_its_tails_once_when_the_last_request_has_ended() -> None:
    talk = Talk()
    turns = [talk.start(rid, [1, token])[1] for rid, token in (("a", 2), ("b", 3))]
    talk.sessions.close(talk.id)
    assert talk.sessions.finish(turns[0], 0.0) == []
    assert tails(talk.sessions.finish(turns[1], 0.0)) == {((1, 2), 0), ((1, 3), 0)}


def test_a_failed_request_can_be_asked_again() -> None:
    talk = Talk()
    talk.say("a", [1], [2])
    _, turn = talk.start("b", [3], "a")
    talk.sessions.push(turn, [4], 0)
    talk.sessions.finish(turn, 0.0, failed=True)
    assert talk.sessions.num_tokens == 2
    with pytest.raises(RequestError):
        talk.say("c", [5], [6], "b")
    assert talk.say("b", [3], [4], "a") == [1, 2, 3]
    assert tails(talk.sessions.close(talk.id)) == {((1, 2, 3, 4), 0)}


def test_idle_sessions_end_after_their_timeout_and_running_ones_do_not() -> None:
    talk = Talk(timeout=10.0)
    other = talk.sessions.open(now=0.0)
    _, turn = talk.start("a", [1])
    assert talk.sessions.reap(100.0) == []
    talk.sessions.finish(turn, 100.0)
    assert talk.sessions.reap(109.0) == []
    assert tails(talk.sessions.reap(110.0)) == {((1,), 0)}
    with pytest.raises(RequestError):
        talk.sessions.close(talk.id)
    talk.sessions.close(other)


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    monkeypatch.setattr(sessions, "MAX_TURNS", 2)
    monkeypatch.setattr(sessions, "MAX_TOKENS", 10)
    talk = Talk()
    talk.sessions.open(now=0.0)
    with pytest.raises(Overloaded):
        talk.sessions.open(now=0.0)
    talk.say("a", [1], [2])
    with pytest.raises(Overloaded):
        talk.say("b", [0] * 9, [0])
    talk.say("b", [1], [2])
    with pytest.raises(Overloaded):
        talk.say("c", [1], [2])
    talk.say("c", [1], [2], replace=True)


def test_a_long_session_is_put_together_without_recursion() -> None:
    talk = Talk()
    talk.say("0", [0], [])
    for i in range(1, 1100):
        prompt = talk.say(str(i), [2 + i % 5], [], str(i - 1))
    assert prompt == [0] + [2 + i % 5 for i in range(1, 1100)]
