"""What the regex reader refuses, what it costs to refuse it, and what stays text."""

from __future__ import annotations

import itertools
import re
import time

import msgspec
import pytest

from radixrt.errors import GrammarError
from radixrt.grammar.fsm import Tables, build_tables, is_cheap
from radixrt.grammar.fsm.code_points import MAX_CODE_POINT, complement, named_class
from radixrt.grammar.fsm.syntax import Characters, parse
from radixrt.grammar.fsm.tables import DEAD
from radixrt.types import GrammarSpec

EVERY = "".join(map(chr, range(MAX_CODE_POINT + 1)))


def regex(pattern: str) -> Tables:
    return build_tables(GrammarSpec("regex", pattern))


def accepts(tables: Tables, text: bytes) -> bool:
    return (state := tables.walk(0, text)) != DEAD and bool(tables.accepting[state])


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?=a)b", r"(?!a)b", r"(?<=a)b", r"(?<!a)b", r"(a)\1", r"(?P<n>a)(?P=n)", r"(a)(?(1)b|c)", "(?>a)b", "a*+", "a++", "a?+", "a{2}+",
        r"\ba", r"a\B", "(?m)^a", "(?x)a", "(?L)a", "(?im:a)",
    ],
)  # fmt: skip
def test_what_no_automaton_says_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="not supported, at position") as refusal:
        regex(pattern)
    assert refusal.value.code == "unsupported_grammar"


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[a", "[]", "[^]", "a**", "a???", "a{2}{3}", "*", "a|*", "(*a)", "{2}", "^*", "$+", "[b-a]",
        r"[\d-a]", r"[a-\w]", "\\", r"\q", r"[\q]", r"\x4", r"\u12", r"\U00110000", r"\400", r"[\8]", r"\N{no such}",
        "(?P<1>a)", "(?P<n>a)(?P<n>b)",
        "(?P<n", "(?#a", "(?z)a", "a(?i)b", "(?i-i:a)", "(?-a:a)", "(?au:a)", "(?-:a)", "a{3,2}", "a{99999999999}",
    ],
)  # fmt: skip
def test_malformed_regex_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises((re.error, OverflowError)):
        re.compile(pattern)
    with pytest.raises(GrammarError, match=r"regex: .* at position \d+") as refusal:
        regex(pattern)
    assert refusal.value.code == "malformed_grammar"


@pytest.mark.parametrize("pattern", [r"[^\s\S]", "a^b", "$a", r"\Za", "[\\ud800-\\udfff]", "\ud800"])
def test_regex_without_a_text_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="matches no text"):
        regex(pattern)


BOMBS = [
    "(.{1,300}){1,300}", ".*a.{40}", "a{999999999}", "((a{1,100}){1,100}){1,100}", "(" * 5000 + ")" * 5000, "a" * 65_537,
    "(a?){5000}a{5000}", r"(\w{1,90}\s){1,90}", "|".join(f"{i}.{{9}}" for i in range(2000)),
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_bomb_is_refused_soon(bomb: str) -> None:
    named_class(r"\w", 0), named_class(r"\s", 0)
    start = time.process_time()
    with pytest.raises(GrammarError, match=r"complex|deep|characters"):
        regex(bomb)
    assert time.process_time() - start < 4
    start = time.process_time()
    is_cheap(GrammarSpec("regex", bomb))
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("pattern", "cheap"), [(r"\d{4}-\d{2}", True), ("yes|no", True), ("(", True), (r"\w{1,300}", False), (".*a.{14}", False)]
)
def test_cheap_is_what_compiles_in_milliseconds(pattern: str, cheap: bool) -> None:
    assert is_cheap(GrammarSpec("regex", pattern)) is cheap


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a{", "a{"), ("a{,", "a{,"), ("a{1,b}", "a{1,b}"), ("{}", "{}"), ("a{}", "a{}"), ("}", "}"), ("[]a]+", "]a"), ("[a-]+", "-a"),
     ("a(?#b)c", "ac"), ("\x00", "\x00"), ("霍格沃茨|霍比特人", "霍比特人"), (r"\N{SNOWMAN}", "☃"), (r"\060\x41\u00e9", "0Aé"),
     ("a$\n", "a\n"), (r"\$\^", "$^")],
)  # fmt: skip
def test_odd_spellings_are_those_of_re(pattern: str, text: str) -> None:
    assert re.fullmatch(pattern, text)
    assert accepts(regex(pattern), text.encode())


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", "(?s).", r"(?a)\w", "(?i)k", "(?i)ß", "(?i)[a-zé]", "(?i)[^k]", "(?i)\u0130",
        "(?ai)[K-Lſ]", r"(?i)[\w-]",
    ],
)  # fmt: skip
def test_class_is_that_of_re_for_every_character(pattern: str) -> None:
    tree = parse(pattern)
    assert isinstance(tree, Characters)
    unmatched = "".join(EVERY[low : high + 1] for low, high in complement(tree.ranges))
    assert unmatched == re.sub(pattern, "", EVERY)


ANCHORED = [
    "a$", "a$\n", "a$\n?", "(a$|b)\n*", "a$$", "a$\n$", r"a\Z\n?", r"a$\Z", r"a$\n\Z", "a$.?", "(?s)a$.?", "(?s)a$.*",
    "(a$\n?)+", "(a|$)*b?", "^a", "a?^b", "(^a|b)*", "(?:^|a)b", r"(\Aa|b)c?", "(^)*a", "b*^a", "(a|^b)(c|^a)?", "^$", "^$\n?",
    "(^|$|a)+", "[ab]*$|c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ANCHORED)
def test_anchors_are_those_of_re(pattern: str) -> None:
    tables, compiled = regex(pattern), re.compile(pattern)
    for text in map("".join, itertools.chain(*(itertools.product("abc\n", repeat=size) for size in range(5)))):
        assert accepts(tables, text.encode()) == (compiled.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "nothing"), ("[1]", "list of texts"), ("{}", "list of texts"), ("[", "list of texts")]
)
def test_choice_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        build_tables(GrammarSpec("choice", text))


def test_many_choices_share_what_they_can() -> None:
    choices = [f"{i:04}, and the same end for all of them" for i in range(2_000)]
    tables = build_tables(GrammarSpec("choice", msgspec.json.encode(choices).decode()))
    assert tables.num_states < 100
    assert all(accepts(tables, choice.encode()) for choice in choices[::99])


@pytest.mark.parametrize("harm", range(6))
def test_tables_that_are_no_automaton_are_refused(harm: int) -> None:
    good = msgspec.msgpack.decode(regex("a[b-c]*d").to_bytes())
    assert Tables.from_bytes(msgspec.msgpack.encode(good)).num_states == 3
    if harm == 5:
        good = good[:4]
    else:
        changed = bytearray(good[harm])
        changed[-1 if harm != 4 else 0 :] = [b"\x07", b"\xff", b"\x00", b"\x7f", b"\x01\x00"][harm]
        good[harm] = bytes(changed)
    with pytest.raises(ValueError, match=r"no automaton|size"):
        Tables.from_bytes(msgspec.msgpack.encode(good))
