"""The states of an automaton over a vocabulary: masks against every token tried, drafts that change nothing, ends that are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.errors import GrammarError
from radixrt.grammar.fsm import build_tables
from radixrt.grammar.fsm import compile as compile_fsm
from radixrt.grammar.fsm.grammar import FsmGrammar, FsmState
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.types import GrammarSpec

PIECES = ["ab", "abc", "bc", "é", "日本", '":', '{"', "aa", "aaaa", "12", "123", "  "]


def vocabulary(pieces: list[str], *, lacking: bytes = b"") -> Vocabulary:
    """All bytes and some longer tokens, cut by the longest first; two end tokens, a control token, and room behind."""
    spelled = [bytes([byte]) for byte in range(256) if byte not in lacking] + [piece.encode() for piece in pieces]
    by_bytes = {piece: token for token, piece in enumerate(spelled)}

    def encode(text: str) -> list[int]:
        rest, tokens = text.encode(), []
        while rest:
            size = next(size for size in range(min(len(rest), 16), 0, -1) if rest[:size] in by_bytes)
            tokens.append(by_bytes[rest[:size]])
            rest = rest[size:]
        return tokens

    ends = (len(spelled), len(spelled) + 2)
    return Vocabulary([*spelled, b"</s>", None, b"<end>", *spelled[-1:]], ends, encode, len(spelled) + 40)


VOCABULARIES = st.lists(st.sampled_from(PIECES) | st.text("ab1é", min_size=2, max_size=4), max_size=8, unique=True).map(vocabulary)
REGEXES = st.sampled_from(
    [
        r"(abc|abd)*", r"a{0,5}", r"\d{3}-\d{2}", r'\{"a": (1|23), "b": "[^"]*"\}', "日本|日曜|é", ".*", r"(é|è)日?", "", r"\w+ab",
        "a{8}", "(ab|abc|abcab){2}", r"[ab]{3}12", r"\s{0,3}abc", "a?b?1?$",
    ]
)  # fmt: skip
CHOICES = st.lists(st.text("abé1", max_size=5), min_size=1, max_size=5).map(lambda texts: msgspec.json.encode(texts).decode())
SPECS = REGEXES.map(lambda text: GrammarSpec("regex", text)) | CHOICES.map(lambda text: GrammarSpec("choice", text))


def allowed(state: FsmState, words: Vocabulary) -> list[int]:
    row = np.full(words.num_words, -1, dtype=np.int32)
    state.fill_mask(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def matches(spec: GrammarSpec, text: bytes) -> bool:
    if spec.kind == "choice":
        return text in [choice.encode() for choice in msgspec.json.decode(spec.text, type=list[str])]
    return re.fullmatch(spec.text, text.decode()) is not None


def samples(grammar: FsmGrammar, choices: list[int], *, max_tokens: int = 12) -> Iterator[FsmState]:
    """The states of one generation."""
    state = grammar.new_state()
    yield state
    for choice in choices[:max_tokens]:
        if state.is_finished():
            return
        tokens = allowed(state, grammar.vocabulary)
        assert state.accept(tokens[choice % len(tokens)])
        yield state


INDICES = st.lists(st.integers(0, 1 << 16), max_size=12)


@settings(max_examples=60)
@given(SPECS, VOCABULARIES, INDICES)
def test_mask_is_what_accept_says_of_every_token(spec: GrammarSpec, words: Vocabulary, choices: list[int]) -> None:
    for state in samples(compile_fsm(spec, words), choices):
        tokens = allowed(state, words)
        assert tokens or (state.is_finished() and not words.end_ids)
        for token in range(-1, words.size + 32):
            accepted = state.accept(token)
            assert accepted == (token in tokens), token
            if accepted:
                state.rollback(1)
        assert all(state.is_accepting() == (token in tokens) for token in words.end_ids)


@settings(max_examples=60)
@given(SPECS, VOCABULARIES, INDICES, st.integers(0, 12))
def test_state_is_a_function_of_what_it_accepted(spec: GrammarSpec, words: Vocabulary, choices: list[int], back: int) -> None:
    grammar = compile_fsm(spec, words)
    *_, state = samples(grammar, choices)
    tokens, twin = list(state._tokens), state.fork()
    back = min(back, len(tokens))
    twin.rollback(back)
    again = grammar.new_state()
    assert all(again.accept(token) for token in tokens[: len(tokens) - back])
    assert allowed(again, words) == allowed(twin, words)
    assert (again.forced_bytes(99), again.close(9), again.is_finished()) == (twin.forced_bytes(99), twin.close(9), twin.is_finished())
    assert all(twin.accept(token) for token in tokens[len(tokens) - back :])
    assert allowed(state, words) == allowed(twin, words)


@settings(max_examples=60)
@given(SPECS, VOCABULARIES, INDICES, st.integers(0, 12))
def test_close_ends_the_text(spec: GrammarSpec, words: Vocabulary, choices: list[int], max_tokens: int) -> None:
    *_, state = samples(compile_fsm(spec, words), choices)
    before = list(state._tokens)
    tokens = state.close(max_tokens)
    whole = state.close(words.size)
    assert whole is not None
    assert tokens is None or len(tokens) <= max_tokens
    assert tokens is not None or len(whole) > max_tokens
    for path in (tokens or [], whole):
        twin = state.fork()
        assert all(twin.accept(token) for token in path)
    assert twin.is_accepting()
    assert matches(spec, words.spell([*before, *whole]))


@settings(max_examples=60)
@given(SPECS, VOCABULARIES)
def test_shortest_answer_is_the_shortest(spec: GrammarSpec, words: Vocabulary) -> None:
    grammar = compile_fsm(spec, words)
    layer = {0}
    for length in range(6):
        if any(grammar.tables.accepting[state] for state in layer):
            assert grammar.min_tokens == length
            path = grammar.new_state().close(length)
            assert path is not None
            assert len(path) == length
            return
        walked = {grammar.tables.walk(state, spelled) for state in layer for spelled in words.token_of}
        layer = walked - {-1}
    assert grammar.min_tokens is not None
    assert grammar.min_tokens >= 6


@settings(max_examples=150)
@given(SPECS, VOCABULARIES, st.integers(0, 1 << 30), st.integers(1, 16), st.booleans())
def test_drafts_never_change_the_text(spec: GrammarSpec, words: Vocabulary, seed: int, max_draft: int, canonical: bool) -> None:
    """A model whose choice is a function of seed, text so far and mask; ``canonical``: one that likes long tokens."""
    grammar = compile_fsm(spec, words)

    def sample(state: FsmState, tokens: list[int]) -> int:
        legal = allowed(state, words)
        if canonical:
            return max(legal, key=lambda token: (len(words.bytes_of(token) or b""), -token))
        return legal[Random(repr((seed, tokens))).randrange(len(legal))]

    def generate(*, drafts: bool) -> tuple[list[int], int, int]:
        state, tokens, steps, refused = grammar.new_state(), list[int](), 0, 0
        while len(tokens) < 40 and not state.is_finished():
            draft = state.draft(max_draft) if drafts else []
            assert len(draft) <= max_draft
            steps += 1
            for drafted in [*draft, None]:  # the last position has no draft to confirm
                token = sample(state, tokens)
                assert state.accept(token)
                tokens.append(token)
                if state.is_finished() or len(tokens) == 40:
                    break
                if token != drafted:
                    refused += drafted is not None
                    break
        return tokens, steps, refused

    without, with_drafts = generate(drafts=False), generate(drafts=True)
    assert with_drafts[0] == without[0]
    assert with_drafts[1] <= without[1]


@given(st.sets(st.integers(0x20, 0xFF), max_size=220).map(bytes), SPECS, INDICES)
def test_no_text_leads_where_no_token_goes(lacking: bytes, spec: GrammarSpec, choices: list[int]) -> None:
    spelled = [bytes([byte]) for byte in range(256) if byte not in lacking] + ["日本".encode(), "é".encode(), b'{"a', b"ab"]
    words = Vocabulary([*spelled, b"</s>"], (len(spelled),), lambda text: [])
    tables = build_tables(spec)
    leads_to: dict[int, set[int]] = {}
    for state in (queue := [0]):
        leads_to[state] = {tables.walk(state, token) for token in spelled} - {-1}
        queue += [target for target in leads_to[state] if target not in queue]
    ending = {state for state in leads_to if tables.accepting[state]}
    while fresh := {state for state, targets in leads_to.items() if targets & ending} - ending:
        ending |= fresh
    if 0 not in ending:
        with pytest.raises(GrammarError, match="no tokens"):
            compile_fsm(spec, words)
        return
    grammar = compile_fsm(spec, words)
    assert {state for state in leads_to if grammar.live[state]} == ending
    for reached in samples(grammar, choices):
        assert allowed(reached, words)
