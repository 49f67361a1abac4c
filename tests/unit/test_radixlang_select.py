"""How choices are made from logprobs."""

from __future__ import annotations

import pytest
from radixlang.select import METHODS, Score


def scores(*rows: tuple[float, ...], tokens: tuple[tuple[int, ...], ...] = (), alone: tuple[tuple[float, ...], ...] = ()) -> list[Score]:
    return [
        Score(str(i), tokens[i] if tokens else tuple(range(10 * i, 10 * i + len(row))), row, alone[i] if alone else ())
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("method", "given", "best"),
    [
        ("token_length_normalized", scores((-1.0, -1.0), (-1.5,)), 0),
        ("token_length_normalized", scores((-1.0, -3.0), (-1.5,)), 1),
        ("greedy_token_selection", scores((-1.0, -9.0), (-1.5,)), 0),
        # The same first token, and the second decides.
        ("greedy_token_selection", scores((-1.0, -9.0), (-1.0, -2.0), (-3.0, 0.0), tokens=((7, 1), (7, 2), (8, 3))), 1),
        # Equal tokens stay in together even where two batches rounded differently.
        ("greedy_token_selection", scores((-1.0000001, -1.0), (-1.0, -9.0), tokens=((7, 1), (7, 2))), 0),
        # The short one goes on at its mean of -1.
        ("greedy_token_selection", scores((-1.0,), (-1.0, -2.0), tokens=((7,), (7, 1))), 0),
        ("greedy_token_selection", scores((-1.0,), (-1.0, -0.5), tokens=((7,), (7, 1))), 1),
        ("unconditional_likelihood_normalized", scores((-1.0,), (-2.0,), alone=((-1.0,), (-5.0,))), 1),
        ("unconditional_likelihood_normalized", scores((-1.0,), (-2.0,), alone=((-3.0,), (-2.0,))), 0),
    ],
)
def test_the_choice_of_each_method(method: str, given: list[Score], best: int) -> None:
    assert METHODS[method].decide(given) == best


@pytest.mark.parametrize("method", METHODS)
def test_one_choice_is_the_best(method: str) -> None:
    assert METHODS[method].decide(scores((-4.0, -2.0), alone=((-1.0, -1.0),))) == 0
