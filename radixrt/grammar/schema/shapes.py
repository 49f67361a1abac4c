"""Shapes: conjunctions of plain constraints on an instance, with what is below it left as states.

A state is a set of obligations, each a subschema that an instance must meet, or must not.  ``meet`` of two shapes is the
instances of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd
from typing import Any

from radixrt.grammar.schema.document import Site
from radixrt.grammar.schema.patterns import matches
from radixrt.grammar.schema.values import TYPES, key_of

Obligation = tuple[Site, bool]
State = frozenset[Obligation]
ANY: State = frozenset()
ALL_TYPES = frozenset(TYPES)
Bound = tuple[Fraction, bool]  # a number, and whether it is excluded itself


@dataclass(frozen=True, slots=True)
class Items:
    """What one schema says of the items of arrays.  ``covers``: it says something of all of them, which counts as evaluated."""

    prefix: tuple[State, ...] = ()
    rest: State = ANY
    covers: bool = False
    counts: bool = True  # whether it is an annotation at all: what stands under a negation is not

    def at(self, index: int) -> State:
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class Members:
    """What one schema says of the members of objects."""

    names: dict[str, State]
    patterns: tuple[tuple[str, State], ...] = ()
    rest: State = ANY
    covers: bool = False
    counts: bool = True

    def of(self, name: str) -> State:
        """What a member of a name must meet."""
        found = [state for pattern, state in self.patterns if matches(pattern, name)]
        if name in self.names:
            found.append(self.names[name])
        return frozenset().union(*found) if found else self.rest


@dataclass(frozen=True, slots=True)
class Shape:
    """Constraints that all hold; those on a type say nothing of instances of another.

    ``values``: the only instances, where they are finitely many.  ``bound_names``: what every member's name must meet.
    """

    types: frozenset[str] = ALL_TYPES
    values: tuple[Any, ...] | None = None
    low: Bound | None = None
    high: Bound | None = None
    step: Fraction | None = None
    min_length: int = 0
    max_length: int | None = None
    patterns: tuple[tuple[str, str], ...] = ()  # with the pointer of each
    formats: tuple[str, ...] = ()
    items: tuple[Items, ...] = ()
    min_items: int = 0
    max_items: int | None = None
    unique: str | None = None  # the pointer of uniqueItems
    members: tuple[Members, ...] = ()
    required: tuple[str, ...] = ()
    min_members: int = 0
    max_members: int | None = None
    bound_names: State = ANY

    def item(self, index: int) -> State:
        """What an item must meet."""
        return frozenset().union(*(items.at(index) for items in self.items))

    @property
    def rest_of_items(self) -> State:
        return frozenset().union(*(items.rest for items in self.items))

    @property
    def prefix_length(self) -> int:
        return max((len(items.prefix) for items in self.items), default=0)

    def member(self, name: str) -> State:
        """What a member must meet."""
        return frozenset().union(*(members.of(name) for members in self.members))

    @property
    def rest_of_members(self) -> State:
        return frozenset().union(*(members.rest for members in self.members))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of members that anything is said of, in the order they are generated in."""
        return tuple(dict.fromkeys([name for members in self.members for name in members.names] + list(self.required)))

    def is_whole(self) -> bool:
        """Whether every number is a whole one."""
        return self.step is not None and self.step.denominator == 1


NOTHING_SAID = Shape()


def meet(one: Shape, other: Shape) -> Shape | None:
    """Return the shape of the instances of both; None when the types have nothing in common."""
    if one is NOTHING_SAID:
        return other
    if other is NOTHING_SAID:
        return one
    types = one.types & other.types
    if not types:
        return None
    return Shape(
        types=types,
        values=one.values if other.values is None else other.values if one.values is None else _common(one.values, other.values),
        low=_tighter(one.low, other.low, 1),
        high=_tighter(one.high, other.high, -1),
        step=other.step if one.step is None else one.step if other.step is None else common_step(one.step, other.step),
        min_length=max(one.min_length, other.min_length),
        max_length=least(one.max_length, other.max_length),
        patterns=_union(one.patterns, other.patterns),
        formats=_union(one.formats, other.formats),
        items=one.items + other.items,
        min_items=max(one.min_items, other.min_items),
        max_items=least(one.max_items, other.max_items),
        unique=one.unique if one.unique is not None else other.unique,
        members=one.members + other.members,
        required=_union(one.required, other.required),
        min_members=max(one.min_members, other.min_members),
        max_members=least(one.max_members, other.max_members),
        bound_names=one.bound_names | other.bound_names,
    )


def of_type(name: str, **facets: Any) -> Shape:
    """Return a shape of one type."""
    return Shape(types=frozenset((name,)), **facets)


def other_types(*names: str) -> Shape | None:
    """Return the shape of every type but these."""
    types = ALL_TYPES - set(names)
    return Shape(types=types) if types else None


def silent(shape: Shape) -> Shape:
    """Return the same shape, none of whose parts counts as evaluating items or members."""
    if not shape.items and not shape.members:
        return shape
    return replace(
        shape,
        items=tuple(replace(items, counts=False) for items in shape.items),
        members=tuple(replace(members, counts=False) for members in shape.members),
    )


def least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two limits, None being no limit."""
    return other if one is None else one if other is None else min(one, other)


def common_step(one: Fraction, other: Fraction) -> Fraction:
    """Return the step whose multiples are the multiples of both."""
    numerator = one.numerator * other.numerator // gcd(one.numerator, other.numerator)
    return Fraction(numerator, gcd(one.denominator, other.denominator))


def _tighter(one: Bound | None, other: Bound | None, sign: int) -> Bound | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other, key=lambda bound: (sign * bound[0], bound[1]))


def _common(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    keys = {key_of(value) for value in other}
    return tuple(value for value in one if key_of(value) in keys)


def _union(one: tuple[Any, ...], other: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*one, *other)))
