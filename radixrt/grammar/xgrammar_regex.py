"""Regular expressions for xgrammar: those it reads as Python's ``re`` does, and nothing else."""

from __future__ import annotations

import re

from radixrt.errors import GrammarError

MAX_REPEAT = 1000
MAX_PRODUCT = 5_000

_PIECE = re.compile(
    r"""(?P<open>\((?:\?:)?(?!\?))
      | (?P<close>\))
      | (?P<class>\[\^?(?:\\.|[^\]\\\[])+\])
      | (?P<escape>\\(?:[dwsntrfv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^\w\s]))
      | (?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)
      | (?P<dot>\.)
      | (?P<or>\|)
      | (?P<char>[^\\()\[\]{}*+?.|^$])""",
    re.VERBOSE | re.DOTALL,
)
_IN_CLASS = re.compile(r"\\([dwsntrfv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^\w\s])|[^\\]", re.DOTALL)
_NUL = ("\\x00", "\\u0000")


def checked_regex(pattern: str) -> str:
    """Return a pattern with the meaning that ``re.fullmatch`` gives the one given; GrammarError for other syntax.

    ``\\d``, ``\\w`` and ``\\s`` shrink to ASCII, and so may not be negated.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise GrammarError(f"The regular expression is malformed: {error}.") from None
    inside = pattern.removeprefix("^")  # at the ends anchors say what a match of the whole text says anyway
    if re.search(r"(?<!\\)(?:\\\\)*\$$", inside):
        inside = inside[:-1]
    out: list[str] = []
    products = [1]  # how often repeats multiply what is inside, for each open group
    last = 1  # and for what a repeat would belong to
    position, repeated = 0, False
    while position < len(inside):
        match = _PIECE.match(inside, position)
        if match is None:
            raise _refusal(f"the syntax at {inside[position : position + 10]!r}")
        kind, piece = match.lastgroup, match.group()
        if kind == "repeat":
            if repeated:
                raise _refusal("a repeat of a repeat")
            last *= _times(piece)
            if last > MAX_PRODUCT:
                raise _refusal(f"nested repeats that multiply to more than {MAX_PRODUCT}")
        elif kind == "open":
            products.append(1)
        else:
            last = products.pop() if kind == "close" else 1
        if kind == "class":
            _check_class(piece)
        elif piece in _NUL:
            raise _refusal("U+0000")
        products[-1] = max(products[-1], last)
        out.append("[^\\n]" if kind == "dot" else piece.rstrip("?") or "?" if kind == "repeat" else piece)
        position, repeated = match.end(), kind == "repeat"
    return "".join(out)


def _check_class(text: str) -> None:
    inside = text[1:-1]
    negated = inside.startswith("^")
    position = int(negated)
    while position < len(inside):
        match = _IN_CLASS.match(inside, position)
        if match is None:
            raise _refusal(f"the class {text}")
        if negated and match[1] in ("d", "w", "s"):
            raise _refusal(f"the negated class {text}")
        if match.group() in _NUL:
            raise _refusal("U+0000")
        position = match.end()


def _times(repeat: str) -> int:
    """The largest number that a repeat names."""
    times = max(1, *(int(number) for number in ("1", *re.findall(r"\d+", repeat))))
    if times > MAX_REPEAT:
        raise _refusal(f"a repeat of more than {MAX_REPEAT}")
    return times


def _refusal(what: str) -> GrammarError:
    return GrammarError(f"The regular expression has {what}, which cannot be enforced.")
