"""GBNF: the same language, read from llama.cpp's notation."""

from __future__ import annotations

import re

import pytest
from grammar_walk import BYTES, accepts

from radixrt.errors import GrammarError
from radixrt.grammar.gbnf import to_ebnf
from radixrt.grammar.xgrammar_engine import compile
from radixrt.types import GrammarSpec

JSON = r"""
# a grammar in the style of those that come with llama.cpp
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


def gbnf(text: str) -> GrammarSpec:
    return GrammarSpec("gbnf", text)


@pytest.mark.parametrize(
    ("text", "good"), [('{"a":[1,-2.5e3,true],"b":{"c":"x\\n\\u00e9"}}', True), ("{\n  }", True), ('{"a":}', False), ('{"a"', False)]
)
def test_a_grammar_for_json(text: str, good: bool) -> None:
    assert accepts(compile(gbnf(JSON), BYTES), text) == good


@pytest.mark.parametrize(
    ("grammar", "pattern", "texts"),
    [
        ('root ::= | "a" root', "a*", ["", "a", "aaa", "b"]),
        ('root ::= ("x" | ) "y"', "x?y", ["y", "xy", "x"]),
        ("root ::= . .", "(?s)..", ["é\n", "ab", "a", "abc"]),
        ('root ::= "a"{,2}', "a{,2}", ["", "aa", "aaa"]),
        ('root ::= "a"{2,}', "a{2,}", ["a", "aa", "aaaa"]),
        ('root ::= "ab"{2}', "(ab){2}", ["abab", "abb"]),
        ('root ::= "ab"?+', "(ab)*", ["", "abab", "a"]),
        ("root ::= [^a-c]", "[^a-c]", ["d", "a", "-", "\n"]),
        ("root ::= [a-]+ [-a] [\\]\\[^]", "[a-]+[-a][\\]\\[^]", ["a-]", "--^", "a-b"]),
        ("root ::= [\\u00e9-\\u00eb日]", "[é-ë日]", ["ê", "日", "x"]),
        ('root ::= a-b\n  | "c" # or\na-b ::= "d" |\n "e"', "[cde]", ["c", "d", "e", "f"]),
        ('root ::= "\\x41\\"\\n" "\\U0001F600"', 'A"\n😀', ['A"\n😀', "A"]),
        ('root::="a"b\nb::=[0-9]+"!"', "a[0-9]+!", ["a12!", "a!"]),
    ],
)
def test_the_language_is_that_of_a_regular_expression(grammar: str, pattern: str, texts: list[str]) -> None:
    compiled = compile(gbnf(grammar), BYTES)
    assert [accepts(compiled, text) for text in texts] == [re.fullmatch(pattern, text) is not None for text in texts]


@pytest.mark.parametrize(
    ("grammar", "line"),
    [
        ('root ::= "a" b', 1),
        ('x ::= "a"', None),
        ('root ::= "a\n"', 1),
        ('root ::= ("a"', 1),
        ('root ::= "a")', 1),
        ('a ::= "b"\nroot ::= [] a', 2),
        ('root ::= "a"\nroot ::= "b"', 2),
        ('root ::= * "a"', 1),
        ('root ::= "a"{3,2}', 1),
        ('root ::= "a"{100000}', 1),
        ('root ::= ((("a"{100}){100}){100})', 1),
        ('root ::= "a"{1000}{1000}', 1),
        ("root ::= " + "(" * 65 + '"a"' + ")" * 65, 1),
        ('root ::= "\\q"', 1),
        ("root ::= <[1234]>", 1),
        ('root ::= "\\ud800"', 1),
        ("root ::= root", None),
        ('root ::= "a" root', None),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(grammar: str, line: int | None) -> None:
    with pytest.raises(GrammarError, match="no rule|no text|no finite" if line is None else f"line {line}\\."):
        compile(gbnf(grammar), BYTES)


def test_reading_takes_time_in_proportion() -> None:
    nested = "(" * 60 + '"a"' + ")?" * 60
    assert to_ebnf("root ::= " + " ".join([nested] * 40)).count('"a"') == 40
