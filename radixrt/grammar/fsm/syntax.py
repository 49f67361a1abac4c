r"""Reads a regex of Python's ``re`` into a tree, for matching a whole text.

The dialect is that of ``re`` on ``str``: ``\d``, ``\w`` and ``\s`` are Unicode, ``.`` is no newline, ``$`` may stand before a
last newline, flags ``a``, ``i``, ``s`` and ``u``.  A lazy repetition matches what a greedy one does, since the whole text has
to match.  What no automaton can say is refused: look-around, back-references, conditions, atomic groups, possessive
repetitions; so are ``\b``, ``\B`` and the flags ``L``, ``m`` and ``x``.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.code_points import ALL, NEWLINE, Ranges, complement, ignoring_case, named_class, union
from radixrt.grammar.fsm.limits import MAX_DEPTH, MAX_PATTERN


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place: the start of the text, its end, or (``before_newline``) also the place before a newline that ends it."""

    at_end: bool
    before_newline: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` from ``low`` to ``high`` times; any number of times more than ``low`` when ``high`` is None."""

    item: Node
    low: int
    high: int | None


Node = Characters | Anchor | Sequence | Alternatives | Repeat


def parse(pattern: str) -> Node:
    """Return the tree of a regex; GrammarError when it is malformed, or when an automaton cannot match it."""
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"the regex has {len(pattern)} characters, and {MAX_PATTERN} are allowed")
    return _Parser(pattern).parse()


_CONTROL = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_REFUSED_GROUPS = {"=": "look-ahead", "!": "look-ahead", ">": "an atomic group", "(": "a condition", "P=": "a back-reference"}
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "s": re.DOTALL, "u": re.UNICODE}


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        flags = self._global_flags()
        tree = self._alternatives(flags, 0)
        if self._at < len(self._text):
            raise self._error("unbalanced parenthesis")
        return tree

    def _error(self, message: str) -> GrammarError:
        return GrammarError(f"regex: {message} at position {self._at}", code="malformed_grammar")

    def _unsupported(self, what: str) -> GrammarError:
        return GrammarError(f"regex: {what} not supported, at position {self._at}", code="unsupported_grammar")

    def _next(self) -> str:
        """Take one character; nothing at the end."""
        character = self._text[self._at : self._at + 1]
        self._at += 1
        return character

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        """Take a text if it comes next."""
        found = self._peek(text)
        self._at += len(text) * found
        return found

    def _until(self, end: str) -> str:
        """Take everything before a terminator, and the terminator."""
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise self._error(f"missing {end}")
        taken = self._text[self._at : stop]
        self._at = stop + len(end)
        return taken

    def _digits(self, alphabet: str, most: int) -> str:
        start = self._at
        while self._at - start < most and self._at < len(self._text) and self._text[self._at] in alphabet:
            self._at += 1
        return self._text[start : self._at]

    def _alternatives(self, flags: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise GrammarError("regex: groups are nested too deeply", code="grammar_too_deep")
        branches = [self._sequence(flags, depth)]
        while self._take("|"):
            branches.append(self._sequence(flags, depth))
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self, flags: int, depth: int) -> Node:
        items: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            item = self._item(flags, depth)
            if item is not None:
                items.append(self._repeated(item))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, flags: int, depth: int) -> Node | None:
        """One thing that a repetition may follow; None for a comment."""
        character = self._next()
        if character == "(":
            return self._group(flags, depth)
        if character == "[":
            return self._class(flags)
        if character == "\\":
            return self._escape(flags)
        if character == ".":
            return Characters(ALL if flags & re.DOTALL else complement(NEWLINE))
        if character == "^":
            return Anchor(at_end=False)
        if character == "$":
            return Anchor(at_end=True, before_newline=True)
        if character in "*+?" or (character == "{" and self._bounds(self._at - 1)):
            self._at -= 1
            raise self._error("nothing to repeat")
        return self._literal(ord(character), flags)

    def _literal(self, code: int, flags: int) -> Characters:
        ranges: Ranges = ((code, code),)
        return Characters(ignoring_case(ranges, _spelling(code, code), flags) if flags & re.IGNORECASE else ranges)

    def _repeated(self, item: Node) -> Node:
        """An item with the repetition behind it, if there is one."""
        low, high, length = self._bounds(self._at) or (1, 1, 0)
        if not length:
            return item
        if isinstance(item, Anchor):
            raise self._error("nothing to repeat")
        self._at += length
        if self._take("+"):
            raise self._unsupported("possessive repetitions are")
        self._take("?")
        if self._bounds(self._at):
            raise self._error("multiple repeat")
        if high is not None and low > high:
            raise self._error("min repeat greater than max repeat")
        return Repeat(item, low, high)

    def _bounds(self, at: int) -> tuple[int, int | None, int] | None:
        """The bounds of the repetition written at a place, and its length; None where there is none."""
        match self._text[at : at + 1]:
            case "*":
                return 0, None, 1
            case "+":
                return 1, None, 1
            case "?":
                return 0, 1, 1
            case "{":
                found = re.compile(r"\{(?!\})([0-9]*)(?:(,)([0-9]*))?\}").match(self._text, at)
                if found is None:
                    return None
                low, comma, high = found.groups()
                if max(len(low), len(high or "")) > 9:
                    raise self._error("the repetition number is too large")
                bounded = high if comma else low
                return int(low or 0), int(bounded) if bounded else None, len(found.group())
        return None

    def _group(self, flags: int, depth: int) -> Node | None:
        if self._take("?"):
            for mark, name in _REFUSED_GROUPS.items():
                if self._peek(mark):
                    raise self._unsupported(f"{name} is")
            if self._take("#"):
                self._until(")")
                return None
            if self._take("P<"):
                self._name()
            elif self._peek("<=") or self._peek("<!"):
                raise self._unsupported("look-behind is")
            elif not self._take(":"):
                flags = self._scoped_flags(flags)
        node = self._alternatives(flags, depth + 1)
        if not self._take(")"):
            raise self._error("missing ), unterminated subpattern")
        # A group around an anchor may be repeated, the anchor itself may not.
        return Sequence((node,)) if isinstance(node, Anchor) else node

    def _name(self) -> None:
        name = self._until(">")
        if not name.isidentifier() or name in self._names:
            raise self._error(f"bad group name {name!r}")
        self._names.add(name)

    def _global_flags(self) -> int:
        flags = 0
        while match := re.compile(r"\(\?([a-zA-Z]+)\)").match(self._text, self._at):
            flags |= self._flags(match.group(1))
            self._at = match.end()
        return flags

    def _scoped_flags(self, flags: int) -> int:
        """The flags inside a group like ``(?i-s:``."""
        match = re.compile(r"([a-zA-Z]*)(?:-([a-zA-Z]+))?:").match(self._text, self._at)
        if match is None:
            raise self._error("unknown extension, or global flags not at the start")
        added, removed = self._flags(match.group(1)), self._flags(match.group(2) or "")
        if removed & (re.ASCII | re.UNICODE) or added & removed:
            raise self._error("bad inline flags")
        self._at = match.end()
        if added & (re.ASCII | re.UNICODE):
            flags &= ~(re.ASCII | re.UNICODE)
        return (flags | added) & ~removed

    def _flags(self, letters: str) -> int:
        flags = 0
        for letter in letters:
            if letter in "Lmx":
                raise self._unsupported(f"the flag {letter} is")
            if letter not in _FLAGS:
                raise self._error(f"unknown flag {letter!r}")
            flags |= _FLAGS[letter]
        if flags & re.ASCII and flags & re.UNICODE:
            raise self._error("flags 'a' and 'u' are incompatible")
        return flags

    def _escape(self, flags: int) -> Node:
        """What a backslash outside a class starts."""
        character = self._next()
        if character == "A":
            return Anchor(at_end=False)
        if character == "Z":
            return Anchor(at_end=True)
        if character and character in "bB":
            raise self._unsupported("word boundaries are")
        if character and character in "dDsSwW":
            return Characters(named_class(f"\\{character}", flags & re.ASCII))
        if character and character in "123456789":
            # Three octal digits are a character, anything shorter a back-reference.
            octal = character + self._digits("01234567", 2)
            if len(octal) < 3 or character in "89":
                raise self._unsupported("back-references are")
            self._at -= 2
        return self._literal(self._escaped_code(character), flags)

    def _escaped_code(self, character: str) -> int:
        """The code point of an escape that means the same inside a class and outside."""
        if character in ("x", "u", "U"):
            length = {"x": 2, "u": 4, "U": 8}[character]
            digits = self._digits("0123456789abcdefABCDEF", length)
            if len(digits) != length or int(digits, 16) > 0x10FFFF:
                raise self._error(f"incomplete or bad escape \\{character}{digits}")
            return int(digits, 16)
        if character == "N" and self._take("{"):
            name = self._until("}")
            try:
                return ord(unicodedata.lookup(name))
            except (KeyError, TypeError):
                raise self._error(f"undefined character name {name!r}") from None
        if character and character in "01234567":
            code = int(character + self._digits("01234567", 2), 8)
            if code > 0o377:
                raise self._error("octal escape outside of range 0-0o377")
            return code
        if character in _CONTROL:
            return _CONTROL[character]
        if not character or (character.isascii() and character.isalnum()):
            raise self._error(f"bad escape \\{character}")
        return ord(character)

    def _class(self, flags: int) -> Characters:
        """A class, behind its opening bracket."""
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        spelled: list[str] = []
        first = True
        while first or not self._take("]"):
            first = False
            low = self._class_item(flags)
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._class_item(flags)
                if not isinstance(low, int) or not isinstance(high, int) or low > high:
                    raise self._error("bad character range")
                ranges.append((low, high))
                spelled.append(_spelling(low, high))
            elif isinstance(low, int):
                ranges.append((low, low))
                spelled.append(_spelling(low, low))
            else:
                ranges += named_class(low, flags & re.ASCII)
                spelled.append(low)
        found = union(ranges)
        if flags & re.IGNORECASE:
            # The case of a class is ignored before it is negated.
            found = ignoring_case(found, f"[{''.join(spelled)}]", flags)
        return Characters(complement(found) if negated else found)

    def _class_item(self, flags: int) -> int | str:
        """One member of a class: a code point, or the spelling of a named class."""
        character = self._next()
        if not character:
            raise self._error("unterminated character set")
        if character != "\\":
            return ord(character)
        character = self._next()
        return f"\\{character}" if character and character in "dDsSwW" else self._escaped_code(character)


def _spelling(low: int, high: int) -> str:
    """A character or range as ``re`` reads it, whatever it is."""
    return f"\\U{low:08x}" if low == high else f"\\U{low:08x}-\\U{high:08x}"
