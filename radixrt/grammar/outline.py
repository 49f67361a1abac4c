"""What the next mask of a grammar depends on, as a key: the text so far, less what cannot matter any more.

For most JSON schemas a value that is complete says nothing of what may follow, and of an open string only its length counts, of an
open number only which of its parts have begun.  Keys that a schema does not name are one, and how many members they have had does
not count; nor does how many items, where an array may have any number of one kind.
Requests of one schema then come to the same places whatever their values are, and share masks.  A schema of which that is not
known has its whole text for a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from radixrt.grammar.string_bounds import DONE, MAX_PLACES, NOTES, OTHER_KEY, Asked, Values, agree, make_body

MAX_KEY_BYTES = 4096
"""Longer texts have no place: what they share is not worth the bytes."""
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_LENGTHS = {"minLength", "maxLength"}
_SPELLING = {"pattern", "format"}
_SHAPE = {"type", "required", "minItems", "maxItems", "$ref"}
_MAPS = {"properties", "patternProperties", "$defs", "definitions"}
_CHILDREN = {"additionalProperties", "items"}
_CHOICES = {"anyOf", "oneOf"}
_LISTS = {"prefixItems"} | _CHOICES
_VALUES = {"enum", "const"}
_KNOWN = NOTES | _NUMBERS | _LENGTHS | _SPELLING | _SHAPE | _MAPS | _CHILDREN | _LISTS | _VALUES
_SPACE = b" \t\r\n"
_RUN = re.compile(rb"[ !#-\[\]-~]+")
_NUMBER = re.compile(rb"(-?)(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?)?([0-9]*)")
_BLANK = _SPACE[0]
_OTHER_MEMBER = OTHER_KEY + b":"
_OTHER_MEMBERS = _OTHER_MEMBER + DONE + b"," + _OTHER_MEMBER
_ITEMS = b"[" + DONE + b","
_BEGUN_OTHER = b'"\0'
"""Stands for the beginning of a key that no key has which the schema names."""


class Place(NamedTuple):
    """A key, and all that is needed to go on from it.

    ``text``: the outline; ``open_at``: where in it each open container starts; ``kind``: what is open besides: a ``k``ey or another
    ``v``alue, which start at ``value_at``, a ``s``tring, or nothing.  Of an open string: its characters as far as they
    count, its bytes while they may matter, and those of a character that is not complete; of one whose ``Body`` is known instead of
    the first two its ``state``.
    """

    text: bytes = b""
    open_at: tuple[int, ...] = ()
    kind: str = ""
    value_at: int = 0
    length: int = 0
    spelled: bytes | None = None
    partial: bytes = b""
    state: int = 0


class Outline:
    """The places of one grammar.  ``schema``: what its texts are JSON of, normalised; None where that is not all they are."""

    def __init__(self, schema: dict[str, Any] | bool | None) -> None:
        nodes = list(_nodes(schema)) if schema is not None else []
        self.forgets = schema is not None and all(_forgets(schema, node) for node in nodes)
        """Whether complete values are left out."""
        self._longest = max((int(node[key]) for node in nodes for key in _LENGTHS & node.keys()), default=-1) + 1
        literals = {text for node in nodes for value in _values(node) if isinstance(value, str) and (text := literal(value))}
        self._prefixes = {text[:end] for text in literals for end in range(len(text) + 1)} if self.forgets else set()
        self._is_listed = all(literal(value) is not None for node in nodes for value in _values(node) if isinstance(value, str))
        self._has_spelling = any(_SPELLING & node.keys() for node in nodes)
        self.schema = schema
        self.values = Values(schema)
        if self.forgets:
            for node in nodes:
                if (_SPELLING | _CHOICES) & node.keys():
                    make_body(schema, node, self.values.bodies)  # here, by whoever compiles, and not in a step
        self._begun: dict[bytes, set[bytes] | None] = {}
        self._texts: dict[tuple[str, ...], list[bytes] | None] = {}

    def string(self, place: Place | None) -> Asked | None:
        """What is asked of the string open at a place: how long it may be, or its automaton, which is in the place's ``state``, or
        what it may be; None at other places."""
        if place is None or place.kind != "s" or not self.forgets:
            return None
        return self.values.asked(place.text, place.open_at)

    def texts(self, place: Place | None) -> list[bytes] | None:
        """What the string open at a place may be, as JSON spells it, where its values are listed; None where that is not known."""
        asked = self.string(place)
        texts = None if asked is None else asked.texts
        if texts is None:
            return None
        if texts not in self._texts:
            spelled = [literal(text) for text in texts]
            known = [text for text in spelled if text is not None]
            self._texts[texts] = known if len(known) == len(spelled) else None
        return self._texts[texts]

    def is_whole(self, place: Place | None) -> bool:
        """Whether a place is behind a whole text, closed by a character of its own."""
        return place is not None and place.text == DONE and not place.kind and self.forgets

    def is_behind_value(self, place: Place) -> bool:
        """Whether a value is complete right before a place, in a container."""
        return place.text.endswith(DONE) and not place.kind and self.forgets and bool(place.open_at)

    def asked(self, place: Place | None) -> Asked | None:
        """What is asked of the value of a key, at a place behind its colon; None at others, and where that is not known."""
        if place is None or place.kind or not self.forgets:
            return None
        text = place.text.rstrip(_SPACE)
        found = self.values.asked(text, place.open_at) if text.endswith(b":") else None
        return None if found is None or found.kinds is None else found

    def start(self) -> Place:
        """The place before any text."""
        return Place()

    def after(self, place: Place | None, spelled: bytes) -> Place | None:
        """Return the place that bytes lead to; None when it is too far from the start."""
        if place is None:
            return None
        if not self.forgets:
            place = Place(place.text + spelled)
        else:
            at = 0
            while at < len(spelled):
                run = _RUN.match(spelled, at) if place.kind in ("s", "k") and not place.partial else None
                if run is None:
                    place, at = self._step(place, spelled[at]), at + 1
                else:
                    place, at = self._after_run(place, run.group()), run.end()
        return place if len(place.text) + len(place.spelled or b"") <= MAX_KEY_BYTES else None

    def _after_run(self, place: Place, run: bytes) -> Place:
        """What ``_step`` leads to byte by byte, where a string or key goes on with characters of one byte."""
        if place.kind == "k":
            return self._in_key(place, place.text + run)
        if (body := self.values.asked(place.text, place.open_at).body) is not None:
            return place._replace(state=body.tables.walk(place.state, run))
        spelled = None if place.spelled is None else self._may_matter(place, place.spelled + run)
        return Place(place.text, place.open_at, "s", 0, min(place.length + len(run), self._longest), spelled)

    def _may_matter(self, place: Place, spelled: bytes) -> bytes | None:
        """The bytes of an open string while they may tell what follows."""
        if spelled in self._prefixes or not self._is_listed:
            return spelled
        return spelled if self._has_spelling and self.values.asked(place.text, place.open_at).is_spelled else None

    def _step(self, place: Place, byte: int) -> Place:
        if byte in _SPACE and place.kind not in ("s", "k"):
            byte = _BLANK  # of white space only the length counts, and nothing once something else follows
        char = bytes((byte,))
        match place.kind:
            case "s":
                return self._in_string(place, byte)
            case "k":
                if place.partial:
                    return self._in_key(place, place.text + char)
                if char == b'"':
                    return self._behind_key(place.text[: place.value_at], place.text[place.value_at :] + char, place.open_at)
                if char == b"\\":
                    return place._replace(text=place.text + char, partial=char)
                return self._in_key(place, place.text + char)
            case "v" if byte in b",]}" or byte in _SPACE:
                place = self.behind_value(place.text[: place.value_at], place.open_at)
            case "v":
                return self._in_value(place, char)
        if byte == _BLANK:
            return place._replace(text=place.text + char)
        text, open_at = place.text.rstrip(_SPACE), place.open_at
        if char == b'"':
            if open_at and text[open_at[-1]] == ord("{") and text[-1:] in (b"{", b","):
                return Place(text + char, open_at, "k", len(text))
            return Place(text, open_at, "s", spelled=None if self.values.asked(text, open_at).body else b"")
        if char in (b"{", b"["):
            return Place(text + char, (*open_at, len(text)))
        if char in (b"}", b"]") and open_at:
            return self.behind_value(text[: open_at[-1]], open_at[:-1])
        if byte in b",:]}":
            return Place(text + char, open_at)
        return Place(text + char, open_at, "v", len(text))

    def _in_key(self, place: Place, text: bytes) -> Place:
        """The place in a key, which is one for all keys that begin like none that the schema names."""
        before, key = text[: place.value_at], text[place.value_at :]
        begun = self._begun_names(before, place.open_at)
        if begun is not None and key not in begun and _is_whole(key):
            text = before + _BEGUN_OTHER
        return place._replace(text=text, partial=b"")

    def _begun_names(self, before: bytes, open_at: tuple[int, ...]) -> set[bytes] | None:
        """What the keys begin with that the schema of the open object names; None where that is not known."""
        begin = before[: open_at[-1] + 1]
        if begin not in self._begun:
            if len(self._begun) >= MAX_PLACES:
                self._begun.clear()
            names = self.values.names(before, open_at)
            spelled = [None] if names is None else [literal(name) for name in names]
            whole = [b'"' + name for name in spelled if name is not None]
            self._begun[begin] = {name[:end] for name in whole for end in range(len(name) + 1)} if None not in spelled else None
        return self._begun[begin]

    def _behind_key(self, before: bytes, key: bytes, open_at: tuple[int, ...]) -> Place:
        return Place(before + (key if self.values.is_named(before, open_at, key) else OTHER_KEY), open_at)

    def behind_value(self, before: bytes, open_at: tuple[int, ...]) -> Place:
        """Return the place where the value that begins behind a text is complete."""
        if before.endswith(_OTHER_MEMBERS):
            before = before[: -len(_OTHER_MEMBERS)] + _OTHER_MEMBER
        elif open_at and before.endswith(_ITEMS) and open_at[-1] == len(before) - len(_ITEMS) and self.values.repeats(before, open_at):
            before = before[: -len(_ITEMS)] + b"["
        return Place(before + DONE, open_at)

    def _in_value(self, place: Place, char: bytes) -> Place:
        """Of a number that is longer than what it is compared with, all further digits are one; a fraction is zero or not, and ends
        in zeros or not, which the engine forbids some numbers."""
        before, value = place.text[: place.value_at], place.text[place.value_at :] + char
        number = _NUMBER.fullmatch(value)
        if number is not None:
            digits = self.values.asked(before, place.open_at).digits
            if digits is not None:
                sign, whole, fraction, power, exponent = number.groups(b"")
                if whole != b"0" and len(whole) > digits:
                    whole = b"1" * (digits + 1)
                if fraction[1:]:
                    fraction = b".0" if not fraction.strip(b".0") else b".10" if fraction.endswith(b"0") else b".1"
                value = sign + whole + fraction + power.lower() + (b"1" if exponent else b"")
        return place._replace(text=before + value)

    def _in_string(self, place: Place, byte: int) -> Place:
        char = bytes((byte,))
        if char == b'"' and place.partial != b"\\":
            return self.behind_value(place.text, place.open_at)
        partial = place.partial + char
        spelled = None if place.spelled is None else self._may_matter(place, place.spelled + char)
        first = partial[0]
        whole = 2 if partial[:1] == b"\\" else 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        body = self.values.asked(place.text, place.open_at).body
        state = 0 if body is None else body.tables.step(place.state, byte)
        if len(partial) < whole or body is not None:
            return place._replace(spelled=spelled, partial=partial if len(partial) < whole else b"", state=state)
        return place._replace(spelled=spelled, partial=b"", length=min(place.length + 1, self._longest))


def _is_whole(text: bytes) -> bool:
    """Whether a text ends between two characters."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and those in it, as far as known keywords lead."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in (_MAPS | _CHILDREN | _LISTS) & schema.keys():
        children = schema[keyword]
        if keyword in _CHILDREN:
            children = (children,)
        elif isinstance(children, dict):
            children = children.values()
        for child in children if not isinstance(children, bool) else ():
            yield from _nodes(child)


