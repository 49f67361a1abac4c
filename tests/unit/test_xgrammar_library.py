"""xgrammar does the same in a process of radixrt's own, where what it does not need is left out, as where all of it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from radixrt import processes
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.grammar.xgrammar_engine import compile
from radixrt.types import GrammarOptions, GrammarSpec

TOKENS: list[bytes | None] = [b"a", b"b", b"ab", b"bca", b'"', b"{", b"}", None]
SPECS = [("ebnf", 'root ::= "a" [b-d]{1,3}'), ("choice", '["ab", "bca"]')]

SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from test_xgrammar_library import walked
from radixrt import processes
processes.be_own()
before = set(sys.modules)
print(walked())
print(sorted({"torch", "transformers"} & (set(sys.modules) - before)))
"""


def walked() -> list[tuple[bool, list[int]]]:
    """Masks along the greatest tokens allowed, and whether the text may end there."""
    vocabulary = Vocabulary(TOKENS, [7], lambda text: [])
    found = []
    for kind, text in SPECS:
        state = compile(GrammarSpec(kind, text, GrammarOptions()), vocabulary).new_state()  # type: ignore[arg-type]
        for _ in range(6):
            row = np.zeros(1, dtype=np.int32)
            state.fill_mask(row)
            found.append((state.is_accepting(), row.tolist()))
            allowed = [token for token in range(7) if row[0] >> token & 1]
            if not allowed or not state.accept(allowed[-1]):
                break
    return found


def test_masks_are_the_same_without_what_is_left_out() -> None:
    assert not processes.is_own()
    paths = [str(Path(processes.__file__).parent.parent), str(Path(__file__).parent)]
    found = subprocess.run([sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, timeout=120, check=True)
    masks, left = found.stdout.splitlines()
    assert masks == str(walked())
    assert left == "[]"
