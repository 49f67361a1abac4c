"""GBNF, llama.cpp's grammar notation, rewritten to the EBNF that xgrammar reads.

Differences that matter: alternatives may be empty and may go on over lines, ``.`` is any character, ``{,n}`` a bounded
repeat, and rule names have dashes.
"""

from __future__ import annotations

import re

from radixrt.errors import GrammarError

MAX_RULES = 4096
MAX_REPEAT = 1000
MAX_REPEAT_PRODUCT = 5_000
MAX_DEPTH = 64

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<define>::=)
      | (?P<name>[A-Za-z0-9_][A-Za-z0-9_-]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<class>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<repeat>[*+?]|\{\s*(?:\d+\s*(?:,\s*\d*)?|,\s*\d+)\s*\})
      | (?P<mark>[().|])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
ANY = r"[\u0000-\U0010ffff]"


def to_ebnf(grammar: str) -> str:
    """Return the same grammar for xgrammar; its rules keep their order, and ``root`` its name.  Raises GrammarError with the line."""
    return _Reader(grammar).rules()


class _Reader:
    """A recursive-descent reader over the tokens of one grammar."""

    def __init__(self, grammar: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        self._closing: dict[int, int] = {}  # the index of each opening bracket's other end
        opened: list[int] = []
        position, line = 0, 1
        while position < len(grammar):
            match = _TOKEN.match(grammar, position)
            if match is None:
                raise _error(f"unexpected {grammar[position]!r}", line)
            kind, text = match.lastgroup or "", match.group()
            if text == "(":
                opened.append(len(self._tokens))
                if len(opened) > MAX_DEPTH:
                    raise _error(f"groups are nested more than {MAX_DEPTH} levels deep", line)
            elif text == ")":
                if not opened:
                    raise _error("unexpected )", line)
                self._closing[opened.pop()] = len(self._tokens)
            if kind != "space":
                self._tokens.append((kind, text, line))
            line += text.count("\n")
            position = match.end()
        if opened:
            raise _error("a group is not closed", self._tokens[opened[-1]][2])
        self._tokens.append(("end", "", line))
        self._at = 0
        self._used: dict[str, int] = {}

    def rules(self) -> str:
        """Read the whole grammar."""
        written: dict[str, str] = {}
        while self._kind() != "end":
            kind, name, line = self._next()
            if kind != "name" or self._next()[0] != "define":
                raise _error("expected a rule, name ::= ...", line)
            if name in written:
                raise _error(f"rule {name} is there twice", line)
            if len(written) == MAX_RULES:
                raise _error(f"more than {MAX_RULES} rules", line)
            written[name] = self._alternatives(1)
        if "root" not in written:
            raise GrammarError("The grammar has no rule named root.")
        for name, line in self._used.items():
            if name not in written:
                raise _error(f"rule {name} is not defined", line)
        return "\n".join(f"{name} ::= {body}" for name, body in written.items())

    def _alternatives(self, product: int) -> str:
        options = [self._sequence(product)]
        while self._tokens[self._at][1] == "|":
            self._next()
            options.append(self._sequence(product))
        return " | ".join(options)

    def _sequence(self, product: int) -> str:
        parts: list[str] = []
        while True:
            kind, text, line = self._tokens[self._at]
            if kind in ("define", "repeat"):
                raise _error(f"unexpected {text}", line)
            if kind == "end" or text in ("|", ")") or (kind == "name" and self._tokens[self._at + 1][0] == "define"):
                return " ".join(parts) or '""'
            parts.append(self._item(product))

    def _item(self, product: int) -> str:
        start = self._at
        kind, text, line = self._next()
        repeats, product = self._repeats(self._closing.get(start, start) + 1, product)
        match kind:
            case "name":
                self._used.setdefault(text, line)
                item = text
            case "text":
                item = _quoted(_decoded(text[1:-1], line))
                if "\0" in item:
                    raise _error("a text with U+0000", line)
            case "class":
                item = _class(text, line)
            case _ if text == ".":
                item = ANY
            case _:
                item = f"({self._alternatives(product)})"
                self._next()
        for repeat in repeats:
            item = f"({item}){repeat}"
            self._next()
        return item

    def _repeats(self, at: int, product: int) -> tuple[list[str], int]:
        """The repeats that stand at a token, and what a repeat inside of them multiplies with."""
        repeats: list[str] = []
        while self._tokens[at][0] == "repeat":
            _, text, line = self._tokens[at]
            low, high = _bounds(text, line)
            product *= max(1, low if high is None else high)
            if product > MAX_REPEAT_PRODUCT:
                raise _error(f"nested repeats multiply to more than {MAX_REPEAT_PRODUCT}", line)
            repeats.append(_repeat(low, high))
            at += 1
        return repeats, product

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _next(self) -> tuple[str, str, int]:
        token = self._tokens[self._at]
        if token[0] != "end":
            self._at += 1
        return token


def _bounds(text: str, line: int) -> tuple[int, int | None]:
    """The fewest and the most times of a repeat; None where there is no most."""
    if text in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[text]
    low, comma, high = text[1:-1].replace(" ", "").partition(",")
    least = int(low or "0")
    most = least if not comma else int(high) if high else None
    if max(least, most or 0) > MAX_REPEAT:
        raise _error(f"a repeat of more than {MAX_REPEAT}; use * or +", line)
    if most is not None and most < least:
        raise _error(f"{text} asks for more than it allows", line)
    return least, most


def _repeat(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{low},}}"
        case _:
            return f"{{{low},{high}}}"


def _decoded(text: str, line: int) -> str:
    """The characters that an escaped text stands for."""

    def one(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is not None:
            return _character(int(code, 16), line)
        if match[4] not in _LETTERS:
            raise _error(f"unknown escape \\{match[4]}", line)
        return _LETTERS[match[4]]

    return _ESCAPE.sub(one, text)


def _character(code: int, line: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _error(f"U+{code:04X} is no character", line)
    return chr(code)


def _quoted(text: str) -> str:
    return '"' + "".join(char if char.isalnum() or char == "\0" else f"\\U{ord(char):08x}" for char in text) + '"'


def _class(text: str, line: int) -> str:
    """A character class with every character that could mean something spelled as a number."""
    inside = text[1:-1]
    negated = inside.startswith("^")
    chars: list[str | None] = []  # None stands for the dash of a range
    position = int(negated)
    while position < len(inside):
        match = _ESCAPE.match(inside, position)
        piece = match.group() if match else inside[position]
        position += len(piece)
        is_range = piece == "-" and chars and chars[-1] is not None and position < len(inside)
        chars.append(None if is_range else _decoded(piece, line) if match else piece)
    if not chars:
        if not negated:
            raise _error("an empty character class matches nothing", line)
        return ANY
    spelled = "".join("-" if char is None else char if char.isalnum() else f"\\U{ord(char):08x}" for char in chars)
    return f"[{'^' if negated else ''}{spelled}]"


def _error(problem: str, line: int) -> GrammarError:
    return GrammarError(f"The grammar cannot be read: {problem}, line {line}.")
