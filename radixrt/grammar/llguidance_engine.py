"""JSON Schema and Lark grammars through llguidance: lexers made while they are used, an Earley parser, and limits in fuel.

It refuses what it cannot enforce, which is why it comes first.  Schemas go through ``grammar.schema`` before they get here.
"""

from __future__ import annotations

import re
from ctypes import addressof, c_char
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, proxy

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from radixrt.errors import GrammarError
from radixrt.grammar.closer import min_tokens
from radixrt.grammar.forced_masks import FEW, allow, cut, is_seen_whole
from radixrt.grammar.matcher_state import MatcherState
from radixrt.grammar.open_strings import OpenStrings
from radixrt.grammar.outline import Outline, Place
from radixrt.grammar.pattern_masks import pattern_masks
from radixrt.grammar.schema import normalise
from radixrt.grammar.schema.formats import FORMATS
from radixrt.grammar.shared_masks import SharedMasks
from radixrt.grammar.string_masks import StringTokens, string_tokens
from radixrt.grammar.structure_masks import StructureMasks
from radixrt.grammar.tool_calls import ToolCalls, ToolText
from radixrt.grammar.value_starts import value_starts
from radixrt.grammar.vocabulary import Vocabulary, whole_characters
from radixrt.types import GrammarOptions, GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIMITS = LLParserLimits(  # fuel is deterministic: about 20 ms to compile, and 15 ms for the worst mask
    max_items_in_row=8_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
ESCAPES = 'nrbtf\\"'
"""Escapes allowed in JSON strings.  Without ``\\u`` every character has one spelling, so that no key can hide behind another."""
CHEAP_BYTES = 8 * 1024
CHEAP_CHOICES = 8
_MULTIPLYING = re.compile(r'"(?:oneOf|allOf|not|if|contains|dependen\w+|minProperties|maxProperties|\$dynamicRef)"')
MAX_CUTS = 4096
"""How many pieces of forced text are kept cut."""
TRIED: dict[str, Any] = {
    "a": {"type": "integer", "minimum": -99}, "b": {"type": "number"}, "c": {"type": "string"}, "d": {"type": "boolean"},
    "e": {"type": "null"}, "f": {"type": "array", "items": {"type": "string", "maxLength": 4}}, "g": {"enum": ["x", "y"]}, "h": {},
}  # fmt: skip
TRIED_TEXT = b'{"a": -10, "b": 1.5, "c": "x", "d": true, "e": null, "f": ["x", "y"], "g": "x", "h": {"k": [1]}}'
"""Members of all kinds, and a text of them."""
JSON = "start: %json "
"""How a grammar begins that is one schema."""


_TEXT = r'[^"\\\x00-\x1F\x7F]'
SLICES = [r"[\x20\x0A\x0D\x09]+", *(_TEXT + f"{{1,{most}}}" for most in (3, 5, 7, 10, 15, 30)), _TEXT + "+"]
"""Tokens that a mask takes together where all of them fit: those of strings by their length, for strings that end soon."""
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_QUOTED_LINE = re.compile(r"^\s*(\d+ \||\|?\s*\^+\s*$)")


class LLGuidanceGrammar:
    """A compiled grammar; its states share one lexer, which grows with what requests visit, and masks."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, text: str, shortest: int | None = None) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        outline = Outline(msgspec.json.decode(text[len(JSON) :]) if text.startswith(JSON) else None)
        self._masks = SharedMasks(outline, vocabulary)
        self._structure = StructureMasks(outline, vocabulary, ESCAPES)
        self._strings = OpenStrings(self._masks, self._structure, vocabulary, ESCAPES)
        self.text = text
        pattern_masks(vocabulary, ESCAPES).fill(outline.values.bodies.found, vocabulary)
        self.memory_bytes = 160 * 1024 + 32 * len(text) + outline.values.bodies.num_bytes
        self.min_tokens = min_tokens(self.new_state(), vocabulary) if shortest is None else shortest
        self._masks.know(self.min_tokens)

    def new_state(self) -> LLGuidanceState:
        return LLGuidanceState(self._matcher.deep_copy(), self._vocabulary, self._masks, self._structure, self._strings)


class LLGuidanceState(MatcherState[LLMatcher]):
    """End tokens never reach the matcher, whose own idea of an end is one token."""

    __slots__ = ("_failed", "_strings", "_structure")

    def __init__(
        self, matcher: LLMatcher, vocabulary: Vocabulary, masks: SharedMasks, structure: StructureMasks, strings: OpenStrings
    ) -> None:
        super().__init__(matcher, vocabulary, masks)
        self._structure, self._strings = structure, strings
        self._failed = False  # as far as it was noticed; to ask the matcher costs as much as half a mask where its memory is cold

    def is_finished(self) -> bool:
        if self._ended or not self._matcher.is_stopped():
            return self._ended
        return not self._has_failed()

    def is_accepting(self) -> bool:
        return self._ended or self._matcher.is_accepting()

    def fork(self) -> LLGuidanceState:
        other = LLGuidanceState(self._matcher.deep_copy(), self._vocabulary, self._masks, self._structure, self._strings)
        other._failed = self._failed
        self._copy_to(other)
        return other

    def forced_bytes(self, limit: int) -> bytes:
        if not self._forced:
            place = self._place()
            known = None if place is None or self._ended or self._failed else self._strings.forced(place)
            if known is not None:
                self._forced = known
            elif not self.is_accepting() and not self._matcher.is_stopped():
                self._forced = self._matcher.compute_ff_bytes()
                self._has_failed()
        return whole_characters(self._forced, limit)

    def string_end(self) -> bytes:
        place = self._place()
        return b"" if place is None or self._failed else self._strings.end(place)

    def _consume(self, token: int) -> bool:
        if not self._failed and self._matcher.try_consume_tokens([token]) == 1:
            return True
        self._has_failed()
        return False

    def _take_back(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def _is_broken(self) -> bool:
        return self._failed

    def _has_failed(self) -> bool:
        self._failed = self._failed or self._matcher.is_error()
        return self._failed

    def _make_mask(self, row: np.ndarray) -> None:
        """Raises GrammarError when the limits of the engine are hit: the mask is then unknown, and nothing may follow."""
        if not self._forced and not self._matcher.is_stopped():
            self._forced = self._matcher.compute_ff_bytes()
        if forced := self._forced:
            if not self._vocabulary.trie.fill_starts(forced, row) or not self._allow_longer(row, forced):
                return  # the matcher need not even be where the text is
        elif self._matcher.is_stopped():
            row[:] = self._vocabulary.end_mask if self.is_accepting() else 0
        else:
            self._matcher.unsafe_compute_mask_ptr(_address(row), row.nbytes)  # with every end token where the text may end
        if self._has_failed():
            row[:] = 0
            raise GrammarError(f"The grammar became too complex: {first_line(self._matcher.get_error())}")

    def _allow_longer(self, row: np.ndarray, forced: bytes) -> bool:
        """Allow the tokens that start with all of a forced text and go on; tell whether the matcher was asked."""
        starts = value_starts(self._vocabulary, ESCAPES)
        known = starts.reaching(self._masks.outline, self._place(), forced, self._vocabulary)
        if known is not None:
            if known.mask is not None:
                row |= known.mask
            allow(row, known.surely)
            tokens = known.perhaps
        else:
            _, tokens = self._vocabulary.around(forced)
            if len(tokens) > FEW and is_seen_whole(self._vocabulary, forced):
                begun = row.copy()
                self._matcher.unsafe_compute_mask_ptr(_address(row), row.nbytes)
                row |= begun
                return True
        if tokens:
            matcher = self._matcher
            allow(row, [token for token in tokens if matcher.validate_tokens([token])])
        return bool(tokens)

    def _compose_mask(self, place: Place | None, row: np.ndarray) -> bool:
        """Put a mask together from what the schema says comes next; behind a whole text nothing comes but its end."""
        if self._masks.outline.is_whole(place):
            row[:] = self._vocabulary.end_mask
            return True
        if place is None:
            return False
        if self._forced and not self._vocabulary.trie.fill_starts(self._forced, row):
            return True  # the matcher need not even be where the text is
        known = self._strings.write(place, row, self._following)
        if known is not None:
            return known
        return self._structure.write(place, row)

    def _following(self, text: bytes, strings: StringTokens) -> bytes | None:
        """Which of the texts that tokens have behind a string may come behind this one, a text away; None when that cannot be told."""
        end = self.fork()
        mask = np.full(self._vocabulary.num_words, -1, dtype=np.int32)
        try:
            if not _spell(end, text):
                return None
            end.fill_mask(mask)
        except GrammarError:  # over the limits of the engine, where this text may never go
            return None
        fits = strings.fitting(mask)
        for number in strings.unsure:
            rest = strings.rests[number]
            fits[number] = not rest or _spell(end.fork(), rest)
        return bytes(fits)


def _address(row: np.ndarray) -> int:
    """Where a row begins: ``row.ctypes.data``, which takes three times as long."""
    return addressof(c_char.from_buffer(row.data))


def _spell(state: LLGuidanceState, text: bytes) -> bool:
    """Advance by a text, byte by byte; False where it is forbidden."""
    tokens = [state._vocabulary.token_of.get(bytes((byte,))) for byte in text]
    return all(token is not None and state.accept(token) for token in tokens)


def compile(spec: GrammarSpec, vocabulary: Vocabulary) -> LLGuidanceGrammar:
    """Compile a ``json_schema`` or ``json_object``; GrammarError, naming keyword and place, for what cannot be enforced."""
    match spec.kind:
        case "json_object":
            return compile_schema({"type": "object"}, spec.options, vocabulary)
        case "json_schema":
            return compile_schema(normalise(msgspec.json.decode(spec.text)), spec.options, vocabulary)
        case "tool_calls":
            return compile_calls(spec, vocabulary)
        case _:
            raise GrammarError(f"llguidance does not take a grammar of kind {spec.kind}.")


def is_cheap(spec: GrammarSpec) -> bool:
    """Whether compiling surely takes some milliseconds: a short schema with few choices that may multiply."""
    return len(spec.text) <= CHEAP_BYTES and len(_MULTIPLYING.findall(spec.text)) <= CHEAP_CHOICES


def to_bytes(grammar: LLGuidanceGrammar) -> bytes:
    """Return a grammar for another process with the same vocabulary: its text, normalised and known to have an answer."""
    return msgspec.msgpack.encode((grammar.min_tokens, grammar.text))


def from_bytes(data: bytes, vocabulary: Vocabulary) -> LLGuidanceGrammar:
    """Make the grammar of ``to_bytes``."""
    shortest, text = msgspec.msgpack.decode(data, type=tuple[int, str])
    return compile_text(text, vocabulary, shortest)


def prepare(vocabulary: Vocabulary) -> None:
    """Make what every grammar of a vocabulary needs."""
    _tokenizer(vocabulary)
    string_tokens(vocabulary, ESCAPES)
    for name in FORMATS:
        asked = Outline(normalise({"type": "string", "format": name})).string(Place(kind="s"))
        if asked is not None and asked.body is not None:
            pattern_masks(vocabulary, ESCAPES).fill([asked.body], vocabulary)
    min_tokens(compile_text('start: "{"', vocabulary, 1).new_state(), vocabulary)


def compile_schema(schema: dict[str, Any] | bool, options: GrammarOptions, vocabulary: Vocabulary) -> LLGuidanceGrammar:
    """Compile a JSON schema as it stands; GrammarError where the engine refuses it."""
    return compile_text(f"{JSON}{json_text(schema, options)}", vocabulary)


def compile_calls(spec: GrammarSpec, vocabulary: Vocabulary) -> LLGuidanceGrammar:
    """Compile tool calls; GrammarError, naming the tool, where its schema cannot be enforced and must be.

    Arguments of a tool that is not strict are any object in that case.
    """
    calls = ToolCalls.of(spec)
    try:
        return compile_text(calls.lark([json_part(normalise(tool.schema), spec.options) for tool in calls.tools]), vocabulary)
    except GrammarError:
        # Some tool is to blame; which one, the engine does not say.
        return compile_text(calls.lark([_enforceable(tool, spec.options, vocabulary) for tool in calls.tools]), vocabulary)


def _enforceable(tool: ToolText, options: GrammarOptions, vocabulary: Vocabulary) -> str:
    """The part of a grammar for a tool's arguments, which compiles."""
    try:
        schema = normalise(tool.schema)
        compile_schema(schema, options, vocabulary)
    except GrammarError as error:
        if not tool.strict:
            return json_part({"type": "object"}, options)
        message = f"The parameters of the tool {tool.name!r}: {error}"
        raise GrammarError(message, param="tools", code=error.code, keyword=error.keyword, pointer=error.pointer) from None
    return json_part(schema, options)


def compile_text(grammar: str, vocabulary: Vocabulary, shortest: int | None = None) -> LLGuidanceGrammar:
    """Compile a Lark grammar in llguidance's dialect; ``shortest``: its ``min_tokens`` where they are known.

    One that is a schema and nothing else is not read as Lark, whose own lexer takes the engine a millisecond to make.
    Only Lark can say ``no_forcing``, which makes masks what ``forced_masks`` would.
    """
    if grammar.startswith(JSON):
        text = LLMatcher.grammar_from_json_schema(grammar[len(JSON) :])
    else:
        text = LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + grammar)
    matcher = LLMatcher(_tokenizer(vocabulary), text, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise GrammarError(f"The grammar cannot be enforced: {first_line(matcher.get_error())}")
    return LLGuidanceGrammar(matcher, vocabulary, grammar, shortest)


def json_part(schema: dict[str, Any] | bool, options: GrammarOptions) -> str:
    """Return the part of a Lark grammar that stands for JSON text of a schema."""
    return f"%json {json_text(schema, options)}"


def json_text(schema: dict[str, Any] | bool, options: GrammarOptions) -> str:
    """Return a schema as the engine is to read it."""
    if not isinstance(schema, dict):
        schema = {} if schema else {"enum": []}
    return msgspec.json.encode({**schema, "x-guidance": json_options(options)}).decode()


def json_options(options: GrammarOptions) -> JsonCompileOptions:
    """What the engine is told about JSON text."""
    match options.whitespace:
        case "compact":
            spacing: JsonCompileOptions = {"whitespace_flexible": False}
        case "fixed":
            spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        case "flexible":
            spacing = {"whitespace_pattern": rf"[ \n\r\t]{{0,{options.max_whitespace}}}"}
    return {**spacing, "json_allowed_escapes": ESCAPES, "lenient": False, "coerce_one_of": False}


class _Tokens(TokenizerWrapper):
    """A vocabulary as llguidance asks for it.  How it cuts a text shows only in what ``forced_masks`` makes of its masks."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = [vocabulary.bytes_of(token) for token in range(vocabulary.size)]
        self.special_token_ids = [token for token, text in enumerate(texts) if text is None]
        self.tokens = [b"<|%d|>" % token if text is None else text for token, text in enumerate(texts)]
        self.eos_token_id = vocabulary.end_ids[0] if vocabulary.end_ids else self.special_token_ids[0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self._cut = lru_cache(MAX_CUTS)(partial(_cut, proxy(vocabulary)))

    def __call__(self, text: str) -> list[int]:
        return self._cut(text)


def _cut(vocabulary: Vocabulary, text: str) -> list[int]:
    return cut(vocabulary, text.encode()) or []


_tokenizers: WeakKeyDictionary[Vocabulary, LLTokenizer] = WeakKeyDictionary()


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    tokenizer = _tokenizers.get(vocabulary)
    if tokenizer is None:
        tokenizer = LLTokenizer(_Tokens(vocabulary), n_vocab=vocabulary.size, eos_token=list(vocabulary.end_ids) or None, slices=SLICES)
        _tokenizers[vocabulary] = tokenizer
        _try_out(vocabulary)
    return tokenizer


def _try_out(vocabulary: Vocabulary) -> None:
    """Fill the masks of a text that has all kinds of values, so that the tables they want are made by who compiles instead of in a step."""
    schema = {"type": "object", "properties": TRIED, "required": list(TRIED), "additionalProperties": False}
    # A vocabulary without all bytes may have no answer.
    state = compile_text(JSON + json_text(schema, GrammarOptions()), vocabulary, 1).new_state()
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    for token in cut(vocabulary, TRIED_TEXT) or ():
        state.fill_mask(row)
        if not state.accept(token):
            break


def first_line(message: str) -> str:
    """The part of an engine's message that says what is wrong, without a dump of its state."""
    lines = [line.strip() for line in message.partition("<state>")[0].splitlines() if not _QUOTED_LINE.match(line)]
    return _PLACE.sub("", " ".join(filter(None, lines)))[:300]
