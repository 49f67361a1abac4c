"""Answers are read the same however their text is cut; what is no call is content, and nothing is lost."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.text.answer_parser import AnswerParser
from radixrt.text.pieces import CallArguments, CallBegin, Message, Piece
from radixrt.text.reasoning import REASONING_FORMATS
from radixrt.text.source import Source
from radixrt.text.tools.formats import CALL_FORMATS

TOOLS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}, "any": {}}},
    "get.weather-2": {"type": "object", "properties": {"o": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
}
TRICKY = {"s": 'é "q" \\ </tool_call> [ARGS] <|call|>\n{', "n": -3}
NESTED = {"l": [1, {"a": [None, True, 2.5e-3]}], "any": {}}

Calls = list[tuple[str, Any]]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes_call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{compact({'name': name, 'arguments': arguments})}\n</tool_call>"


DEEPSEEK = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
TWO: Calls = [("f", TRICKY), ("get.weather-2", {"o": None})]
# Family, text, content, calls.
GOOD: list[tuple[str, str, str, Calls]] = [
    ("hermes", "Let me see.\n" + hermes_call("f", TRICKY) + "\n" + hermes_call("get.weather-2", {"o": None}) + "\n", "Let me see.", TWO),
    ("hermes", '<tool_call>{"arguments": {"n": 1}, "id": 7, "name": "f"}</tool_call>Done.', "Done.", [("f", {"n": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"n\\": 1}"}</tool_call>', "", [("f", {"n": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "a\nb"}</tool_call>', "", [("f", {"s": "a\nb"})]),
    ("hermes", '<tool_call>{"name": "f"}<tool_call>{"name": "f", "arguments": null}', "", [("f", {}), ("f", {})]),
    ("llama3", '{"name": "f", "parameters": ' + compact(TRICKY) + "}", "", [("f", TRICKY)]),
    (
        "llama3",
        '{"type": "function", "name": "f", "parameters": {}}; {"name": "f", "parameters": {"n": 1}}',
        "",
        [("f", {}), ("f", {"n": 1})],
    ),
    ("llama3", 'Well. <|python_tag|>{"name": "f", "parameters": {"n": 2}}', "Well.", [("f", {"n": 2})]),
    (
        "mistral",
        f'Hm[TOOL_CALLS] [{{"name": "f", "arguments": {compact(TRICKY)}}}, {{"name": "f", "arguments": {{}}}}]',
        "Hm",
        [("f", TRICKY), ("f", {})],
    ),
    (
        "mistral",
        f'[TOOL_CALLS]f[ARGS]{compact(NESTED)}[TOOL_CALLS]get.weather-2[CALL_ID]abc123[ARGS]{{"o": "x"}}',
        "",
        [("f", NESTED), ("get.weather-2", {"o": "x"})],
    ),
    (
        "deepseek",
        "Hm" + DEEPSEEK.format(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{compact(TRICKY)}\n```<｜tool▁call▁end｜>"),
        "Hm",
        [("f", TRICKY)],
    ),
    (
        "deepseek",
        DEEPSEEK.format(
            '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        ),
        "",
        [("f", {"n": 1}), ("f", {})],
    ),
    (
        "kimi_k2",
        "So " + KIMI.format(f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{compact(NESTED)}<|tool_call_end|>"),
        "So",
        [("f", NESTED)],
    ),
    (
        "glm",
        'Ok\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a "b"\nc</arg_value>\n<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>',
        "Ok",
        [("f", {"s": 'a "b"\nc', "n": 3})],
    ),
    (
        "glm",
        "<tool_call>get.weather-2</tool_call>\n<tool_call>get.weather-2<arg_key>o</arg_key><arg_value>null</arg_value></tool_call>",
        "",
        [("get.weather-2", {}), ("get.weather-2", {"o": None})],
    ),
    (
        "qwen3_coder",
        "Ok\n<tool_call>\n<function=f>\n<parameter=s>\n if a:\n  b\n</parameter>\n"
        "<parameter=l>\n[1]\n</parameter>\n</function>\n</tool_call>",
        "Ok",
        [("f", {"s": " if a:\n  b", "l": [1]})],
    ),
    (
        "qwen3_coder",
        "<function=f><parameter=n>x</parameter><parameter=any>True</parameter></function>",
        "",
        [("f", {"n": "x", "any": True})],
    ),
    (
        "pythonic",
        "[f(s='it\\'s (so)', n=-3, l=[1, {'a': None}]), get.weather-2(o=\"é\\n\")]",
        "",
        [("f", {"s": "it's (so)", "n": -3, "l": [1, {"a": None}]}), ("get.weather-2", {"o": "é\n"})],
    ),
    ("pythonic", "<|python_start|>[f()]<|python_end|>", "", [("f", {})]),
    (
        "gpt-oss",
        f"<|channel|>analysis<|message|>Think.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{compact(NESTED)}<|call|>",
        "",
        [("f", NESTED)],
    ),
    (
        "gpt-oss",
        "<|channel|>commentary<|message|>First.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}",
        "First.",
        [("f", {})],
    ),
    (
        "json",
        '[{"name": "f", "arguments": {"n": 1}}, {"name": "get.weather-2", "arguments": {}}]',
        "",
        [("f", {"n": 1}), ("get.weather-2", {})],
    ),
]
BAD = [
    ("hermes", '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call> ok'),
    ("hermes", '<tool_call>{"name": 3}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", "a <tool_ca"),
    ("hermes", '<tool_call> <tool_call>\n{"name": "f'),
    ("llama3", '{"name": "f", "par'),
    ("llama3", '{"answer": 42}'),
    ("mistral", "[TOOL_CALLS]nobody[ARGS]{}"),
    ("mistral", "[TOOL_CALLS] [1]"),
    ("deepseek", DEEPSEEK.format("<｜tool▁call▁begin｜>nobody<｜tool▁sep｜>{}<｜tool▁call▁end｜>")),
    ("kimi_k2", KIMI.format("<|tool_call_begin|>f<|tool_call_end|>")),
    ("glm", "<tool_call>no such tool\n</tool_call>"),
    ("qwen3_coder", "<tool_call>f</tool_call> <function=nobody>"),
    ("pythonic", "[a link](http://x)"),
    ("pythonic", "[f(n=__import__('os'))]"),
    ("pythonic", "[f(1)]"),
    ("json", "not a list"),
]
FAMILIES = sorted(CALL_FORMATS)


def parser(family: str, *, max_calls: int | None = None) -> AnswerParser:
    ids = map("id{}".format, itertools.count())
    return AnswerParser([(CALL_FORMATS[family].read, Source(TOOLS, trim=True, max_calls=max_calls, new_id=lambda: next(ids)))])


def read(parser: AnswerParser, parts: list[str]) -> Message:
    pieces: list[Piece] = []
    for part in parts:
        pieces += parser.push(part)
    return Message.of(pieces + parser.push("", end=True))


def cuts(text: str) -> list[list[str]]:
    return [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]


@pytest.mark.parametrize(("family", "text", "content", "calls"), GOOD)
def test_calls_are_found_however_the_text_is_cut(family: str, text: str, content: str, calls: Calls) -> None:
    for parts in cuts(text):
        message = read(parser(family), parts)
        assert message.content == content
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
        assert [call.id for call in message.calls] == [f"id{i}" for i in range(len(calls))]


@pytest.mark.parametrize(("family", "text"), BAD)
def test_what_is_no_call_is_content(family: str, text: str) -> None:
    for parts in cuts(text):
        assert read(parser(family), parts) == Message(text, "", [])


@pytest.mark.parametrize("family", FAMILIES)
def test_text_without_calls_is_passed_on_as_it_comes(family: str) -> None:
    if family == "json":
        return
    assert Message.of(parser(family).push("Hello, wor")).content == "Hello, wor"


def test_arguments_come_as_they_are_written() -> None:
    reader = parser("hermes")
    pieces = [piece for char in GOOD[0][1] for piece in reader.push(char)]
    assert sum(isinstance(piece, CallBegin) for piece in pieces) == 2
    assert sum(isinstance(piece, CallArguments) for piece in pieces) > 20
    first = next(i for i, piece in enumerate(pieces) if isinstance(piece, CallBegin))
    assert all(not isinstance(piece, CallArguments) for piece in pieces[:first])


def test_what_follows_an_error_in_arguments_stays_in_them() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"n": tru}}</tool_call> after'
    for parts in cuts(text):
        message = read(parser("hermes"), parts)
        assert [(call.name, call.arguments) for call in message.calls] == [("f", '{"n": tru}}')]
        assert message.content == "after"


def test_calls_beyond_the_most_are_content() -> None:
    one, two = hermes_call("f", {}), hermes_call("f", {"n": 2})
    message = read(parser("hermes", max_calls=1), [f"{one}\n{two}"])
    assert [call.arguments for call in message.calls] == ["{}"]
    assert message.content == two


@pytest.mark.parametrize(
    ("name", "inside", "text", "reasoning", "content"),
    [
        ("qwen3", False, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("qwen3", False, "Yes. <think>", "", "Yes. <think>"),
        ("qwen3", False, " \n<think>Hm", "Hm", ""),
        ("qwen3", True, "\nHm </thin </think>Yes", "Hm </thin", "Yes"),
        ("deepseek-r1", True, "Hm. \n", "Hm. \n", ""),
        ("deepseek-r1", True, "<think>Hm</think>", "Hm", ""),
        ("mistral", False, "[THINK]a[/THINK]b", "a", "b"),
        ("kimi", False, "◁think▷a◁/think▷ b ", "a", "b "),
    ],
)
def test_reasoning_is_told_from_content(name: str, inside: bool, text: str, reasoning: str, content: str) -> None:
    for parts in cuts(text):
        message = read(AnswerParser([(REASONING_FORMATS[name].reader(inside=inside), Source())]), parts)
        assert (message.reasoning, message.content) == (reasoning, content)


def test_calls_follow_reasoning_that_talks_of_calls() -> None:
    text = f"<think>{hermes_call('f', {})}?</think>\n\nNow:\n{hermes_call('f', {'n': 1})}"
    for parts in cuts(text):
        stages = [(REASONING_FORMATS["qwen3"].reader(inside=False), Source()), (CALL_FORMATS["hermes"].read, Source(TOOLS, trim=True))]
        message = read(AnswerParser(stages), parts)
        assert message.reasoning == f"{hermes_call('f', {})}?"
        assert message.content == "Now:"
        assert [call.arguments for call in message.calls] == ['{"n": 1}']


FRAGMENTS = sorted({
    *(marker for form in CALL_FORMATS.values() for marker in (*form.markers, *form.signs)),
    *(row[1] for row in GOOD), *(row[1] for row in BAD),
    '{"name": "f", "arguments": ', '{"n": 1}', "}", "{", "[", "]", '"', "\\", "\\u00e", ", ", ": ", "\n", " ", "f", "(", ")", "n=1",
    "tru", "1e", "é", "</",
    "<parameter=s>", "</parameter>", "</function>", "functions.f:0", "```json", ";", "\x00", "'",
})  # fmt: skip


@given(st.sampled_from(FAMILIES), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
@settings(max_examples=600)
def test_any_text_is_read_the_same_however_it_is_cut(family: str, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    whole = read(parser(family), [text])
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert read(parser(family), [text[i:j] for i, j in itertools.pairwise([0, *at, len(text)])]) == whole
    assert read(parser(family), list(text)) == whole
    if not whole.calls and family != "gpt-oss":
        assert whole.content == text
