"""What fits a state: whether a value does, which of finitely many do, and whether anything can."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radixrt.errors import GrammarError
from radixrt.grammar.schema.document import Site
from radixrt.grammar.schema.patterns import matches
from radixrt.grammar.schema.shapes import Shape, State
from radixrt.grammar.schema.values import exact, key_of, type_of

if TYPE_CHECKING:
    from radixrt.grammar.schema.expand import Expander

MAX_DEPTH = 4


class Checker:
    """Questions about the states of one document."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self._open: list[State] = []
        self._asked: set[frozenset[Site]] = set()
        self._disjoint: dict[frozenset[Site], bool] = {}
        self._known_keys: dict[State, frozenset[Any] | None] = {}
        self.cuts = 0  # questions that were not followed any further

    def shapes(self, state: State) -> list[Shape]:
        """The shapes of a state."""
        return self._expander.shapes(state)

    def holds(self, state: State, value: Any) -> bool:
        """Whether a value meets a state."""
        return any(self.fits(shape, value) for shape in self._expander.shapes(state))

    def fits(self, shape: Shape, value: Any) -> bool:
        """Whether a value has a shape.  Formats are taken as met: they are annotations of values given in full."""
        if shape.values is not None and key_of(value) not in {key_of(other) for other in shape.values}:
            return False
        return self._fits_besides(shape, value)

    def _fits_besides(self, shape: Shape, value: Any) -> bool:
        """Whether a value has a shape, leaving aside which values it lists."""
        kind = type_of(value)
        if kind not in shape.types:
            return False
        match kind:
            case "number":
                number = exact(value)
                return (
                    (shape.low is None or number > shape.low[0] or (number == shape.low[0] and not shape.low[1]))
                    and (shape.high is None or number < shape.high[0] or (number == shape.high[0] and not shape.high[1]))
                    and (shape.step is None or (number / shape.step).denominator == 1)
                )
            case "string":
                fits_length = shape.min_length <= len(value) and (shape.max_length is None or len(value) <= shape.max_length)
                return fits_length and all(matches(pattern, value, pointer) for pattern, pointer in shape.patterns)
            case "array":
                return (
                    shape.min_items <= len(value)
                    and (shape.max_items is None or len(value) <= shape.max_items)
                    and (shape.unique is None or len({key_of(item) for item in value}) == len(value))
                    and all(self.holds(shape.item(index), item) for index, item in enumerate(value))
                )
            case "object":
                return (
                    shape.min_members <= len(value)
                    and (shape.max_members is None or len(value) <= shape.max_members)
                    and set(shape.required) <= value.keys()
                    and all(self.holds(shape.member(name), item) for name, item in value.items())
                    and all(self.holds(shape.bound_names, name) for name in value)
                )
            case _:
                return True

    def filtered(self, shape: Shape) -> Shape | None:
        """Return a shape with the finitely many values that it allows and nothing else, or as it is; None where nothing fits."""
        if shape.values is None:
            types = frozenset(kind for kind in shape.types if not _contradicts(shape, kind))
            return None if not types else replace(shape, types=types) if types != shape.types else shape
        kept = tuple(value for value in shape.values if self._fits_besides(shape, value))
        return Shape(types=frozenset(map(type_of, kept)), values=kept) if kept else None

    def disjoint(self, one: Site, other: Site) -> bool:
        """Whether certainly nothing meets both schemas."""
        pair = frozenset((one, other))
        known = self._disjoint.get(pair)
        if known is not None:
            return known
        if pair in self._asked:  # the answer is being looked for
            self.cuts += 1
            return False
        self._asked.add(pair)
        cuts = self.cuts
        try:
            sides = [self._expander.shapes(frozenset(((site, True),))) for site in (one, other)]
            found = all(self._told_apart(left, right) for left in sides[0] for right in sides[1])
            found = found or self.empty(frozenset(((one, True), (other, True))))
        finally:
            self._asked.discard(pair)
        if self.is_certain or self.cuts == cuts:
            self._disjoint[pair] = found
        return found

    def _told_apart(self, one: Shape, other: Shape) -> bool:
        """Whether it shows at once that nothing has both shapes: by type, or by a member both give a few values for."""
        common = one.types & other.types
        if not common:
            return True
        if common != {"object"} or one.values is not None or other.values is not None:
            return False
        for name in {*one.required, *other.required}:
            keys, others = self._keys(one.member(name)), self._keys(other.member(name))
            if keys is not None and others is not None and not keys & others:
                return True
        return False

    def _keys(self, state: State) -> frozenset[Any] | None:
        """The keys of the values that meet a state; None unless it is plain that they are finitely many."""
        if state not in self._known_keys:
            few = len(state) == 1 and all(
                positive and isinstance(site.value, dict) and site.value.keys() & {"const", "enum"} for site, positive in state
            )
            shapes = self._expander.shapes(state) if few else []
            finite = few and all(shape.values is not None for shape in shapes)
            self._known_keys[state] = frozenset(key_of(value) for shape in shapes for value in shape.values or ()) if finite else None
        return self._known_keys[state]

    def empty(self, state: State) -> bool:
        """Whether certainly nothing meets a state; False where that is not known, as it is not of what recurs or cannot be said."""
        if not state:
            return False
        if len(self._open) >= MAX_DEPTH or state in self._open:
            self.cuts += 1
            return False
        self._open.append(state)
        try:
            return all(self._is_empty(shape) for shape in self._expander.shapes(state))
        except GrammarError as error:
            if error.code != "unsupported_schema":
                raise
            return False
        finally:
            self._open.pop()

    @property
    def is_certain(self) -> bool:
        """Whether no question about emptiness is open, whose answer others might have cut short."""
        return not self._open and not self._asked

    def _is_empty(self, shape: Shape) -> bool:
        if shape.values is not None:
            return False
        for kind in shape.types:
            if kind == "array":
                needed = [shape.item(index) for index in range(min(shape.min_items, shape.prefix_length + 1))]
            elif kind == "object":
                needed = [shape.member(name) for name in shape.required]
            else:
                return False
            if not any(self.empty(state) for state in needed):
                return False
        return True


def _contradicts(shape: Shape, kind: str) -> bool:
    """Whether the plain constraints on a type leave nothing of it."""
    match kind:
        case "number":
            if shape.low is None or shape.high is None:
                return False
            low, high = shape.low, shape.high
            if low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])):
                return True
            if shape.step is None:
                return False
            first = -(-low[0] // shape.step) * shape.step
            if first == low[0] and low[1]:
                first += shape.step
            return first > high[0] or (first == high[0] and high[1])
        case "string":
            return shape.max_length is not None and shape.min_length > shape.max_length
        case "array":
            return shape.max_items is not None and shape.min_items > shape.max_items
        case "object":
            return shape.max_members is not None and max(shape.min_members, len(shape.required)) > shape.max_members
        case _:
            return False
