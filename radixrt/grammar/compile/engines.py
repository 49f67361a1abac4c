"""One compiler, whatever it does: it returns a grammar or raises GrammarError."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from radixrt.errors import GrammarError
from radixrt.grammar.base import Grammar
from radixrt.grammar.select import ENGINES
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")

FINAL = frozenset({"malformed_grammar", "unsatisfiable_grammar"})
"""Codes of refusals after which no other engine is asked."""


class Engine(Protocol):
    """A module that compiles specs."""

    def compile(self, spec: GrammarSpec, vocabulary: Vocabulary) -> Grammar:
        """Compile a spec; raises GrammarError."""

    def is_cheap(self, spec: GrammarSpec) -> bool:
        """Whether ``compile`` surely takes some milliseconds and little memory."""

    def to_bytes(self, grammar: Grammar) -> bytes:
        """Return what ``from_bytes`` needs to make an equal grammar, fast, in another process."""

    def from_bytes(self, data: bytes, vocabulary: Vocabulary) -> Grammar: ...


def engine(name: str) -> Engine:
    """Import an engine."""
    return cast(Engine, importlib.import_module(ENGINES[name]))


def prepare(module_name: str, vocabulary: Vocabulary) -> Engine:
    """Import an engine with all it needs, so that its first compilation takes no longer than the next."""
    module = cast(Engine, importlib.import_module(module_name))
    if (load := getattr(module, "prepare", None)) is not None:
        load(vocabulary)
    return module


def guarded(call: Callable[[], T]) -> T:
    """Call a compiler: what it raises besides GrammarError becomes one, since the spec is what it stumbled over."""
    try:
        return call()
    except GrammarError:
        raise
    except MemoryError:
        raise GrammarError("The grammar needs too much memory.", code="grammar_too_complex") from None
    except RecursionError:
        raise GrammarError("The grammar is nested too deep.", code="grammar_too_deep") from None
    except Exception as error:
        logger.warning("a grammar could not be compiled: %s", type(error).__name__)
        raise GrammarError("The grammar could not be compiled.") from error