def _forgets(schema: Any, node: dict[str, Any]) -> bool:
    """Whether what follows a complete value is the same whatever it was: of the alternatives, only one goes on inside a container,
    or none has to be told from another by what a container holds but its keys."""
    choices = _CHOICES & node.keys()
    return (
        node.keys() <= _KNOWN
        and all(isinstance(node[keyword], dict | bool) for keyword in _CHILDREN & node.keys())
        and not any(isinstance(value, dict | list) for value in _values(node))
        and len(choices) <= 1
        and all(sum(map(_may_contain, node[keyword])) <= 1 or agree(schema, node) for keyword in choices)
    )


def _may_contain(schema: dict[str, Any] | bool) -> bool:
    """Whether a value may be an object or an array."""
    if not isinstance(schema, dict):
        return schema
    if _VALUES & schema.keys():
        return any(isinstance(value, dict | list) for value in _values(schema))
    types = schema.get("type", "object")
    return bool({"object", "array"} & {*([types] if isinstance(types, str) else types)})


def _values(node: dict[str, Any]) -> list[Any]:
    return [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]


def literal(value: str) -> bytes | None:
    """The one spelling of a text in JSON without ``\\u``; None where it has none, or may have another."""
    if value.isascii() and _RUN.fullmatch(plain := value.encode()):
        return plain
    text = json.dumps(value, ensure_ascii=False)[1:-1]
    return None if "\\u" in text or "\x7f" in text or (not value.isascii() and not _encodes(value)) else text.encode()


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True
