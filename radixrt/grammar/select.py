"""Which engines may compile a constraint, in the order they are tried: a pure function of the spec and a flag.

Never of what other requests asked for, or what is cached.  The first engine is the best one that is sound for the kind; a
later one is tried where it refuses, and is sound for whatever it accepts.
"""

from __future__ import annotations

from radixrt.errors import GrammarError
from radixrt.types import GrammarSpec

ENGINES = {
    "fsm": "radixrt.grammar.fsm",
    "llguidance": "radixrt.grammar.llguidance_engine",
    "xgrammar": "radixrt.grammar.xgrammar_engine",
}
ORDER: dict[str, tuple[str, ...]] = {
    "json_schema": ("llguidance", "xgrammar"),
    "json_object": ("llguidance", "xgrammar"),
    "regex": ("fsm", "xgrammar"),
    "choice": ("fsm", "xgrammar"),
    "ebnf": ("xgrammar",),
    "gbnf": ("xgrammar",),
    "structural_tag": ("xgrammar",),
    "tool_calls": ("llguidance",),
}


def engines(spec: GrammarSpec, backend: str = "auto") -> tuple[str, ...]:
    """Return the names of the engines to try; ``backend`` is what the server was told, which a request may override.

    A server's choice narrows the list only where the engine can serve the kind.  Raises GrammarError when a request names
    an engine that cannot.
    """
    order = ORDER[spec.kind]
    asked = spec.options.backend
    if asked != "auto":
        if asked not in order:
            raise GrammarError(f"The backend {asked} serves no {spec.kind}; {' and '.join(order)} can.")
        return (asked,)
    return (backend,) if backend in order else order
