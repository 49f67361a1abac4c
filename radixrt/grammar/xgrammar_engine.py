"""EBNF, GBNF, structural tags, and what other engines refuse, through xgrammar: masks are made when a grammar is compiled.

It drops what it does not know without a word, so every JSON schema and regular expression passes a whitelist first
(``schema.whitelist``, ``xgrammar_regex``).  Compiling may take long: ``is_cheap`` tells what surely does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from radixrt.errors import GrammarError
from radixrt.grammar.closer import min_tokens
from radixrt.grammar.gbnf import to_ebnf
from radixrt.grammar.matcher_state import MatcherState
from radixrt.grammar.outline import Outline
from radixrt.grammar.schema import normalise
from radixrt.grammar.schema.whitelist import check_whitelist, checked_tag
from radixrt.grammar.shared_masks import SharedMasks
from radixrt.grammar.vocabulary import Vocabulary, whole_characters
from radixrt.grammar.xgrammar_library import library
from radixrt.grammar.xgrammar_regex import checked_regex
from radixrt.types import GrammarOptions, GrammarSpec

if TYPE_CHECKING:
    import xgrammar

    Source = Callable[[xgrammar.GrammarCompiler], xgrammar.CompiledGrammar]

CHEAP_BYTES = 512
MAX_SECONDS_A_TOKEN = 0.02  # of the text that closes it; what is slower than that would hold up everybody's steps
SPARE_SECONDS = 5.0  # what the masks of a text may take besides: those of an ambiguous grammar take the longer the more text there is
MAX_FORCED = 64
MAX_FORCED_TOKENS = 64  # tokens that all start a forced text are few
# Where in the engine's own source a message comes from.
_PLACE = re.compile(r"^\[[\d:]+\] \S+: ?(?:Check failed: \(.*\) is false: )?")


class XGrammarGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocabulary: Vocabulary, shortest: int | None = None) -> None:
        self.compiled = compiled
        self._vocabulary = vocabulary
        self._masks = SharedMasks(Outline(None), vocabulary)
        self.memory_bytes = int(compiled.memory_size_bytes) + 16 * 1024
        if shortest is None:
            state = self.new_state()
            row = np.zeros(vocabulary.num_words, dtype=np.int32)
            state.fill_mask(row)
            if not row.any():
                raise GrammarError("The grammar allows no text at all.")
            shortest = min_tokens(state, vocabulary)
            # Timed the second time: the first one also prepares the vocabulary, once a process.
            start = time.thread_time()
            shortest = min_tokens(state, vocabulary)
            if time.thread_time() - start > MAX_SECONDS_A_TOKEN * (shortest + 1):
                raise GrammarError("The grammar is too complex: its masks take too long.", code="grammar_too_complex")
        self.min_tokens = shortest

    def new_state(self) -> XGrammarState:
        return XGrammarState(library().GrammarMatcher(self.compiled), self._vocabulary, self._masks)


class XGrammarState(MatcherState["xgrammar.GrammarMatcher"]):
    """The matcher sees text tokens only."""

    __slots__ = ("_spent",)

    def __init__(self, matcher: xgrammar.GrammarMatcher, vocabulary: Vocabulary, masks: SharedMasks) -> None:
        super().__init__(matcher, vocabulary, masks)
        self._spent = [0.0]
        """Processor time of the masks of this text, its forks' too, in seconds."""

    def _consume(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def _take_back(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def _make_mask(self, row: np.ndarray) -> None:
        """Raises GrammarError when the masks of a text take so long that others wait for them."""
        start = time.thread_time()
        row[:] = -1  # the engine leaves a row that it has nothing to say about
        self._matcher.fill_next_token_bitmask(row.reshape(1, -1), 0)
        self._spent[0] += time.thread_time() - start
        if self._spent[0] > SPARE_SECONDS + MAX_SECONDS_A_TOKEN * len(self._tokens):
            raise GrammarError("The grammar became too complex: its masks take too long.", code="grammar_too_complex")
        row &= text_mask(self._vocabulary)
        if self.is_accepting():
            row |= self._vocabulary.end_mask

    def is_finished(self) -> bool:
        if self._ended or not self._matcher.is_completed():
            return self._ended
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        self.fill_mask(row)
        return not (row & ~self._vocabulary.end_mask).any()

    def is_accepting(self) -> bool:
        return self._ended or bool(self._matcher.is_completed())

    def fork(self) -> XGrammarState:
        other = XGrammarState(self._matcher.fork(), self._vocabulary, self._masks)
        self._copy_to(other)
        other._spent = self._spent
        return other

    def forced_bytes(self, limit: int) -> bytes:
        """The bytes are found one by one: the engine's own way does not return where they never end."""
        if self._forced:
            return whole_characters(self._forced, limit)
        found = b""
        walker = self.fork()
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        while len(found) < MAX_FORCED and not walker.is_accepting():
            walker.fill_mask(row)
            if int(np.bitwise_count(row.view(np.uint32)).sum()) > MAX_FORCED_TOKENS:
                break
            tokens = np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist()
            firsts = {(self._vocabulary.bytes_of(token) or b"")[:1] for token in tokens}
            first = firsts.pop() if len(firsts) == 1 else None
            if not first or not walker.accept(self._vocabulary.token_of.get(first, -1)):
                break
            found += first
        self._forced = found
        return whole_characters(found, limit)


def compile(spec: GrammarSpec, vocabulary: Vocabulary) -> XGrammarGrammar:
    """Compile a spec of any kind but tool calls; GrammarError for what cannot be enforced."""
    return XGrammarGrammar(_compiled(_source(spec), _tokens(vocabulary)), vocabulary)


def unchecked_schema(schema: Any, options: GrammarOptions, vocabulary: Vocabulary) -> XGrammarGrammar:
    """Compile a JSON schema as the engine reads it, whatever it drops: to compare with, never to serve."""
    text = msgspec.json.encode(schema).decode()
    return XGrammarGrammar(
        _compiled(lambda compiler: compiler.compile_json_schema(text, strict_mode=False, **_json_options(options)), _tokens(vocabulary)),
        vocabulary,
    )


def is_cheap(spec: GrammarSpec) -> bool:
    """Whether compiling surely takes some milliseconds: a short text in which nothing repeats or recurs."""
    return len(spec.text) <= CHEAP_BYTES and spec.kind in ("regex", "choice") and not re.search(r"[{(*+]", spec.text)


def to_bytes(grammar: XGrammarGrammar) -> bytes:
    """Return a grammar for another process with the same vocabulary."""
    return msgspec.msgpack.encode((grammar.min_tokens, grammar.compiled.serialize_json()))


def from_bytes(data: bytes, vocabulary: Vocabulary) -> XGrammarGrammar:
    """Make the grammar of ``to_bytes``; a megabyte takes some 100 ms."""
    shortest, text = msgspec.msgpack.decode(data, type=tuple[int, str])
    return XGrammarGrammar(library().CompiledGrammar.deserialize_json(text, _tokens(vocabulary)), vocabulary, shortest)


def prepare(vocabulary: Vocabulary) -> None:
    """Make what every grammar of a vocabulary needs."""
    _tokens(vocabulary)


def _source(spec: GrammarSpec) -> Source:
    """What to ask the compiler for, after everything that can be checked was."""
    text = spec.text
    if "\0" in text:
        raise GrammarError("The grammar has a NUL character.")
    match spec.kind:
        case "ebnf":
            return lambda compiler: _either_notation(compiler, text)
        case "gbnf":
            rules = to_ebnf(text)
            return lambda compiler: compiler.compile_grammar(rules)
        case "regex":
            pattern = checked_regex(text)
            return lambda compiler: compiler.compile_regex(pattern)
        case "choice":
            rule = "root ::= " + " | ".join(map(quoted, msgspec.json.decode(text, type=list[str])))
            return lambda compiler: compiler.compile_grammar(rule)
        case "json_object" | "json_schema":
            schema = {"type": "object"} if spec.kind == "json_object" else normalise(msgspec.json.decode(text))
            check_whitelist(schema)
            return lambda compiler: compiler.compile_json_schema(
                msgspec.json.encode(schema).decode(), strict_mode=False, **_json_options(spec.options)
            )
        case "structural_tag":
            tag = checked_tag(msgspec.json.decode(text))
            return lambda compiler: compiler.compile_structural_tag(msgspec.json.encode(tag).decode())
        case _:
            raise GrammarError(f"xgrammar does not take a grammar of kind {spec.kind}.")


def _either_notation(compiler: xgrammar.GrammarCompiler, text: str) -> xgrammar.CompiledGrammar:
    """Compile EBNF; where the engine cannot read it, as the GBNF that clients send under that name."""
    try:
        return compiler.compile_grammar(text)
    except RuntimeError as error:
        try:
            rules = to_ebnf(text)
        except GrammarError:
            raise error from None
        return compiler.compile_grammar(rules)


def _json_options(options: GrammarOptions) -> dict[str, Any]:
    match options.whitespace:
        case "compact":
            return {"any_whitespace": False, "separators": (",", ":")}
        case "fixed":
            return {"any_whitespace": False, "separators": (", ", ": ")}
        case "flexible":
            return {"any_whitespace": True, "max_whitespace_cnt": options.max_whitespace}


def _compiled(source: Source, tokens: xgrammar.TokenizerInfo) -> xgrammar.CompiledGrammar:
    compiler = library().GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
    try:
        return source(compiler)
    except GrammarError:
        raise
    except Exception as error:  # the engine has no common base for its errors, and every one is about the grammar
        raise GrammarError(f"The grammar cannot be read: {_PLACE.sub('', str(error).strip())[:300]}") from None


def quoted(text: str) -> str:
    """Return a text as an EBNF literal."""
    return '"' + "".join(char if char.isalnum() else f"\\U{ord(char):08x}" for char in text) + '"'


_infos: WeakKeyDictionary[Vocabulary, xgrammar.TokenizerInfo] = WeakKeyDictionary()
_masks: WeakKeyDictionary[Vocabulary, np.ndarray] = WeakKeyDictionary()


def _tokens(vocabulary: Vocabulary) -> xgrammar.TokenizerInfo:
    info = _infos.get(vocabulary)
    if info is None:
        texts = [vocabulary.bytes_of(token) or b"" for token in range(vocabulary.size)]  # the engine allows no empty token
        info = library().TokenizerInfo(texts, vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.end_ids) or [vocabulary.size - 1])
        _infos[vocabulary] = info
    return info


def text_mask(vocabulary: Vocabulary) -> np.ndarray:
    """The packed row of the tokens that stand for bytes."""
    mask = _masks.get(vocabulary)
    if mask is None:
        bits = np.zeros(32 * vocabulary.num_words, dtype=np.uint8)
        bits[[token for token in range(vocabulary.size) if vocabulary.bytes_of(token) is not None]] = 1
        mask = _masks[vocabulary] = np.packbits(bits, bitorder="little").view(np.int32)
    return mask
