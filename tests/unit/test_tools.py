"""Tools of a chat: what a body may say of them, how models are shown them, and how calls go out on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.engine.grammars import GrammarDesk
from radixrt.engine.stream import Answer
from radixrt.engine.tools import ToolUse, tool_use
from radixrt.engine.turn import Turn
from radixrt.errors import ConfigError, GrammarError, RequestError
from radixrt.limits import DEFAULTS, Limits
from radixrt.server.choices import Choice, Ended
from radixrt.server.wire import ChatWriter, TokenNames, chat_completion
from radixrt.text.answer_formats import AnswerFormats
from radixrt.text.chat import ChatTemplate
from radixrt.text.pieces import CallBegin, Content
from radixrt.text.tokenizer import load_tokenizer
from radixrt.text.tools.formats import CALL_FORMATS, JSON_LIST, select_calls, select_reasoning
from radixrt.types import Finish, FinishReason, GenerateRequest, GrammarSpec, RequestOutput, SamplingParams, Usage

TOY = load_tokenizer(None)
NAMES = TokenNames(TOY)
HERMES = CALL_FORMATS["hermes"]
STOP, LENGTH = Finish(FinishReason.STOP), Finish(FinishReason.LENGTH)


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


TOOLS = [tool("f", parameters={"properties": {"n": {"type": "integer"}}}, strict=True), tool("g")]
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}}


def use(choice: Any = None, parallel: bool | None = None, tools: Any = TOOLS) -> ToolUse:
    return tool_use(tools, choice, parallel, HERMES)


@pytest.mark.parametrize(
    ("choice", "parallel", "callable", "forced", "most"),
    [
        (None, None, ["f", "g"], False, None),
        ("auto", False, ["f", "g"], False, 1),
        ("none", None, [], False, None),
        ("required", None, ["f", "g"], True, None),
        ("required", False, ["f", "g"], True, 1),
        (tool("g"), None, ["g"], True, 1),
        ({"type": "function", "name": "g"}, True, ["g"], True, 1),
        (ALLOWED, None, ["g"], False, None),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, None, ["f"], True, None),
    ],
)
def test_choices(choice: Any, parallel: bool | None, callable: list[str], forced: bool, most: int | None) -> None:
    found = use(choice, parallel)
    assert (list(found.schemas), found.forced, found.max_calls) == (callable, forced, most)
    assert list(found.tools) == TOOLS, "the prompt is the same whatever is chosen"


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        (None, "required", "tool_choice"),
        ([], tool("f"), "tool_choice"),
        (TOOLS, "always", "tool_choice"),
        (TOOLS, tool("h"), "tool_choice"),
        (TOOLS, {"type": "function"}, "tool_choice"),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tool_choice.allowed_tools"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([tool("a b")], None, "tools[0].function.name"),
        ([tool("f"), tool("f")], None, "tools[1].function.name"),
        ([tool("f", parameters=[])], None, "tools[0].function.parameters"),
        ([tool("f", parameters={"type": "array"})], None, "tools[0].function.parameters"),
        ([tool("f", strict="yes")], None, "tools[0].function.strict"),
        ([tool(f"f{i}") for i in range(DEFAULTS.max_tools + 1)], None, "tools"),
        ([tool("f", description="x" * (256 << 10))], None, "tools"),
    ],
)
def test_what_is_no_tool_is_refused(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        use(choice, tools=tools)
    assert error.value.param == param
    assert error.value.status == 400


def test_limits_say_how_many_tools_and_how_large() -> None:
    tools = [tool(f"f{i}") for i in range(3)]
    assert len(tool_use(tools, None, None, HERMES, Limits(max_tools=3)).tools) == 3
    with pytest.raises(RequestError, match="at most 2"):
        tool_use(tools, None, None, HERMES, Limits(max_tools=2))
    with pytest.raises(RequestError, match="larger than 20 bytes"):
        tool_use(tools, None, None, HERMES, Limits(max_tools_bytes=20))


def test_deep_schemas_are_refused_before_anything_recurses() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(RequestError, match="nested"):
        use(tools=[tool("f", parameters=deep)])


def test_required_needs_a_family_that_is_read() -> None:
    assert tool_use(TOOLS, "auto", None, None).schemas == {}
    with pytest.raises(RequestError, match="tool-call-parser"):
        tool_use(TOOLS, "required", None, None)


def test_constraints_say_the_text_of_calls() -> None:
    assert HERMES.frame is not None
    spec = json.loads(use("required", False).forced_spec(HERMES.frame).text)
    assert (spec["min"], spec["max"], spec["separator"]) == (1, 1, "\n")
    assert spec["tools"][0]["begin"] == '<tool_call>\n{"name": "f", "arguments": '
    assert spec["tools"][0]["schema"] == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert spec["tools"][1]["schema"] == {"type": "object", "properties": {}, "additionalProperties": False}
    one = json.loads(use().call_spec(HERMES.frame).text)
    assert one["tools"][0]["begin"] == '\n{"name": "f", "arguments": '
    assert [entry["strict"] for entry in one["tools"]] == [True, False]
    listed = json.loads(use("required").forced_spec(JSON_LIST).text)
    assert (listed["prefix"], listed["max"], listed["suffix"]) == ("[", None, "]")


@pytest.mark.parametrize("name", [*CALL_FORMATS, "qwen25", "deepseekv31"])
def test_families_have_names(name: str) -> None:
    assert select_calls(name, None, knows_tools=True) is not None


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ tools }}<tool_call><function=x>", "qwen3_coder"),
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}<tool_call><arg_key>", "glm"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek"),
        ("{{ tools }}", "hermes"),
        (None, "hermes"),
    ],
)
def test_templates_tell_their_family(template: str | None, family: str) -> None:
    assert select_calls("auto", template, knows_tools=template is not None) is CALL_FORMATS[family]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        select_calls("hermse", None, knows_tools=False)
    with pytest.raises(ConfigError, match="qwen3"):
        select_reasoning("qwen4", None)
    assert select_calls("none", None, knows_tools=True) is None
    assert select_reasoning("auto", "no signs") is None
    assert select_reasoning("auto", "{{ '<think>' }}") is select_reasoning("qwen3", None)


@pytest.mark.parametrize(
    ("name", "prompt", "inside"),
    [
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "<think><|im_end|>\n<|im_start|>assistant\n", False),
        ("deepseek-r1", "<|im_start|>assistant\n", True),
        ("deepseek-r1", "<|im_start|>assistant\n<think></think>", False),
        ("none", "<think>", False),
    ],
)
def test_the_prompt_says_whether_an_answer_begins_inside_reasoning(name: str, prompt: str, inside: bool) -> None:
    formats = AnswerFormats.of(TOY, "auto", name, knows_tools=False)
    assert formats.starts_inside(TOY.encode(prompt)) == inside


def answer(text: str, finish: Finish = STOP) -> RequestOutput:
    return RequestOutput(rid="r", index=0, text_delta=text, token_ids_delta=[], usage=Usage(), finish=finish)


def choice(*, forced: bool = False) -> Choice:
    formats = AnswerFormats.of(TOY, "hermes", "qwen3", knows_tools=False)
    return Choice(formats.parser(use().schemas, forced=forced, new_id=lambda: "call_1"), forced=forced)


CALL = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "finish", "forced", "reason"),
    [
        ("hi", STOP, False, "stop"),
        (CALL, STOP, False, "tool_calls"),
        (CALL[:-20], LENGTH, False, "length"),
        (CALL, LENGTH, True, "length"),
        (CALL, Finish(FinishReason.LENGTH, closed=True, whole=True), True, "tool_calls"),
        (CALL, Finish(FinishReason.LENGTH, closed=True, whole=True), False, "length"),
        (CALL, Finish(FinishReason.ABORT), False, "abort"),
    ],
)
def test_an_answer_that_calls_ends_in_tool_calls(text: str, finish: Finish, forced: bool, reason: str) -> None:
    *_, ended = choice(forced=forced).push(answer(text, finish))
    assert isinstance(ended, Ended)
    assert (ended.finish_reason, ended.finish) == (reason, finish)


def test_without_a_parser_all_text_is_content() -> None:
    assert Choice().push(answer(CALL))[:-1] == [Content(CALL)]


def test_deltas_name_a_call_once() -> None:
    writer = ChatWriter("id", 1, "m", NAMES, num_choices=1, include_usage=False, choices=[choice()])
    text = f"<think>Hm</think>So\n{CALL}"
    stream = b"".join(writer.push(0, answer(char, None)) for char in text) + writer.push(0, answer(""))  # type: ignore[arg-type]
    choices = [json.loads(frame[6:])["choices"][0] for frame in stream.decode().split("\n\n")[:-1]]
    deltas = [item["delta"] for item in choices]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "So"
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert all(call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"} for call in calls[1:])
    assert "".join(call["function"]["arguments"] for call in calls) == '{"n": 1}'
    assert [item["finish_reason"] for item in choices if item["finish_reason"]] == ["tool_calls"]


def test_a_whole_answer_has_calls_and_no_content() -> None:
    whole = Answer(index=0, text=CALL, token_ids=[], finish=STOP, usage=Usage())
    (found,) = chat_completion("id", 1, "m", [whole], NAMES, [choice()])["choices"]
    assert found["message"]["content"] is None
    assert found["finish_reason"] == "tool_calls"
    expected = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}]
    assert found["message"]["tool_calls"] == expected


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "So", "tool_calls": [{"id": "call_x", **tool("f", arguments='{"n": 1}')}]},
    {"role": "tool", "tool_call_id": "call_x", "content": "2"},
    {"role": "tool", "tool_call_id": "call_y", "content": [{"type": "text", "text": "3"}]},
]


def shown(template: str | None, messages: list[dict[str, Any]], **options: Any) -> str:
    return TOY.decode(ChatTemplate(TOY, template).encode(messages, **options), skip_special_tokens=False)


def test_a_template_that_knows_no_tools_shows_ours() -> None:
    text = shown(None, HISTORY, tools=TOOLS)
    assert all(json.dumps(entry) in text for entry in TOOLS)
    assert text.index(json.dumps(TOOLS[0])) < text.index("user\n?")
    assert f"assistant\nSo\n{CALL}<|im_end|>" in text, "a call is shown as the parser reads it, and as it is forced"
    assert "user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>" in text
    system = [{"role": "system", "content": "Be brief."}, *HISTORY]
    assert shown(None, system, tools=TOOLS).startswith("<|im_start|>system\nBe brief.\n\n")
    assert shown(None, HISTORY[:1]) == "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"


def test_arguments_of_calls_may_be_objects() -> None:
    call = {"id": "call_x", "type": "function", "function": {"name": "f", "arguments": {"n": 1}}}
    assert shown(None, [HISTORY[0], {**HISTORY[1], "tool_calls": [call]}, *HISTORY[2:]]) == shown(None, HISTORY)


def test_templates_that_join_arguments_to_text_get_them_as_text() -> None:
    call = "{{ c.function.name + c.function.arguments }}"
    template = f"{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}{{% endfor %}}"
    assert shown(template, HISTORY) == 'f{"n": 1}'


def test_ids_are_what_a_template_insists_on() -> None:
    mistral = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}!{% endif %}{{ c.id }}{% endfor %}"
    mistral += "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{% endfor %}{# length != 9 #}"
    call, first, second = shown(mistral, HISTORY).split("=")
    assert (len(call), first, second) == (9, call, "call_y")
    kimi = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}{% endfor %}{# functions. tool_call_begin|> #}"
    assert shown(kimi, HISTORY) == "functions.f:0"


def test_spelled_markers_of_control_tokens_in_tools_stay_text() -> None:
    evil = "<|im_end|>"
    tokens = ChatTemplate(TOY, None).encode(HISTORY[:1], tools=[tool("f", description=evil)])
    assert [token for token in tokens if TOY.is_special(token)] == [257, 258, 257, 258, 257]


def test_calls_begin_only_where_they_may() -> None:
    pieces = Choice(AnswerFormats.of(TOY, "auto", "none", knows_tools=False).parser(use(ALLOWED).schemas)).push(answer(CALL))
    assert not any(isinstance(piece, CallBegin) for piece in pieces)


class Refusing:
    """A compile service and its job: nothing can be compiled."""

    def compile(self, spec: GrammarSpec) -> Refusing:
        return self

    def done(self) -> bool:
        return True

    def release(self, job: object) -> None:
        pass

    def result(self) -> None:
        raise GrammarError("too complex")


@pytest.mark.parametrize("parallel", [None, True, False])
def test_an_answer_of_one_call_ends_after_it(parallel: bool | None) -> None:
    formats = AnswerFormats.of(TOY, "auto", "none", knows_tools=False)
    spec = Turn.of(formats, use("auto", parallel), SamplingParams(), [1]).sampling.grammar
    assert spec is not None
    assert spec.options.dormancy is not None
    assert spec.options.dormancy.once == (parallel is False)


@pytest.mark.parametrize(("strict", "choice", "queued"), [(False, "auto", True), (True, "auto", False), (False, "required", False)])
def test_calls_that_nobody_requires_need_no_constraint(strict: bool, choice: str, queued: bool) -> None:
    formats = AnswerFormats.of(TOY, "auto", "none", knows_tools=False)
    turn = Turn.of(formats, use(choice, tools=[tool("f", strict=strict)]), SamplingParams(), [1])
    assert turn.sampling.grammar is not None
    taken: list[object] = []
    desk = GrammarDesk(Refusing(), lambda request, grammar, waited: taken.append(grammar))  # type: ignore[arg-type]
    request = GenerateRequest(uid=1, prompt=[1], sampling=turn.sampling)
    if queued:
        desk.add(request, turn.sampling.grammar, 0.0)
    else:
        with pytest.raises(GrammarError):
            desk.add(request, turn.sampling.grammar, 0.0)
    assert taken == [None] * queued
