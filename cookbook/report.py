"""What the programs of the cookbook share: which backend they run on, and what they say about the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from radixlang import State, Usage, set_default_backend


def show(main: Callable[[], Sequence[State]]) -> None:
    """Run a program on the server named on the command line, or else on the default model in this process, and print its end."""
    if len(sys.argv) > 1:
        set_default_backend(sys.argv[1])
    states = main()
    print(states[-1].text())
    print(f"\n{len(states)} run(s), {hit_rate(states):.0%} of {total(states).prompt_tokens} prompt tokens from the cache")


def total(states: Sequence[State]) -> Usage:
    """Add up the tokens of several runs."""
    return sum((state.usage() for state in states), Usage())


def hit_rate(states: Sequence[State]) -> float:
    """Share of the prompt tokens of several runs that came from the cache."""
    return total(states).hit_rate
