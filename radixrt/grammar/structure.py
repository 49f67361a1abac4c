"""What may come next in JSON text, as a schema says it: the forced texts up to the next choice, and what a value may begin with there.

It knows the order that llguidance gives members of objects (those listed, then those required, then any others), counts of items,
and how the engine spells numbers.  Only for text whose white space is fixed.  What it cannot tell for sure it says nothing of.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from radixrt.grammar.number_spellings import LARGEST, NUMERIC, Numbers, has_choices, is_whole, numbers_of
from radixrt.grammar.object_keys import Keys, ObjectKeys
from radixrt.grammar.outline import Outline, Place, literal
from radixrt.grammar.string_bounds import DONE, KINDS, OTHER_KEY, Bounds
from radixrt.grammar.string_masks import read_characters
from radixrt.grammar.string_patterns import Body

MAX_AHEAD = 1024
"""For how many places of a grammar it is kept what comes next."""
MAX_TEXTS = 64
"""Where more keys or values than this may come, an engine's mask takes less time."""
MAX_FORCED = 64
"""How far it is looked for what must come."""
_DIGITS = b"0123456789"
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BLANK = b" "
_OTHER_DONE = OTHER_KEY + b":" + DONE
_TEXTS = {"boolean": (b"true", b"false"), "null": (b"null",), "object": (b"{",), "array": (b"[",)}


class Ahead(NamedTuple):
    """What may come next at a place.

    ``texts``: bytes, each with the place that they lead to.  ``numbers``: whole ones or any that may begin, or go on behind
    ``spelled``; ``string``: how long one may be that begins, or its automaton; ``behind``: the place behind either.  ``is_key``: whether
    the characters of a key may follow that the schema does not name.  ``is_end``: whether the text may end.  ``unsure``: with which bytes
    something may begin besides of which nothing is known.
    """

    texts: list[tuple[bytes, Place]] = []
    numbers: tuple[Numbers, ...] = ()
    spelled: bytes = b""
    string: Bounds | Body | None = None
    behind: Place = Place()
    is_key: bool = False
    is_end: bool = False
    unsure: bytes = b""


