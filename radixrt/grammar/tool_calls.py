"""Tool calls as a constraint: the text around each call is fixed, the arguments are JSON that the tool's schema allows.

The text of a spec is JSON: ``prefix``, ``suffix``, ``separator``, ``min``, ``max`` (null: any number), and ``tools`` with
``name``, ``begin``, ``schema``, ``end`` and ``strict``.  An answer is the prefix, ``min`` to ``max`` calls with the separator
between, and the suffix; a call is a tool's ``begin``, its arguments, and its ``end``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt.errors import GrammarError
from radixrt.types import GrammarSpec

MAX_CALLS = 1024


class ToolText(msgspec.Struct, frozen=True):
    """A tool: the text before and after its arguments, and their schema, which must be enforced if ``strict``."""

    name: str
    begin: str
    end: str
    schema: dict[str, Any]
    strict: bool = True


class ToolCalls(msgspec.Struct, frozen=True):
    """What the text of a spec says."""

    tools: list[ToolText]
    prefix: str = ""
    separator: str = ""
    suffix: str = ""
    min: int = 1
    max: int | None = None

    @classmethod
    def of(cls, spec: GrammarSpec) -> ToolCalls:
        """Read the text of a spec.  Raises GrammarError."""
        try:
            calls = msgspec.json.decode(spec.text, type=cls)
        except msgspec.DecodeError as error:
            raise GrammarError(f"The set of tools is not one: {error}.") from None
        if not calls.tools or not 1 <= calls.min <= (calls.max or MAX_CALLS) <= MAX_CALLS:
            raise GrammarError("The set of tools is empty, or the number of calls out of range.")
        return calls

    def lark(self, parts: Sequence[str]) -> str:
        """Return the grammar in llguidance's Lark; ``parts`` stand for the arguments of each tool."""
        more = "" if self.max is None else self.max - 1
        again = "" if self.max == 1 else f"more{{{self.min - 1},{more}}}"
        lines = [f"start: {_literal(self.prefix)} call {again} {_literal(self.suffix)}"]
        if again:
            lines.append(f"more: {_literal(self.separator)} call")
        lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(self.tools))))
        for i, (tool, part) in enumerate(zip(self.tools, parts, strict=True)):
            lines.append(f"call_{i}: {_literal(tool.begin)} arguments_{i} {_literal(tool.end)}")
            lines.append(f"arguments_{i}: {part}")
        return "\n".join(lines)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
