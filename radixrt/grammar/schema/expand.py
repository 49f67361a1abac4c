"""Keywords turned into a choice of shapes, for schemas that must be met and for those that must not.

An instance meets a state where it fits at least one of its shapes.  Where something cannot be said in shapes, a choice may be
left out, which only makes fewer instances fit; where none is left, the schema is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

from radixrt.errors import GrammarError
from radixrt.grammar.schema.document import Document, Site
from radixrt.grammar.schema.facets import all_but, bounds, count, lacking, names_in, plain_facets, type_names, values_of
from radixrt.grammar.schema.formats import FORMATS
from radixrt.grammar.schema.members import Checker
from radixrt.grammar.schema.problems import refused
from radixrt.grammar.schema.shapes import ANY, NOTHING_SAID, Items, Members, Shape, State, meet, of_type, other_types, silent
from radixrt.grammar.schema.values import key_of, type_of

MAX_SHAPES = 256
MAX_WORK = 20_000
NODE_WORK = 5
CONTAINS_REACH = 4  # among that many first items those that ``contains`` asks for are looked for
SUBSETS = 4  # of that many choices every subset is tried, where it matters which of them an instance meets

NOT_NEGATED: dict[str, Any] = {
    "additionalProperties": True, "format": None, "multipleOf": None, "pattern": None, "patternProperties": {}, "propertyNames": True,
    "unevaluatedItems": True, "unevaluatedProperties": True, "uniqueItems": False,
}  # fmt: skip
"""Keywords whose violation has no shape, with the value that nothing violates."""

APPLYING = frozenset((
    "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "dependencies", "dependentSchemas", "dependentRequired",
    "contains",
))  # fmt: skip
"""Keywords that apply schemas to the instance itself, or make it need members."""

Shapes = list[Shape]


class Expander:
    """The shapes of the states of one document; each state is expanded once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.checker = Checker(self)
        self._shapes: dict[State, Shapes] = {}
        self._constants: dict[Any, Site] = {}
        self._asked: set[Site] = set()
        self._nodes: dict[tuple[Site, bool, bool, bool], Shapes] = {}
        self._work = 0
        self._dropped: list[tuple[str, str]] = []
        self.nothing = Site(False, "", "")

    def constant(self, value: Any) -> Site:
        """The site of a schema for one value."""
        return self._constants.setdefault(key_of(value), Site({"const": value}, "", ""))

    def shapes(self, state: State) -> Shapes:
        """The shapes of a state: what is finite filtered, what is empty left out."""
        found = self._shapes.get(state)
        if found is None:
            found, cuts = [NOTHING_SAID], self.checker.cuts
            for site, positive in sorted(state, key=lambda obligation: (obligation[0].pointer, id(obligation[0]), obligation[1])):
                found = self._product(found, self.node(site, positive), site)
            found = [kept for shape in found if (kept := self.checker.filtered(shape)) is not None]
            if self.checker.is_certain or self.checker.cuts == cuts:
                self._shapes[state] = found
        return found

    def node(
        self, site: Site, positive: bool, trail: frozenset[Any] = frozenset(), *, subsets: bool = False, needed: bool = True
    ) -> Shapes:
        """The shapes of one obligation.

        ``subsets``: which choices an instance meets matters, not only that it meets one.  ``needed``: refuse a negation of which
        nothing can be said; else there are no shapes.
        """
        if isinstance(site.value, bool):
            return [NOTHING_SAID] if site.value == positive else []
        if (site, positive) in trail:
            raise refused("$ref", site.pointer, "the reference leads back to itself")
        known = (site, positive, subsets, needed)
        if known in self._nodes:
            return self._nodes[known]
        cuts = self.checker.cuts
        self._work_done(NODE_WORK, site)
        trail |= {(site, positive)}
        if positive:
            counting = subsets or any(name in site.value for name in ("unevaluatedItems", "unevaluatedProperties"))
            shapes = self._met(site, trail, counting)
        else:
            shapes = self._violated(site, trail, needed=needed)
        if self.checker.is_certain or self.checker.cuts == cuts:
            self._nodes[known] = shapes
        return shapes

    def _violated(self, site: Site, trail: frozenset[Any], *, needed: bool) -> Shapes:
        dropped = len(self._dropped)
        shapes = [silent(shape) for shape in self._unmet(site, trail)]
        if not shapes and len(self._dropped) > dropped:
            keyword, pointer = self._dropped[dropped]
            if needed:
                raise refused(keyword, pointer, "it cannot be negated, as not, oneOf or if ask for")
        return shapes

    def _work_done(self, amount: int, site: Site) -> None:
        """Count work, some microseconds a unit; the limit bounds how long any schema takes."""
        self._work += amount
        if self._work > MAX_WORK:
            raise GrammarError("The schema is too complex: its choices multiply.", code="grammar_too_complex", pointer=site.pointer)

    def _wrong(self, site: Site, *path: str | int) -> State | None:
        """The state of what does not meet a subschema; None where nothing can be said of it."""
        below = self.document.child(site, *path)
        state: State = frozenset(((below, False),))
        if below in self._asked:
            return state
        self._asked.add(below)
        try:
            return state if self.shapes(state) else None
        except GrammarError as error:
            if error.code != "unsupported_schema":
                raise
            self._dropped.append((str(path[0]), site.pointer))
            return None
        finally:
            self._asked.discard(below)

    def _product(self, left: Shapes, right: Shapes, site: Site) -> Shapes:
        self._work_done(len(left) * len(right), site)
        if len(left) == 1 and left[0] is NOTHING_SAID:
            both = right
        else:
            both = [shape for one in left for other in right if (shape := meet(one, other)) is not None]
        if len(both) > MAX_SHAPES:
            message = f"The schema is too complex: the choices at #{site.pointer or '/'} multiply to more than {MAX_SHAPES}."
            raise GrammarError(message, code="grammar_too_complex", pointer=site.pointer)
        return both

    def _met(self, site: Site, trail: frozenset[Any], subsets: bool) -> Shapes:
        schema = site.value
        assert isinstance(schema, dict)
        referenced = self._referenced(site)
        if "$ref" in schema and self.document.draft <= 7:
            return self.node(referenced[0], True, trail, subsets=subsets)
        shapes: Shapes = [plain_facets(site, lambda *path: frozenset(((self.document.child(site, *path), True),)))]
        if (values := values_of(site)) is not None:
            shapes = self._product(shapes, [Shape(types=frozenset(map(type_of, values)), values=tuple(values))] if values else [], site)
        for factor in self._applied(site, referenced, trail, subsets):
            shapes = self._product(shapes, factor, site)
        if "unevaluatedItems" in schema:
            shapes = [self._rest_of_items(shape, site) for shape in shapes]
        if "unevaluatedProperties" in schema:
            shapes = [self._rest_of_members(shape, site) for shape in shapes]
        return shapes

    def _applied(self, site: Site, referenced: list[Site], trail: frozenset[Any], subsets: bool) -> Iterable[Shapes]:
        """The shapes of each keyword that applies schemas to the instance itself."""
        schema, child = site.value, self.document.child
        assert isinstance(schema, dict)
        if APPLYING.isdisjoint(schema):
            return
        for target in referenced:
            yield self.node(target, True, trail, subsets=subsets)
        for index in range(len(_list(site, "allOf"))):
            yield self.node(child(site, "allOf", index), True, trail, subsets=subsets)
        if "anyOf" in schema:
            yield self._any_of([child(site, "anyOf", index) for index in range(len(_list(site, "anyOf")))], site, trail, subsets)
        if "oneOf" in schema:
            yield self._one_of([child(site, "oneOf", index) for index in range(len(_list(site, "oneOf")))], site, trail, subsets)
        if "not" in schema:
            yield self.node(child(site, "not"), False, trail)
        if "if" in schema and self.document.draft >= 7:
            if "then" in schema or "else" in schema:
                yield self._conditional(site, trail, subsets)
            elif subsets:
                yield [NOTHING_SAID, *self.node(child(site, "if"), True, trail, subsets=True)]
        for name, needed in self._dependencies(site):
            present = of_type("object", required=(name,))
            if isinstance(needed, Site):
                then = self._product([present], self.node(needed, True, trail, subsets=subsets), site)
            else:
                then = [of_type("object", required=(name, *needed))]
            yield [_without_object(), lacking(name, self.nothing), *then]
        if "contains" in schema and self.document.draft > 4:
            yield self._containing(site)

    def _any_of(self, choices: list[Site], site: Site, trail: frozenset[Any], subsets: bool) -> Shapes:
        each = [self.node(choice, True, trail, subsets=subsets) for choice in choices]
        found = [shape for shapes in each for shape in shapes]
        if subsets and len(choices) <= SUBSETS:
            for size in range(2, len(choices) + 1):
                for chosen in combinations(each, size):
                    shapes = [NOTHING_SAID]
                    for more in chosen:
                        shapes = self._product(shapes, more, site)
                    found += shapes
        return found

    def _one_of(self, choices: list[Site], site: Site, trail: frozenset[Any], subsets: bool) -> Shapes:
        """Each choice, without what others of them would take too."""
        found: Shapes = []
        for i, choice in enumerate(choices):
            shapes = self.node(choice, True, trail, subsets=subsets)
            for j, other in enumerate(choices):
                if i != j and not self.checker.disjoint(choice, other):
                    shapes = self._product(shapes, self.node(other, False, trail), site)
            found += shapes
        return found

    def _conditional(self, site: Site, trail: frozenset[Any], subsets: bool) -> Shapes:
        schema, child = site.value, self.document.child
        assert isinstance(schema, dict)
        found: Shapes = []
        for condition, branch in ((True, "then"), (False, "else")):
            shapes = self.node(child(site, "if"), condition, trail, subsets=subsets)
            if branch in schema:
                shapes = self._product(shapes, self.node(child(site, branch), True, trail, subsets=subsets), site)
            found += shapes
        return found

    def _dependencies(self, site: Site, *, in_force: bool = False) -> Iterable[tuple[str, Site | tuple[str, ...]]]:
        """What the presence of a member asks for: a schema, or other members.  ``in_force``: by the letter of the draft."""
        schema = site.value
        assert isinstance(schema, dict)
        for keyword in ("dependencies", "dependentSchemas", "dependentRequired"):
            below = schema.get(keyword, {})
            if not isinstance(below, dict):
                raise refused(keyword, site.pointer, "expected an object")
            if in_force and keyword == "dependencies" and self.document.draft > 7:
                continue
            for name, needed in below.items():
                if isinstance(needed, list):
                    if not all(isinstance(other, str) for other in needed):
                        raise refused(keyword, site.pointer, "expected lists of names")
                    yield name, tuple(needed)
                else:
                    yield name, self.document.child(site, keyword, name)

    def _containing(self, site: Site) -> Shapes:
        """Arrays with the right number of matching items among the first few."""
        least, most = count(site, "minContains") if self.document.draft >= 2019 else None, None
        least = 1 if least is None else least
        if self.document.draft >= 2019:
            most = count(site, "maxContains")
        inner = self.document.child(site, "contains")
        match: State = frozenset(((inner, True),))
        other: State = ANY if most is None else frozenset(((inner, False),))
        not_array = other_types("array")
        assert not_array is not None
        found = [not_array]
        if least > CONTAINS_REACH:
            raise refused("minContains", site.pointer, f"more than {CONTAINS_REACH}")
        if least == 0 and most is None:
            return [NOTHING_SAID]
        if most is not None and most < least:
            return found
        for size in range(least, min(CONTAINS_REACH, most if most is not None else least) + 1):
            for places in combinations(range(CONTAINS_REACH), size):
                last = places[-1] + 1 if places else 0
                prefix = tuple(match if index in places else other for index in range(last))
                found.append(of_type("array", items=(Items(prefix, other, counts=False),), min_items=last))
        return found

    def _rest_of_items(self, shape: Shape, site: Site) -> Shape:
        counted = [items for items in shape.items if items.counts]
        if any(items.covers for items in counted):
            return shape
        reached = max((len(items.prefix) for items in counted), default=0)
        rest: State = frozenset(((self.document.child(site, "unevaluatedItems"), True),))
        return replace(shape, items=(*shape.items, Items((ANY,) * reached, rest, covers=True)))

    def _rest_of_members(self, shape: Shape, site: Site) -> Shape:
        counted = [members for members in shape.members if members.counts]
        if any(members.covers for members in counted):
            return shape
        names = {name: ANY for members in counted for name in members.names}
        patterns = tuple(dict.fromkeys((pattern, ANY) for members in counted for pattern, _ in members.patterns))
        rest: State = frozenset(((self.document.child(site, "unevaluatedProperties"), True),))
        return replace(shape, members=(*shape.members, Members(names, patterns, rest, covers=True)))

    def _referenced(self, site: Site) -> list[Site]:
        """The schemas that references of a schema name."""
        schema, document = site.value, self.document
        assert isinstance(schema, dict)
        found = [document.resolve(site, schema["$ref"])] if "$ref" in schema else []
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword not in schema or document.draft < 2019:
                continue
            target = document.resolve(site, schema[keyword], keyword)
            name = str(schema[keyword]).rpartition("#")[2]
            if len(document.dynamic.get(name, ())) > 1:
                raise refused(keyword, site.pointer, "which schema it means depends on the way there")
            found.append(target)
        return found

    def _unmet(self, site: Site, trail: frozenset[Any]) -> Shapes:
        """The shapes of what does not meet a schema: one of its keywords, at least, is violated."""
        schema, child, document = site.value, self.document.child, self.document
        assert isinstance(schema, dict)
        referenced = self._referenced(site)
        if "$ref" in schema and document.draft <= 7:
            return self.node(referenced[0], False, trail, needed=False)
        found: Shapes = [shape for target in referenced for shape in self.node(target, False, trail, needed=False)]
        if "type" in schema:
            found += self._of_other_types(site)
        if (values := values_of(site)) is not None:
            found += all_but(values, self.constant, self.nothing) if values else [NOTHING_SAID]
        low, high = bounds(site)
        if low is not None:
            found.append(of_type("number", high=(low[0], not low[1])))
        if high is not None:
            found.append(of_type("number", low=(high[0], not high[1])))
        found += self._outside_counts(site)
        found += [lacking(name, self.nothing) for name in names_in(site, "required")]
        for name in schema.get("properties", {}):
            if (wrong := self._wrong(site, "properties", name)) is not None:
                found.append(of_type("object", required=(name,), members=(Members({name: wrong}),)))
        found += self._wrong_items(site)
        for index in range(len(_list(site, "allOf"))):
            found += self.node(child(site, "allOf", index), False, trail, needed=False)
        if "anyOf" in schema:
            found += self._none_of([child(site, "anyOf", index) for index in range(len(_list(site, "anyOf")))], site, trail)
        if "oneOf" in schema:
            choices = [child(site, "oneOf", index) for index in range(len(_list(site, "oneOf")))]
            found += self._none_of(choices, site, trail)
            for one, other in combinations(choices, 2):
                found += self._product(self.node(one, True, trail), self.node(other, True, trail), site)
        if "not" in schema:
            found += self.node(child(site, "not"), True, trail)
        if "if" in schema and document.draft >= 7:
            for condition, branch in ((True, "then"), (False, "else")):
                if branch in schema:
                    wrong_branch = self.node(child(site, branch), False, trail, needed=False)
                    found += self._product(self.node(child(site, "if"), condition, trail, needed=False), wrong_branch, site)
        for name, needed in self._dependencies(site, in_force=True):
            present = of_type("object", required=(name,))
            if isinstance(needed, Site):
                found += self._product([present], self.node(needed, False, trail, needed=False), site)
            else:
                found += [shape for other in needed if (shape := meet(present, lacking(other, self.nothing))) is not None]
        found += self._not_containing(site)
        for keyword in NOT_NEGATED:
            if keyword in schema and schema[keyword] != NOT_NEGATED[keyword] and (keyword != "format" or schema[keyword] in FORMATS):
                self._dropped.append((keyword, site.pointer))
        return found

    def _wrong_items(self, site: Site) -> Shapes:
        """Arrays of which one item is wrong, among those that have a schema of their own and the first few others."""
        schema = site.value
        assert isinstance(schema, dict)
        first = "items" if isinstance(schema.get("items"), list) else "prefixItems"
        rest = "additionalItems" if first == "items" else "items"
        length = len(schema.get(first, []))
        places: list[tuple[str | int, ...]] = [(first, index) for index in range(length)]
        if rest in schema:
            places += [(rest,)] * CONTAINS_REACH
        found: Shapes = []
        for index, path in enumerate(places):
            if (wrong := self._wrong(site, *path)) is not None:
                found.append(of_type("array", min_items=index + 1, items=(Items((*[ANY] * index, wrong)),)))
        return found

    def _none_of(self, choices: list[Site], site: Site, trail: frozenset[Any]) -> Shapes:
        shapes: Shapes = [NOTHING_SAID]
        for choice in choices:
            shapes = self._product(shapes, self.node(choice, False, trail, needed=False), site)
        return shapes

    def _of_other_types(self, site: Site) -> Shapes:
        names = type_names(site)
        shape = other_types(*(["number"] if "integer" in names else []), *names)
        if "integer" in names and "number" not in names:
            self._dropped.append(("type", site.pointer))  # numbers that are not whole have no shape
        return [] if shape is None else [shape]

    def _outside_counts(self, site: Site) -> Shapes:
        """What has too few or too many characters, items or members."""
        found: Shapes = []
        for name, few, many, least_name, most_name in (
            ("string", "minLength", "maxLength", "min_length", "max_length"),
            ("array", "minItems", "maxItems", "min_items", "max_items"),
            ("object", "minProperties", "maxProperties", "min_members", "max_members"),
        ):
            least, most = count(site, few), count(site, many)
            if least:
                found.append(of_type(name, **{most_name: least - 1}))
            if most is not None:
                found.append(of_type(name, **{least_name: most + 1}))
        return found

    def _not_containing(self, site: Site) -> Shapes:
        schema = site.value
        assert isinstance(schema, dict)
        if "contains" not in schema or self.document.draft <= 4:
            return []
        if self.document.draft >= 2019 and ("minContains" in schema or "maxContains" in schema):
            self._dropped.append(("contains", site.pointer))
            return []
        return [of_type("array", items=(Items((), frozenset(((self.document.child(site, "contains"), False),))),))]


def _without_object() -> Shape:
    shape = other_types("object")
    assert shape is not None
    return shape


def _list(site: Site, keyword: str) -> list[Any]:
    assert isinstance(site.value, dict)
    below = site.value.get(keyword, [])
    if not isinstance(below, list) or (keyword in site.value and not below):
        raise refused(keyword, site.pointer, "expected a list of schemas")
    return below