class Structure:
    """Tells what comes next in the texts of one schema.  ``escapes``: the characters that may follow a backslash in strings."""

    def __init__(self, outline: Outline, escapes: str) -> None:
        self._outline = outline
        self._escapes = escapes
        spacing = outline.schema.get("x-guidance", {}) if isinstance(outline.schema, dict) else {}
        self.is_known = outline.forgets and spacing.get("whitespace_flexible") is False
        """Whether anything is known at all."""
        self._comma = spacing.get("item_separator", ",").encode()
        self._colon = spacing.get("key_separator", ":").encode()
        self._after: dict[bytes, Ahead | None] = {}
        self._values: dict[bytes, Ahead] = {}
        self._beginnings: dict[tuple[int, ...], tuple[list[bytes], tuple[Numbers, ...], bytes]] = {}
        self._between: dict[bytes, Ahead | None] = {}
        self._object_keys = ObjectKeys(self._colon, outline.values.bodies)

    def ahead(self, place: Place) -> Ahead | None:
        """Return what may come next; None where it is not known."""
        if not self.is_known:
            return None
        text, open_at = place.text, place.open_at
        match place.kind:
            case "":
                pass
            case "k":
                before, spelled = text[: place.value_at], text[place.value_at :]
                if before.endswith(b","):
                    before, spelled = before[:-1], self._comma + spelled
                found = self._cut(before, open_at, spelled)
                return None if found is None or (found.is_key and not _is_between_characters(place)) else found
            case "v":
                before, spelled = text[: place.value_at], text[place.value_at :]
                value = self._value(before, open_at)
                if spelled[0] in value.unsure:
                    return None
                texts = _after(value.texts, spelled)
                if spelled[0] not in b"-" + _DIGITS:
                    return Ahead(texts)
                if is_whole(value.numbers, spelled):
                    texts.append((b"", value.behind))
                return Ahead(texts, value.numbers, spelled, None, value.behind)
            case "s":
                listed = self._outline.texts(place)
                if listed is None or place.spelled is None:
                    return None
                behind = self._behind(text, open_at)
                return Ahead(_after([(one + b'"', behind) for one in listed], place.spelled))
        if text not in self._after:
            if len(self._after) >= MAX_AHEAD:
                self._after.clear()
            self._after[text] = self._ahead(text, open_at)
        return self._after[text]

    def _ahead(self, text: bytes, open_at: tuple[int, ...]) -> Ahead | None:
        """The same where no key, string or other scalar is open."""
        known = text.rstrip(_BLANK)
        blanks = text[len(known) :]
        last = known[-1:]
        if last == b",":
            return self._cut(known[:-1], open_at, b"," + blanks)
        if last == b":":
            rest = self._colon[1 + len(blanks) :]
            return Ahead([(rest, Place(known + self._colon[1:], open_at))]) if rest else self._value(known, open_at)
        if blanks:
            return None
        if not open_at:
            return self._value(text, open_at) if not text else Ahead(is_end=True)
        if last in (b'"', OTHER_KEY):
            return Ahead([(self._colon, Place(text + self._colon, open_at))])
        return self._member(text, open_at)

    def behind_key(self, place: Place) -> Place:
        """Return the place behind the key that is open, if it is none that the schema names."""
        return Place(place.text[: place.value_at] + OTHER_KEY, place.open_at)

    def named(self, place: Place) -> set[bytes]:
        """Return the keys that the schema names of the object whose key is open, as JSON spells them."""
        found = self._keys(place.text[: place.value_at], place.open_at)
        return set() if found is None else found.taken

    def forced(self, ahead: Ahead) -> tuple[bytes, bool]:
        """Return bytes that must come next, and whether no more are known to."""
        found = b""
        while len(found) < MAX_FORCED and not ahead.unsure:
            if ahead.is_key or ahead.is_end or (ahead.numbers and not ahead.spelled and any(map(has_choices, ahead.numbers))):
                return found, True
            if ahead.numbers or (isinstance(ahead.string, Bounds) and ahead.string.most == 0):
                return found, False
            texts = [text for text, _ in ahead.texts]
            if isinstance(ahead.string, Body) and not texts:
                text, goes_on = ahead.string.forced(0)
                return found + b'"' + text, goes_on
            if len(texts) != 1 or ahead.string is not None:
                return found + common(texts if ahead.string is None else [*texts, b'"']), True
            found += texts[0]
            following = self.ahead(ahead.texts[0][1])
            if following is None:
                break
            ahead = following
        return found, False

    def goes(self, place: Place, rest: bytes) -> bool | None:
        """Whether bytes may come at a place; None where it is not known."""
        ahead = self.ahead(place)
        if ahead is None or rest[0] in ahead.unsure:
            return None
        first, is_sure = rest[0], True
        for text, then in ahead.texts:
            if not text:
                found = self.goes(then, rest)
            elif text[0] != first:
                continue
            elif text.startswith(rest):
                return True
            else:
                found = rest.startswith(text) and self.goes(then, rest[len(text) :])
            if found:
                return True
            is_sure = is_sure and found is not None
        found = False
        if ahead.numbers and first in NUMERIC:
            found = self.number_goes(ahead, rest)
        elif ahead.string is not None and first == ord('"'):
            found = self.string_goes(ahead, rest[1:])
        elif ahead.is_key:
            found = self.key_goes(place, rest)
        return found if found or is_sure else None

    def number_goes(self, ahead: Ahead, rest: bytes) -> bool | None:
        """Whether a number may begin with bytes, or go on with them."""
        behind = rest.lstrip(NUMERIC)
        spelled = ahead.spelled + rest[: len(rest) - len(behind)]
        if not behind:
            return any(numbers.begins(spelled) for numbers in ahead.numbers)
        return any(numbers.is_whole(spelled) for numbers in ahead.numbers) and self.goes(ahead.behind, behind)

    def string_goes(self, ahead: Ahead, rest: bytes) -> bool | None:
        """Whether bytes may follow the quote that opens a string."""
        match read_characters(rest, self._escapes):
            case int() as length:
                return self.string_fits(ahead, rest, length, is_whole=False)
            case (length, behind):
                fits = self.string_fits(ahead, rest, length, is_whole=True)
                return fits and (not behind or self.goes(ahead.behind, behind))
        return False

    def string_fits(self, ahead: Ahead, text: bytes, length: int, *, is_whole: bool) -> bool:
        """Whether a string may begin with a text that has so many characters of it, and end there if the text closes it."""
        if isinstance(ahead.string, Body):
            return ahead.string.begins(text)
        assert ahead.string is not None
        fewest, most = ahead.string
        return (most is None or length <= most) and (length >= fewest or not is_whole)

    def key_goes(self, place: Place, rest: bytes) -> bool | None:
        """Whether a key that the schema does not name may go on with bytes, at a place in a key."""
        match read_characters(rest, self._escapes):
            case int():
                return True
            case (_, behind):
                return self.key_ends(place, rest[: len(rest) - len(behind)], behind)
        return False

    def key_ends(self, place: Place, rest: bytes, behind: bytes) -> bool | None:
        """Whether a key that the schema does not name may end with bytes, before others."""
        is_other = place.text[place.value_at :] + rest not in self.named(place)
        return is_other and (not behind or self.goes(self.behind_key(place), behind))

    def _cut(self, before: bytes, open_at: tuple[int, ...], spelled: bytes) -> Ahead | None:
        """What comes next behind bytes that follow a text which ends with a member, an item or what opens a container."""
        found = self._member(before, open_at)
        if found is None:
            return None
        texts = _after(found.texts, spelled)
        for text, then in found.texts:
            if spelled.startswith(text):
                if then.kind == "k":
                    return Ahead([(text, then) for text, then in texts if text], is_key=True)
                return self._value(before + b",", open_at)
        return Ahead(texts)

    def _member(self, text: bytes, open_at: tuple[int, ...]) -> Ahead | None:
        """What comes next in a container between its members or items."""
        if text not in self._between:
            if len(self._between) >= MAX_AHEAD:
                self._between.clear()
            of = self._next_key if text[open_at[-1]] == ord("{") else self._next_item
            self._between[text] = of(text, open_at)
        return self._between[text]

    def _next_key(self, text: bytes, open_at: tuple[int, ...]) -> Ahead | None:
        known = self._keys(text, open_at)
        if known is None:
            return None
        inner = text[open_at[-1] + 1 :]
        at, start, comma = 0, text, b""
        if inner:
            start, comma = text + b",", self._comma
            at = len(known.names) if inner.endswith(_OTHER_DONE) else known.places.get(_KEY.findall(inner)[-1], -1) + 1
            if at == 0:
                return None
        texts: list[tuple[bytes, Place]] = []
        for name, is_required in known.names[at:]:
            texts.append((comma + name, Place(start + name, open_at)))
            if is_required:
                return Ahead(texts)
            if len(texts) > MAX_TEXTS:
                return None
        if known.has_others:
            texts.append((comma + b'"', Place(start + b'"', open_at, "k", len(start))))
        texts.append((b"}", self._behind(text[: open_at[-1]], open_at[:-1])))
        return Ahead(texts)

    def _keys(self, text: bytes, open_at: tuple[int, ...]) -> Keys | None:
        """The keys of the open object; None where they are not known."""
        leaf = self._outline.values.container(text, open_at)
        return None if leaf is None else self._object_keys.of(leaf)

    def _next_item(self, text: bytes, open_at: tuple[int, ...]) -> Ahead | None:
        leaf = self._outline.values.container(text, open_at)
        if leaf is None:
            return None
        prefix, other = leaf.get("prefixItems", ()), leaf.get("items", True)
        if not all(map(self._object_keys.may_be, prefix)) or self._object_keys.may_be(other) is None:
            return None
        count = text.count(DONE, open_at[-1])
        most = leaf.get("maxItems")
        may_go_on = (most is None or count < most) and (count < len(prefix) or other is not False)
        closing = [(b"]", self._behind(text[: open_at[-1]], open_at[:-1]))] if count >= leaf.get("minItems", 0) else []
        if count:
            return Ahead([*([(self._comma, Place(text + self._comma, open_at))] if may_go_on else ()), *closing])
        if not may_go_on:
            return Ahead(closing)
        value = self._value(text, open_at)
        return value._replace(texts=[*value.texts, *closing])

    def _value(self, text: bytes, open_at: tuple[int, ...]) -> Ahead:
        """What a value begins with behind a text without blanks at its end."""
        if text not in self._values:
            if len(self._values) >= MAX_AHEAD:
                self._values.clear()
            self._values[text] = self._value_of(text, open_at)
        return self._values[text]

    def _value_of(self, text: bytes, open_at: tuple[int, ...]) -> Ahead:
        leaves = self._outline.values.leaves(text, open_at)
        behind = self._behind(text, open_at)
        if leaves is None:
            return Ahead(behind=behind, unsure=b'"{[tfn-' + _DIGITS)
        asked = self._outline.values.asked(text, open_at)
        string = asked.body if asked.bounds is None else asked.bounds
        if string is not None and len(leaves) == 1 and leaves[0].get("type") == "string":
            return Ahead(string=string, behind=behind)
        key = tuple(map(id, leaves))  # of the schema's own parts, which stay
        if key not in self._beginnings:
            self._beginnings[key] = _beginnings(leaves, has_string=string is not None)
        listed, numbers, unsure = self._beginnings[key]
        inside = (*open_at, len(text))
        texts = [(one, Place(text + one, inside) if one in (b"{", b"[") else behind) for one in listed]
        return Ahead(texts, numbers, b"", string, behind, unsure=unsure)

    def _behind(self, text: bytes, open_at: tuple[int, ...]) -> Place:
        return self._outline.behind_value(text, open_at)


