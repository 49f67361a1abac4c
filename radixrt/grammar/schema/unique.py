"""Arrays whose items differ, where that can be said without comparing them as they are written."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

from radixrt.grammar.schema.members import Checker
from radixrt.grammar.schema.shapes import Shape, State

MAX_ARRAYS = 400
MAX_VALUES = 6


def unique_arrays(shape: Shape, checker: Checker) -> Shape | list[Any] | None:
    """Return the shape itself where its items differ anyway, else all the arrays it allows; None where neither can be said."""
    bounded = shape.max_items if shape.max_items is not None else None
    length = shape.prefix_length
    if (bounded is not None and bounded <= length) or checker.empty(shape.rest_of_items):
        top = length if bounded is None else min(bounded, length)
        states = [shape.item(index) for index in range(top)]
        if all(checker.empty(one | other) for one, other in combinations(states, 2)):
            return shape
    values = _values(shape.rest_of_items, checker)
    if values is None or length or len(values) > MAX_VALUES:
        return None
    most = len(values) if bounded is None else min(bounded, len(values))
    found = [list(chosen) for size in range(shape.min_items, most + 1) for chosen in permutations(values, size)]
    return found if len(found) <= MAX_ARRAYS else None


def _values(state: State, checker: Checker) -> list[Any] | None:
    """The values that meet a state; None where they are not finitely many."""
    found: list[Any] = []
    for shape in checker.shapes(state):
        if shape.values is not None:
            found += shape.values
        elif shape.types <= {"boolean", "null"}:
            found += [value for kind, values in (("null", [None]), ("boolean", [False, True])) if kind in shape.types for value in values]
        else:
            return None
    return [value for index, value in enumerate(found) if value not in found[:index] or isinstance(value, bool)]
