"""Constraints that sleep: free until the marker, in force from the byte after it, and the same whatever is forked or taken back."""

from __future__ import annotations

import random

import numpy as np
import pytest
from grammar_walk import allowed

from radixrt.grammar.dormant import Dormant, wrap
from radixrt.grammar.llguidance_engine import compile
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import Dormancy, GrammarOptions, GrammarSpec

OPEN, SHUT, END = 300, 301, 302
PIECES = (b">x", b">\n", b">{", b"ok", b"}.", b"</t>y", b"</t>", b"\n\n")
UNUSED = [None] * (END + 1 - 256 - len(PIECES))
WORDS = Vocabulary([*(bytes([byte]) for byte in range(256)), *PIECES, *UNUSED], (END,), lambda text: list(text.encode()), 320)
OBJECT = '{"type":"object","properties":{"a":{"enum":[1,22]}},"required":["a"],"additionalProperties":false}'
SCHEMA = compile(GrammarSpec("json_schema", OBJECT, GrammarOptions(whitespace="compact")), WORDS)
ANSWER = b'{"a":22}'

THINK = Dormancy(inside=True, until="</t>")
SPECIAL = Dormancy(inside=True, until_tokens=(SHUT,))
MAYBE = Dormancy(begin_token=OPEN, until="</t>")
CALLS = Dormancy(trigger="<c>")
ONE_CALL = Dormancy(trigger="<c>", once=True)
BOTH = Dormancy(inside=True, until="</t>", trigger="<c>")


def after(dormancy: Dormancy, tokens: bytes | list[int]) -> Dormant:
    state = wrap(SCHEMA, dormancy, WORDS)
    for token in tokens:
        assert token in allowed(state, WORDS), f"{token} is masked"
        assert state.accept(token), f"{token} is refused"
    return state


def word(text: bytes) -> int:
    return WORDS.token_of[text]


@pytest.mark.parametrize(
    ("dormancy", "free", "marker"),
    [
        (THINK, b"Hm {<</t", b">"),
        (THINK, b"Hm", [word(b"</t>")]),
        (SPECIAL, b"Hm</t>", [SHUT]),
        (MAYBE, [OPEN, 65], b"</t>"),
        (CALLS, b"So <", b"c>"),
    ],
)
def test_nothing_is_constrained_until_the_marker_and_everything_from_there(
    dormancy: Dormancy, free: bytes | list[int], marker: bytes | list[int]
) -> None:
    asleep = after(dormancy, free)
    assert len(allowed(asleep, WORDS)) > 256
    assert not asleep.is_finished()
    assert asleep.forced_bytes(64) == b""
    awake = after(dormancy, [*free, *marker])
    assert allowed(awake, WORDS) == allowed(SCHEMA.new_state(), WORDS)
    assert not awake.accept(ord("x"))
    for token in ANSWER:
        assert token in allowed(awake, WORDS)
        assert awake.accept(token)
    assert END in allowed(awake, WORDS)
    assert awake.is_accepting()


def test_what_must_follow_reasoning_cannot_be_left_out() -> None:
    assert END not in allowed(after(THINK, b"Hm"), WORDS)
    assert END in allowed(after(BOTH, b"Hm"), WORDS)
    assert not after(THINK, b"Hm").accept(END)
    assert after(BOTH, b"Hm").accept(END)


def test_tokens_that_hold_a_marker_and_what_may_not_follow_it_are_forbidden() -> None:
    state = after(THINK, b"Hm</t")
    masked = {word(text) for text in (b">x",)}
    assert set(range(256)) - allowed(state, WORDS) == set()
    assert not masked & allowed(state, WORDS)
    assert {word(b">\n"), word(b">{")} <= allowed(state, WORDS)
    assert word(b"</t>y") not in allowed(after(THINK, b"Hm"), WORDS)
    state.accept(word(b">{"))
    assert state.accept(ord('"'))
    assert {word(b">x"), word(b"</t>y")} <= allowed(after(CALLS, b"Hm</t"), WORDS)


def test_free_text_follows_a_call_and_another_call_that() -> None:
    state = after(CALLS, b"a<c>" + ANSWER + b" b<c>" + ANSWER)
    assert state.is_accepting()
    assert state.accept(END)
    assert state.is_finished()
    assert allowed(state, WORDS) == {END}