def _beginnings(leaves: list[dict[str, Any]], *, has_string: bool) -> tuple[list[bytes], tuple[Numbers, ...], bytes]:
    """The texts that values have or containers begin with, the numbers, and the bytes that begin something else, of which nothing is
    known.  ``has_string``: whether all strings besides are known."""
    texts: dict[bytes, None] = {}
    numbers: list[Numbers] = []
    unsure = b""
    for leaf in leaves:
        if "enum" in leaf or "const" in leaf:
            spellings = [_spelling(value) for value in (*leaf.get("enum", ()), *([leaf["const"]] if "const" in leaf else ()))]
            if "type" in leaf or None in spellings:
                unsure += b'"tfn-' + _DIGITS
            texts |= {spelled: None for spelled in spellings if spelled is not None}
            continue
        types = leaf.get("type", KINDS)
        for kind in (types,) if isinstance(types, str) else types:
            match kind:
                case "string":
                    unsure += b"" if has_string else b'"'
                case "integer" | "number":
                    found = numbers_of(kind, leaf)
                    unsure += b"-" + _DIGITS if found is None else b""
                    numbers += [] if found is None else [found]
                case _:
                    texts |= dict.fromkeys(_TEXTS[kind])
    return list(texts), tuple(numbers), unsure


def _is_between_characters(place: Place) -> bool:
    if place.partial:
        return False
    try:
        place.text[place.value_at :].decode()
    except UnicodeDecodeError:
        return False
    return True


def common(texts: list[bytes]) -> bytes:
    """What all texts begin with."""
    first, last = min(texts, default=b""), max(texts, default=b"")
    at = 0
    while at < len(first) and first[at] == last[at]:
        at += 1
    return first[:at]


def _after(texts: list[tuple[bytes, Place]], spelled: bytes) -> list[tuple[bytes, Place]]:
    return [(text[len(spelled) :], then) for text, then in texts if text.startswith(spelled)]


def _spelling(value: Any) -> bytes | None:
    """How JSON spells a value; None where it has another spelling, or more than one."""
    if isinstance(value, bool) or value is None:
        return {True: b"true", False: b"false", None: b"null"}[value]
    if isinstance(value, str):
        spelled = literal(value)
        return None if spelled is None else b'"' + spelled + b'"'
    return b"%d" % value if isinstance(value, int) and abs(value) < LARGEST else None
