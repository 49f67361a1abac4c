"""The automaton of a regex against ``re``, of a choice against its list, and both against plain definitions of what tables tell."""

from __future__ import annotations

import contextlib
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from radixrt.errors import GrammarError
from radixrt.grammar.fsm import Tables, build_tables
from radixrt.grammar.fsm.determinize import determinize, minimize, trim
from radixrt.grammar.fsm.nfa import build_positions
from radixrt.grammar.fsm.syntax import parse
from radixrt.grammar.fsm.tables import DEAD
from radixrt.grammar.fsm.utf8 import to_bytes
from radixrt.types import GrammarSpec

# Characters of one to four bytes, of every kind that a class or flag tells apart, and neighbours of theirs.
ALPHABET = "abAB01_- \n\x00\x85éÉßſKkıİ٣日本€\ud7ff\ue000😀\U0010ffff"
LITERALS = st.sampled_from(ALPHABET).map(re.escape)
MEMBERS = st.one_of(
    st.sampled_from(
        ["a-c", "A-Z", r"\d", r"\w", r"\s", r"\S", r"\x41", r"\u0130", r"\101", r"\b", "é-日", r"\-", "-", "[", ".", "^", r"\n"]
    ),
    st.sampled_from(ALPHABET).map(lambda character: f"\\U{ord(character):08x}"),
)
CLASSES = st.tuples(st.sampled_from(["", "^"]), st.lists(MEMBERS, min_size=1, max_size=3)).map(
    lambda parts: f"[{parts[0]}{''.join(parts[1])}]"
)
ATOMS = st.one_of(
    LITERALS, CLASSES, st.sampled_from([".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "^", "$", r"\A", r"\Z", "()", r"\x61", "{"])
)
COUNTS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{,2}", "{0,2}", "{1,3}?", "{0}", "{,}"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:", "(?i:", "(?s:", "(?-i:", "(?a:", "(?u:"]), inner).map(lambda parts: "".join(parts) + ")")
    return st.one_of(
        group,
        st.tuples(group | LITERALS | CLASSES, COUNTS).map("".join),
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
    )


REGEXES = st.tuples(st.sampled_from(["", "", "(?i)", "(?s)", "(?a)", "(?ai)"]), st.recursive(ATOMS, _larger, max_leaves=8)).map("".join)
MATCHED = st.sampled_from(ALPHABET + "cdzZ.-[^{\b")
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=6) | st.text(max_size=3)


