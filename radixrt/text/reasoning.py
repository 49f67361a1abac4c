"""Reasoning that models write before they answer, each family between markers of its own."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from radixrt.text.answer_parser import Reader
from radixrt.text.source import Read, Source


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How reasoning is written.  ``inside``: answers begin inside it even where the prompt does not say so."""

    begin: str
    end: str
    inside: bool = False

    def reader(self, *, inside: bool) -> Reader:
        """Read an answer that begins inside or outside its reasoning."""
        return functools.partial(_read, self, inside)

    def starts_inside(self, prompt_end: str) -> bool:
        """Whether an answer to a prompt that ends so begins inside; a prompt that has closed the reasoning never does."""
        prompt_end = prompt_end.rstrip()
        return prompt_end.endswith(self.begin) or (self.inside and not prompt_end.endswith(self.end))


THINK = ReasoningFormat("<think>", "</think>")
THINK_INSIDE = ReasoningFormat("<think>", "</think>", inside=True)
# By SGLang's names where it has one.
REASONING_FORMATS = {
    "think": THINK,
    "qwen3": THINK,
    "glm45": THINK,
    "interns1": THINK,
    "deepseek-v3": THINK,
    "deepseek-r1": THINK_INSIDE,
    "qwen3-thinking": THINK_INSIDE,
    "kimi_k2": THINK_INSIDE,
    "minimax": THINK_INSIDE,
    "step3": THINK_INSIDE,
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "seed-oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "cohere": ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>"),
}


def _read(form: ReasoningFormat, inside: bool, source: Source) -> Read[None]:
    source.mark()
    yield from source.space()
    if (yield from source.take(form.begin)):
        inside = True
    if not inside:
        source.give_up()
        yield from source.rest()
        return
    source.forget()
    yield from source.space()
    held = ""

    def emit(text: str) -> None:
        # White space before the end marker is no part of it.
        nonlocal held
        text = held + text
        shown = text.rstrip()
        held = text[len(shown) :]
        source.reasoning(shown)

    if (yield from source.until(form.end, emit=emit)) is None:
        source.reasoning(held)
        return
    yield from source.space()
    yield from source.rest()
