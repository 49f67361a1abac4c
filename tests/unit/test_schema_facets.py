"""The plain keywords of a schema, as one shape."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.grammar.schema.document import Site
from radixrt.grammar.schema.facets import OF_ARRAYS, OF_NUMBERS, OF_OBJECTS, OF_STRINGS, plain_facets
from radixrt.grammar.schema.shapes import ANY, NOTHING_SAID, Shape, meet


class Asked(dict[str, Any]):
    """A schema that notes which keywords it is asked for."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(keywords)
        self.keywords: set[str] = set()

    def __contains__(self, keyword: object) -> bool:
        self.keywords.add(str(keyword))
        return super().__contains__(keyword)

    def __getitem__(self, keyword: str) -> Any:
        self.keywords.add(keyword)
        return super().__getitem__(keyword)

    def get(self, keyword: str, default: Any = None) -> Any:
        self.keywords.add(keyword)
        return super().get(keyword, default)


OBLIGED = lambda *path: ANY  # noqa: E731


@pytest.mark.parametrize(
    ("keywords", "schemas"),
    [
        (OF_NUMBERS, [{"minimum": 0}]),
        (OF_STRINGS, [{"minLength": 0}]),
        (OF_ARRAYS, [{"items": True}, {"items": [True]}]),  # with either meaning of ``items``
        (OF_OBJECTS, [{"required": []}]),
    ],
)
def test_keywords_are_told_by_the_keys_alone(keywords: frozenset[str], schemas: list[dict[str, Any]]) -> None:
    asked = [Asked(**schema) for schema in schemas]
    for schema in asked:
        plain_facets(Site(schema, "", ""), OBLIGED)
    assert set().union(*(schema.keywords for schema in asked)) == {*keywords, "type"}


def test_what_says_nothing_is_no_shape_of_its_own() -> None:
    assert plain_facets(Site({"title": "name"}, "", ""), OBLIGED) is NOTHING_SAID
    assert plain_facets(Site({"minLength": 0}, "", ""), OBLIGED) == NOTHING_SAID == Shape()
    assert plain_facets(Site({"type": "string", "title": "name"}, "", ""), OBLIGED) == Shape(types=frozenset(("string",)))


@pytest.mark.parametrize("names", ["integer", "number", ["integer", "string"], ["integer", "number"]])
@pytest.mark.parametrize("schema", [{"multipleOf": 0.5}, {"multipleOf": 1.5, "minLength": 2}, {"maximum": 7}, {"required": ["a"]}])
def test_the_type_is_met_with_the_rest(schema: dict[str, Any], names: Any) -> None:
    apart = [plain_facets(Site(part, "", ""), OBLIGED) for part in (schema, {"type": names})]
    assert plain_facets(Site({**schema, "type": names}, "", ""), OBLIGED) == meet(*apart)