def is_regex(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def accepts(tables: Tables, text: bytes) -> bool:
    state = 0
    for byte in text:
        if (state := tables.step(state, byte)) == DEAD:
            return False
    return bool(tables.accepting[state])


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@settings(max_examples=150)
@given(REGEXES.filter(is_regex), st.lists(TEXTS, min_size=1, max_size=8), st.data())
def test_regex_matches_what_re_matches(pattern: str, texts: list[str], data: st.DataObject) -> None:
    compiled = re.compile(pattern)
    try:
        tables = build_tables(GrammarSpec("regex", pattern))
    except GrammarError:
        assert not any(compiled.fullmatch(text) for text in texts)
        return
    with contextlib.suppress(InvalidArgument):  # the strategy finds no text in this alphabet
        texts = [*texts, data.draw(st.from_regex(compiled, fullmatch=True, alphabet=MATCHED))]
    texts = [*texts, tables.shortest_end(0).decode()]
    for text in texts:
        if not re.search("[\ud800-\udfff]", text):
            assert accepts(tables, text.encode()) == (compiled.fullmatch(text) is not None), text


@settings(max_examples=100)
@given(REGEXES.filter(is_regex))
def test_minimal_automaton_matches_the_same_and_has_no_two_states_alike(pattern: str) -> None:
    whole = determinize(build_positions(parse(pattern)))
    try:
        trimmed = trim(whole)
    except GrammarError:
        return
    small = minimize(trimmed)
    assert len(small.moves) <= len(trimmed.moves) <= len(whole.moves)
    pairs = {(0, 0)}
    for left, right in (queue := [(0, 0)]):  # the states reached by the same texts accept alike and go on alike
        assert trimmed.accepting[left] == small.accepting[right]
        assert trimmed.moves[left].keys() == small.moves[right].keys()
        fresh = {(trimmed.moves[left][c], small.moves[right][c]) for c in small.moves[right]} - pairs
        pairs |= fresh
        queue += fresh
    tables = Tables.build(to_bytes(small), small.accepting)
    starts = {*tables.low, *(byte + 1 for byte in tables.high if byte < 255)}  # between them no edge tells bytes apart
    edges = [[tables.step(state, byte) for byte in starts] for state in range(tables.num_states)]
    label, num_labels = tables.accepting.tolist(), 0
    while len(set(label)) > num_labels:
        num_labels = len(set(label))
        rows = [(label[s], *(-1 if t == DEAD else label[t] for t in edges[s])) for s in range(tables.num_states)]
        names = {row: i for i, row in enumerate(dict.fromkeys(rows))}
        label = [names[row] for row in rows]
    assert len(set(label)) == tables.num_states


def is_text(spelled: bytes) -> bool:
    return spelled.decode(errors="ignore").encode() == spelled


def expanded(tables: Tables, state: int) -> dict[int, int]:
    edges = range(tables.first[state], tables.first[state + 1])
    return {byte: int(tables.target[edge]) for edge in edges for byte in range(tables.low[edge], tables.high[edge] + 1)}


CHOICES = st.lists(st.text(st.sampled_from('ab"\\é日\n'), max_size=5) | st.text(max_size=3), min_size=1, max_size=8)


@given(CHOICES, st.lists(st.text(st.sampled_from("abé"), max_size=4)))
def test_choice_is_its_list(choices: list[str], others: list[str]) -> None:
    choices = [choice for choice in choices if not re.search("[\ud800-\udfff]", choice)] or [""]
    tables = build_tables(GrammarSpec("choice", msgspec.json.encode(choices).decode()))
    for text in [*choices, *others, *(choice[:-1] for choice in choices)]:
        assert accepts(tables, text.encode()) == (text in choices)
    signatures = {(bool(tables.accepting[s]), tuple(expanded(tables, s).items())) for s in range(tables.num_states)}
    assert len(signatures) == tables.num_states


@settings(max_examples=100)
@given(REGEXES.filter(is_regex), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_forced_text_and_shortest_ends(pattern: str, choices: list[int]) -> None:
    try:
        tables = build_tables(GrammarSpec("regex", pattern))
    except GrammarError:
        return
    state, text = 0, b""
    for choice in choices:
        forced = tables.forced(state, 256)
        at = state
        for byte in forced:
            assert not tables.accepting[at] and expanded(tables, at).keys() == {byte}
            at = tables.step(at, byte)
        assert at == tables.walk(state, forced)
        assert not forced or is_text(text + forced)
        end = tables.shortest_end(state)
        assert len(end) == tables.distance[state] == distance(tables, state)
        assert tables.accepting[tables.walk(state, end)]
        edges = expanded(tables, state)
        if not edges:
            break
        byte = sorted(edges)[choice % len(edges)]
        state, text = edges[byte], text + bytes([byte])
    again = Tables.from_bytes(tables.to_bytes())
    assert [expanded(again, s) for s in range(again.num_states)] == [expanded(tables, s) for s in range(tables.num_states)]
    assert again.accepting.tolist() == tables.accepting.tolist()


def distance(tables: Tables, state: int) -> int:
    """How many bytes it takes to an end, by trying."""
    layer, length = {state}, 0
    while not any(tables.accepting[s] for s in layer):
        layer = {target for s in layer for target in expanded(tables, s).values()}
        length += 1
    return length
