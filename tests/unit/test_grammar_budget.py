"""Texts are complete when their tokens run out, whatever is sampled."""

from __future__ import annotations

import random

import pytest
from text_grammar import TextGrammar

from radixrt.grammar import budget
from radixrt.grammar.budget import Closing
from radixrt.grammar.vocabulary import Vocabulary

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b"((", b"))"], [258], lambda text: list(text.encode()), size=259)
# The distance to the end grows with every "(".
NESTED = TextGrammar(["(" * k + ")" * k for k in range(1, 200)], BYTES)
CHAINS = TextGrammar(["a" * k + "!" for k in range(1, 300)] + ["b" + "c" * 30], BYTES)


def write(grammar: TextGrammar, max_tokens: int, rng: random.Random) -> tuple[bytes, int, bool]:
    """Write as the verifier does, with tokens at random: the text, its tokens, and whether it was closed."""
    state = grammar.new_state()
    closing = Closing(state, grammar.min_tokens)
    closing.begin(max_tokens)
    for num_left in range(max_tokens - 1, -1, -1):
        token = rng.choice(state._allowed())
        assert state.accept(token)
        if state.is_finished():
            break
        way = closing.after(token, num_left)
        if way is not None:
            return BYTES.spell(state.tokens), len(state.tokens), True
    return BYTES.spell(state.tokens), len(state.tokens), state.is_accepting() and not state.is_finished()


@pytest.mark.parametrize("grammar", [NESTED, CHAINS], ids=["nested", "chains"])
@pytest.mark.parametrize("max_tokens", [2, 3, 4, 7, 40, 127, 128, 129, 200, 350])
def test_every_text_is_whole_within_its_budget(grammar: TextGrammar, max_tokens: int) -> None:
    for seed in range(20):
        text, count, _ = write(grammar, max_tokens, random.Random(seed))
        assert text in grammar.texts
        assert count <= max_tokens


def test_a_text_that_ends_in_time_is_left_alone() -> None:
    closed = [write(CHAINS, 400, random.Random(seed))[2] for seed in range(20)]
    assert not any(closed)


def test_the_way_known_before_the_token_is_taken_in_its_place() -> None:
    state = NESTED.new_state()
    closing = Closing(state, 2)
    closing.begin(5)
    assert state.accept(ord("(")) and closing.after(ord("("), 4) is None
    assert state.accept(ord("(")) and closing.after(ord("("), 3) is None
    assert state.accept(256) and closing.after(256, 2) == [ord(")"), ord(")")]
    assert BYTES.spell(state.tokens) == b"(())" and state.is_accepting()


def test_far_from_the_end_few_tokens_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    state = NESTED.new_state()
    asked: list[int] = []
    monkeypatch.setattr(state, "close", lambda limit: asked.append(limit) or [0] * 3)
    closing = Closing(state, 2)
    closing.begin(1000)
    for i in range(budget.STRIDE * 4):
        closing.after(1, 1000 - i)
    assert len(asked) == 4
    monkeypatch.setattr(state, "close", lambda limit: asked.append(limit) or [0] * 400)
    for i in range(budget.STRIDE * 2):  # a far end is watched from farther away
        closing.after(1, 800 - i)
    assert len(asked) > 4 + budget.STRIDE


def test_no_way_at_all_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state = CHAINS.new_state()
    monkeypatch.setattr(state, "close", lambda limit: None)
    closing = Closing(state)
    closing.begin(3)
    for num_left in (2, 1, 0):
        assert state.accept(ord("a")) and closing.after(ord("a"), num_left) is None
    assert state.tokens == [ord("a")] * 3
