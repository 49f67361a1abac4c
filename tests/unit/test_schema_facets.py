"""The plain keywords of a schema, as one shape."""

from __future__ import annotations

from typing import Any

from radixrt.grammar.schema.document import Site
from radixrt.grammar.schema.facets import PLAIN, plain_facets
from radixrt.grammar.schema.shapes import ANY, NOTHING_SAID, Shape


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


def test_a_schema_without_plain_keywords_is_told_by_its_keys_alone() -> None:
    schemas = [Asked(minLength=0), Asked(items=[True])]  # with either meaning of ``items``
    for schema in schemas:
        plain_facets(Site(schema, "", ""), lambda *path: ANY)
    assert set().union(*(schema.keywords for schema in schemas)) == PLAIN
    assert plain_facets(Site({"type": "string", "title": "name"}, "", ""), lambda *path: ANY) is NOTHING_SAID
    assert plain_facets(Site({"minLength": 0}, "", ""), lambda *path: ANY) == NOTHING_SAID == Shape()