def test_nothing_follows_a_call_that_is_the_only_one() -> None:
    state = after(ONE_CALL, b"a<c>" + ANSWER)
    assert state.is_finished()
    assert allowed(state, WORDS) == {END}
    assert not state.accept(ord(" "))
    state.rollback(1)
    assert not state.is_finished()
    assert ord("}") in allowed(state, WORDS)


def test_the_first_token_chooses_between_reasoning_and_the_answer() -> None:
    start = wrap(SCHEMA, MAYBE, WORDS)
    assert allowed(start, WORDS) == allowed(SCHEMA.new_state(), WORDS) | {OPEN}
    assert allowed(after(MAYBE, b"{"), WORDS) == allowed(after(Dormancy(), b"{"), WORDS)
    assert OPEN not in allowed(after(MAYBE, b"{"), WORDS)


@pytest.mark.parametrize(("dormancy", "text"), [(THINK, b"Hm"), (THINK, b""), (SPECIAL, b"Hm"), (THINK, b"Hm</t>"), (THINK, b'x</t>{"a"')])
def test_reasoning_can_be_closed_in_time(dormancy: Dormancy, text: bytes) -> None:
    state = after(dormancy, text)
    way = state.close(40)
    assert way is not None
    assert state.close(len(way)) == way
    assert state.close(len(way) - 1) is None
    for token in way:
        assert token in allowed(state, WORDS)
        assert state.accept(token)
    assert state.is_accepting()
    assert END in allowed(state, WORDS)


def test_free_text_before_calls_may_end_where_it_is() -> None:
    assert after(CALLS, b"Hm").close(0) == ()
    assert after(CALLS, b"Hm<c>").close(2) is None


@pytest.mark.parametrize("dormancy", [CALLS, ONE_CALL, BOTH])
def test_free_text_goes_on_after_an_end_that_is_ignored(dormancy: Dormancy) -> None:
    state = wrap(SCHEMA, dormancy, WORDS, ignores_end=True)
    for token in [*b"a", END, *b"b</t>", END, END, *b"<", END, *b"<c>"]:
        assert token in allowed(state, WORDS)
        assert state.accept(token)
        assert not state.is_finished()
    assert not state.accept(END)
    state.rollback(5)
    assert allowed(state, WORDS) == allowed(after(dormancy, b"ab</t>"), WORDS)


@pytest.mark.parametrize("dormancy", [THINK, SPECIAL, MAYBE, CALLS, ONE_CALL, BOTH])
def test_states_are_functions_of_their_tokens(dormancy: Dormancy) -> None:
    """Random walks by mask: what is masked out is refused, and forks and rollbacks come back to the same place."""
    chance = random.Random(5)
    opening = [OPEN] if dormancy is MAYBE else []
    marker = [SHUT] if dormancy is SPECIAL else [*dormancy.until.encode()]
    script = [*opening, *b"Hm", *marker, *(b"a<c>" if dormancy.trigger else b""), *ANSWER]
    for _ in range(15):
        state = wrap(SCHEMA, dormancy, WORDS)
        tokens: list[int] = []
        for step in range(30):
            choices = allowed(state, WORDS)
            if state.is_finished() or not choices:
                break
            for token in chance.sample(range(304), 12):
                if token < 264 or token in (OPEN, SHUT, END):
                    accepted = state.fork().accept(token)
                    assert accepted == (token in choices), (tokens, token)
            follows = step < len(script) and script[step] in choices and chance.random() < 0.97
            token = script[step] if follows else chance.choice(sorted(choices))
            assert state.accept(token)
            tokens.append(token)
            if chance.random() < 0.3:
                count = chance.randrange(len(tokens) + 1)
                twin = state.fork()
                twin.rollback(count)
                again = wrap(SCHEMA, dormancy, WORDS)
                assert all(again.accept(token) for token in tokens[: len(tokens) - count])
                assert allowed(twin, WORDS) == allowed(again, WORDS)
                assert all(twin.accept(token) for token in tokens[len(tokens) - count :])
                assert allowed(twin, WORDS) == allowed(state, WORDS)
                assert twin.is_accepting() == state.is_accepting()


def test_sleep_costs_no_mask() -> None:
    row = np.full(WORDS.num_words, -1, dtype=np.int32)
    after(CALLS, b"Hm").fill_mask(row)
    assert (row == -1).all()
