"""A schema document: where its subschemas are, and what their references name.  Nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_rs

from radixrt.grammar.schema.problems import refused

DIALECTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "http://json-schema.org/schema": 2020,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "https://spec.openapis.org/oas/3.1/dialect/base": 2020,
}
META = {
    2020: "https://json-schema.org/draft/2020-12/schema",
    2019: "https://json-schema.org/draft/2019-09/schema",
    7: "http://json-schema.org/draft-07/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    4: "http://json-schema.org/draft-04/schema#",
}
ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
ONE_LATE = ("contentSchema", "unevaluatedItems", "unevaluatedProperties")
_EVER_ONE = frozenset(ONE + ONE_LATE)
LISTS = ("allOf", "anyOf", "oneOf", "items", "prefixItems")
MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
Schema = dict[str, Any] | bool
_LATER = (("const", "contains", "propertyNames"), ("if", "then", "else"),
          ("dependentRequired", "dependentSchemas", "maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"),
          ("prefixItems",))  # fmt: skip
FOREIGN = {
    4: frozenset((*_LATER[0], *_LATER[1], *_LATER[2], *_LATER[3])),
    6: frozenset((*_LATER[1], *_LATER[2], *_LATER[3])),
    7: frozenset((*_LATER[2], *_LATER[3])),
    2019: frozenset(_LATER[3]),
    2020: frozenset(("additionalItems", "$recursiveRef", "$recursiveAnchor")),
}
"""Keywords that mean nothing in a draft.  ``dependencies`` are kept in all: many write them where they mean nothing any more."""

_CHECKED = frozenset(("$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties"))


@dataclass(frozen=True, eq=False)
class Site:
    """A subschema at its place: its value, the JSON pointer to it in the document, and the URI that references start from."""

    value: Schema
    pointer: str
    base: str


class Document:
    """A schema with everything in it; sites are the same object each time they are asked for.

    Raises GrammarError for a dialect that is not known, and for references that do not resolve.
    """

    def __init__(self, root: Schema) -> None:
        self.draft = dialect(root)
        self._sites: dict[tuple[int, str], Site] = {}
        self._resources: dict[str, Site] = {}
        self._anchors: dict[tuple[str, str], Site] = {}
        self.dynamic: dict[str, list[Site]] = {}
        self.root = self.site(root, "", "")
        self._resources.setdefault("", self.root)
        self._register(self.root)

    def has_any(self, keywords: frozenset[str]) -> bool:
        """Whether a subschema seen so far has one of these keywords."""
        return any(isinstance(site.value, dict) and not keywords.isdisjoint(site.value) for site in self._sites.values())

    def site(self, value: Any, pointer: str, base: str) -> Site:
        """The site of a value; GrammarError unless it is a schema."""
        found = self._sites.get((id(value), pointer))
        if found is None:
            if not isinstance(value, dict | bool):
                raise refused("schema", pointer, "a schema must be an object or a boolean")
            if isinstance(value, dict) and self._has_own_id(value):
                base = _join(base, value["$id" if self.draft > 4 else "id"])
            known, foreign = value, FOREIGN[self.draft]
            if isinstance(value, dict) and not foreign.isdisjoint(value):
                known = {name: below for name, below in value.items() if name not in foreign}
            found = self._sites[id(value), pointer] = Site(known, pointer, base)
        return found

    def child(self, site: Site, *path: str | int) -> Site:
        """The subschema below a site."""
        value: Any = site.value
        for step in path:
            value = value[step]
        return self.site(value, site.pointer + "".join(f"/{_escaped(str(step))}" for step in path), site.base)

    def resolve(self, site: Site, reference: Any, keyword: str = "$ref") -> Site:
        """The site that a reference names."""
        if not isinstance(reference, str):
            raise refused(keyword, site.pointer, "a reference must be a string")
        url, fragment = urldefrag(_join(site.base, reference))
        start = self._resources.get(url)
        if start is None and not url:
            start = self.root
        if start is None:
            raise refused(keyword, site.pointer, f"{reference[:100]!r} is not in the schema, and nothing is fetched")
        fragment = unquote(fragment)
        if not fragment:
            return start
        if fragment.startswith("/"):
            return self._at(start, fragment, site, keyword)
        found = self._anchors.get((url, fragment))
        if found is None:
            raise refused(keyword, site.pointer, f"there is no anchor {fragment[:100]!r}")
        return found

    def _at(self, start: Site, fragment: str, site: Site, keyword: str) -> Site:
        value: Any = start.value
        base, pointer = start.base, start.pointer
        for step in fragment[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise refused(keyword, site.pointer, f"there is nothing at {fragment[:100]!r}")
            pointer += f"/{_escaped(name)}"
            if isinstance(value, dict) and self._has_own_id(value):
                base = _join(base, value["$id" if self.draft > 4 else "id"])
        return self.site(value, pointer, base)

    def _has_own_id(self, value: dict[str, Any]) -> bool:
        own = value.get("$id" if self.draft > 4 else "id")
        return isinstance(own, str) and not own.startswith("#") and not (self.draft <= 7 and "$ref" in value)

    def _register(self, root: Site) -> None:
        """Note every resource and anchor."""
        waiting = [root]
        while waiting:
            site = waiting.pop()
            value = site.value
            if isinstance(value, bool):
                continue
            plain = not (self.draft <= 7 and "$ref" in value)
            own = value.get("$id" if self.draft > 4 else "id")
            if plain and isinstance(own, str):
                url, fragment = urldefrag(site.base if self._has_own_id(value) else _join(site.base, own))
                if not fragment:
                    self._resources.setdefault(url, site)
                elif self.draft <= 7:
                    self._anchors.setdefault((url, fragment), site)
            for keyword in ("$anchor", "$dynamicAnchor"):
                name = value.get(keyword)
                if isinstance(name, str) and self.draft > 7:
                    self._anchors.setdefault((urldefrag(site.base)[0], name), site)
                    if keyword == "$dynamicAnchor":
                        self.dynamic.setdefault(name, []).append(site)
            if value.get("$recursiveAnchor") is True:
                self.dynamic.setdefault("", []).append(site)
            waiting += self._children(site)

    def _children(self, site: Site) -> Iterator[Site]:
        value = site.value
        assert isinstance(value, dict)
        for keyword, below in value.items():
            if keyword in MAPS and isinstance(below, dict):
                yield from (self.child(site, keyword, name) for name, item in below.items() if isinstance(item, dict | bool))
            elif keyword in LISTS and isinstance(below, list):
                yield from (self.child(site, keyword, i) for i, item in enumerate(below) if isinstance(item, dict | bool))
            elif keyword in _EVER_ONE and isinstance(below, dict | bool):
                yield self.child(site, keyword)


def dialect(root: Schema) -> int:
    """Return the draft of a schema: 4, 6, 7, 2019 or 2020.

    One that names none is read by the latest draft whose rules it keeps.  Raises GrammarError where it keeps none, with the
    place that breaks them.
    """
    named = root.get("$schema") if isinstance(root, dict) else None
    drafts = tuple(META) if named is None else ()
    if named is not None:
        known = DIALECTS.get(named.rstrip("#")) if isinstance(named, str) else None
        if known is None:
            raise refused("$schema", "", f"the dialect {str(named)[:100]!r} is not known")
        drafts = (known,)
    errors = []
    for draft in drafts:
        try:
            jsonschema_rs.meta.validate(root if isinstance(root, bool) else {**root, "$schema": META[draft]})
            return draft
        except (jsonschema_rs.ValidationError, ValueError) as error:
            errors.append(error)
    path = getattr(errors[0], "instance_path", ())
    pointer = "".join(f"/{_escaped(str(step))}" for step in path[:-1])
    raise refused(str(path[-1]) if path else "schema", pointer, str(errors[0]).partition("\n")[0][:200])


def check_readable(document: Document, root: Schema) -> None:
    """Raise GrammarError unless answers can be checked against the schema itself, whatever is looked at of it to make a grammar.

    Only references and patterns can be wrong where the rules of the dialect are kept.
    """
    if isinstance(root, bool) or not document.has_any(_CHECKED):
        return
    try:
        jsonschema_rs.validator_for({**root, "$schema": META[document.draft]}, offline=True, validate_formats=False)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        path = list(getattr(error, "instance_path", ()))
        at = max((i for i, step in enumerate(path) if step in _CHECKED), default=0)
        pointer = "".join(f"/{_escaped(str(step))}" for step in path[:at])
        raise refused(str(path[at]) if path else "$ref", pointer, str(error).partition("\n")[0][:200]) from None


def _join(base: str, reference: str) -> str:
    """Resolve a reference; URNs, which urljoin does not know, keep everything but their fragment."""
    if reference.startswith("#"):
        return urldefrag(base)[0] + reference
    return urljoin(base, reference)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
