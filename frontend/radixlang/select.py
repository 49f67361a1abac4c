"""How ``select`` picks among choices: pure functions of the logprobs of their tokens.

Choices are tokenized together with the text before them.  The token at the seam may then belong to both (token healing),
so all choices are compared from the first token at which any of them leaves the text's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Score:
    """One choice: its tokens, and their logprobs behind the text and, if asked for, behind nothing."""

    choice: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()


Decide = Callable[[Sequence[Score]], int]


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """``decide`` returns the index of the choice to take.  ``unconditional``: it needs the logprobs behind nothing."""

    name: str
    decide: Decide
    unconditional: bool = False


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _token_length_normalized(scores: Sequence[Score]) -> int:
    return _best([_mean(score.logprobs) for score in scores])


def _greedy_token_selection(scores: Sequence[Score]) -> int:
    longest = max(len(score.logprobs) for score in scores)
    # A choice that has ended goes on at its own mean.
    rows = [(*score.logprobs, *[_mean(score.logprobs)] * (longest - len(score.logprobs))) for score in scores]
    left = list(range(len(scores)))
    for position in range(longest):
        best = max(left, key=lambda i: rows[i][position])
        # Equal tokens behind equal tokens are equally likely, whatever rounding in two batches made of them.
        token = scores[best].tokens[position : position + 1]
        left = [i for i in left if i == best or (token and scores[i].tokens[position : position + 1] == token)]
    return left[0]


def _unconditional_likelihood_normalized(scores: Sequence[Score]) -> int:
    return _best([_mean(score.logprobs) - _mean(score.unconditional) for score in scores])


token_length_normalized = ChoicesMethod("token_length_normalized", _token_length_normalized)
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy_token_selection)
unconditional_likelihood_normalized = ChoicesMethod(
    "unconditional_likelihood_normalized", _unconditional_likelihood_normalized, unconditional=True
)
METHODS = {method.name: method for method in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized)}
