"""The table of families: how each writes its calls, by what its templates are known, and how a call is forced on it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from radixrt.errors import ConfigError
from radixrt.text.answer_parser import Reader
from radixrt.text.reasoning import REASONING_FORMATS, ReasoningFormat
from radixrt.text.tools.harmony import harmony
from radixrt.text.tools.json_calls import deepseek, hermes, json_list, kimi_k2, llama3, mistral
from radixrt.text.tools.pythonic import pythonic
from radixrt.text.tools.xml_calls import glm, qwen3_coder


@dataclass(frozen=True, slots=True)
class Frame:
    """How a call is written around the JSON of its arguments: ``begin`` and the name, ``middle``, the arguments, ``end``.

    ``prefix`` and ``suffix`` stand around all calls, ``separator`` between two.  A call begins where ``trigger`` is written.
    """

    begin: str
    middle: str
    end: str
    separator: str
    prefix: str = ""
    suffix: str = ""
    trigger: str = ""

    def head(self, name: str) -> str:
        """What comes before the arguments of a call."""
        return self.begin + json.dumps(name, ensure_ascii=False) + self.middle


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A family.  ``signs``: what its templates contain, any of them.  ``markers``: what may be control tokens, and must be seen.

    ``frame``: how its calls can be forced; where there is none they are forced as a list of JSON.  ``max_calls``: the most
    its templates can show.
    """

    read: Reader
    signs: tuple[str, ...]
    markers: tuple[str, ...] = ()
    frame: Frame | None = None
    max_calls: int | None = None


JSON_LIST = Frame('{"name": ', ', "arguments": ', "}", ", ", prefix="[", suffix="]")
_HERMES = Frame('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>", "\n", trigger="<tool_call>")
_KIMI_MARKERS = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip
_HARMONY_MARKERS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")

# In the order in which their signs are looked for.
CALL_FORMATS = {
    "gpt-oss": CallFormat(harmony, ("<|channel|>",), _HARMONY_MARKERS),
    "kimi_k2": CallFormat(kimi_k2, ("<|tool_calls_section_begin|>",), _KIMI_MARKERS),
    "deepseek": CallFormat(
        deepseek, ("<｜tool▁calls▁begin｜>",),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    ),
    "mistral": CallFormat(mistral, ("[TOOL_CALLS]",), ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "glm": CallFormat(glm, ("<arg_key>",), ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    "qwen3_coder": CallFormat(qwen3_coder, ("<function=",), ("<tool_call>", "</tool_call>")),
    "hermes": CallFormat(hermes, ("<tool_call>",), ("<tool_call>", "</tool_call>"), _HERMES),
    "pythonic": CallFormat(pythonic, ("<|python_start|>", "func_name1("), ("<|python_start|>", "<|python_end|>")),
    "llama3": CallFormat(
        llama3, ("<|python_tag|>", '"parameters": dictionary'), ("<|python_tag|>",),
        Frame('{"name": ', ', "parameters": ', "}", "; "), max_calls=1,
    ),
    "json": CallFormat(json_list, (), frame=JSON_LIST),
}  # fmt: skip
_CALL_NAMES = {
    "deepseekv3": "deepseek", "deepseekv31": "deepseek", "glm45": "glm", "glm47": "glm", "llama4": "pythonic", "qwen": "hermes",
    "qwen25": "hermes",
}  # fmt: skip
_REASONING_SIGNS = {"<think>": "think", "</think>": "think", "[THINK]": "mistral", "<seed:think>": "seed-oss", "◁think▷": "kimi"}


def select_calls(name: str, template: str | None, *, knows_tools: bool) -> CallFormat | None:
    """The family of a name; ``auto``: the one whose signs a template has, Hermes' for a template that knows no tools.

    None for ``none``.  Raises ConfigError for an unknown name.
    """
    if name == "none":
        return None
    if name == "auto":
        found = next((form for form in CALL_FORMATS.values() if any(sign in (template or "") for sign in form.signs)), None)
        return found if found and knows_tools else CALL_FORMATS["hermes"]
    name = _CALL_NAMES.get(name, name)
    if name not in CALL_FORMATS:
        known = sorted([*CALL_FORMATS, *_CALL_NAMES])
        raise ConfigError(f"--tool-call-parser {name!r} is not one of auto, none, {', '.join(known)}")
    return CALL_FORMATS[name]


def select_reasoning(name: str, template: str | None) -> ReasoningFormat | None:
    """The way of reasoning of a name; ``auto``: the one whose markers a template has.  None for ``none``, and for Harmony.

    Raises ConfigError for an unknown name.
    """
    if name == "auto":
        name = next((form for sign, form in _REASONING_SIGNS.items() if sign in (template or "")), "none")
    if name in ("none", "gpt-oss"):
        return None
    if name not in REASONING_FORMATS:
        raise ConfigError(f"--reasoning-parser {name!r} is not one of auto, none, gpt-oss, {', '.join(REASONING_FORMATS)}")
    return REASONING_FORMATS[name]


def are_special(markers: Iterable[str], special_tokens: Iterable[str]) -> bool:
    """Whether some of the markers are control tokens."""
    return not set(special_tokens).isdisjoint(markers)
