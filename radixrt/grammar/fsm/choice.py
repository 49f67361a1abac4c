"""From a list of texts to the minimal automaton that accepts exactly them."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.errors import GrammarError
from radixrt.grammar.fsm.limits import MAX_CHOICE_BYTES, MAX_STATES, Budget
from radixrt.grammar.fsm.tables import Edges, joined

Signature = tuple[bool, Edges]


def build_choice(choices: Iterable[str]) -> tuple[list[Edges], list[bool]]:
    """Return the edges of each state of the byte automaton, and which states accept; state 0 is the start.

    Texts are added in order, and states are shared as soon as nothing can be added below them (Daciuk and others, 2000).
    GrammarError for no choice, for too many, and for text that has no UTF-8.
    """
    try:
        texts = sorted({choice.encode() for choice in choices})
    except UnicodeEncodeError:
        raise GrammarError("a choice holds half of a surrogate pair", code="malformed_grammar") from None
    if not texts:
        raise GrammarError("there is nothing to choose from", code="unsatisfiable_grammar")
    if sum(map(len, texts)) > MAX_CHOICE_BYTES:
        raise GrammarError(f"the choices have more than {MAX_CHOICE_BYTES} bytes together")
    budget = Budget(MAX_STATES - 1, "its automaton has too many states")
    states: list[Signature] = [(False, ())]
    known: dict[Signature, int] = {}
    # The states of the text added last, from the start: what they accept, their edges so far, and the byte that leads on.
    path: list[tuple[bool, list[tuple[int, int, int]]]] = [(False, [])]
    before = b""

    def close(depth: int) -> None:
        """Give the states below a depth their numbers, or those of equal states."""
        while len(path) - 1 > depth:
            accepts, edges = path.pop()
            signature = (accepts, joined(edges))
            if signature not in known:
                budget.spend()
                known[signature] = len(states)
                states.append(signature)
            byte = before[len(path) - 1]
            path[-1][1].append((byte, byte, known[signature]))

    for text in texts:
        common = 0
        while common < min(len(text), len(before)) and text[common] == before[common]:
            common += 1
        close(common)
        before = text
        path += [(False, []) for _ in range(len(text) - common)]
        path[-1] = (True, path[-1][1])
    close(0)
    states[0] = (path[0][0], joined(path[0][1]))
    return [edges for _, edges in states], [accepts for accepts, _ in states]
