"""One turn of a chat, from the body to its open streams, before any dialect gives it a form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from radixrt.errors import RequestError
from radixrt.server.choices import Choice, WholeChoice
from radixrt.server.service import Service, new_id
from radixrt.server.sse import Outputs
from radixrt.server.tools import ToolUse, tool_use
from radixrt.server.translate import ChatBody, Plan, chat_options, chat_plan, check_model
from radixrt.text.answer_formats import AnswerFormats
from radixrt.types import Dormancy, GrammarSpec, SamplingParams


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A turn that is being answered.  ``choices``: the reader of each answer, by index."""

    id: str
    body: ChatBody
    plan: Plan
    outputs: Outputs
    choices: Sequence[Choice]

    async def collect(self) -> list[WholeChoice]:
        """Wait for the whole answers; raises the first failure among them."""
        (answers,) = await self.outputs.collect()
        return [choice.collect(answer) for choice, answer in zip(self.choices, answers, strict=True)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A body that was read, and its prompt."""

    body: ChatBody
    plan: Plan
    use: ToolUse
    prompt: list[int]


async def chat_prompt(service: Service, raw: dict[str, Any]) -> list[int]:
    """Return the prompt of the turn that a body asks for; raises RequestError."""
    return (await _read(service, raw)).prompt


async def open_chat(service: Service, raw: dict[str, Any], *, id_prefix: str = "chatcmpl") -> ChatTurn:
    """Start the turn that a body in the form of ``/v1/chat/completions`` asks for.

    Raises RequestError and what submitting raises; the caller closes ``outputs``, whatever happens.
    """
    formats = service.engine.formats
    asked = await _read(service, raw)
    body, use = asked.body, asked.use
    inside = formats.starts_inside(asked.prompt)
    separate = body.separate_reasoning is not False
    plan = replace(asked.plan, sampling=_sampling(asked.plan, use, formats, inside=inside, reasoning=separate))
    id = plan.rid or new_id(id_prefix)
    outputs = await service.submit([asked.prompt], [plan], [id], param="messages")

    def choice() -> Choice:
        parser = formats.parser(use.schemas, forced=use.forced, max_calls=use.max_calls, inside=inside, separate_reasoning=separate)
        return Choice(parser, forced=use.forced)

    return ChatTurn(id, body, plan, outputs, [choice() for _ in range(plan.sampling.n)])


async def _read(service: Service, raw: dict[str, Any]) -> _Asked:
    service.require_ready()
    body, plan = chat_plan(raw, service.vocab_size)
    check_model(body.model, service.model_names)
    options = chat_options(body)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, service.engine.formats.calls)
    if use.forced and plan.sampling.grammar is not None:
        message = "A required tool call and another constraint on the answer exclude each other."
        raise RequestError(message, param="tool_choice", code="invalid_value")
    return _Asked(body, plan, use, await service.engine.encode_chat(body.messages, tools=use.tools or None, **options))


def _sampling(plan: Plan, use: ToolUse, formats: AnswerFormats, *, inside: bool, reasoning: bool) -> SamplingParams:
    """The sampling parameters with the constraint of the tools, which sleeps while the model reasons."""
    sampling = plan.sampling
    sleep = formats.dormancy(inside=inside)
    spec: GrammarSpec | None = sampling.grammar
    frame = formats.frame()
    if use.forced:
        spec = use.forced_spec(frame)
    elif use.schemas and spec is None and frame.trigger:
        spec = use.call_spec(frame)
        sleep = msgspec.structs.replace(sleep or Dormancy(), trigger=frame.trigger)
    if spec is not None and sleep is not None:
        spec = msgspec.structs.replace(spec, options=msgspec.structs.replace(spec.options, dormancy=sleep))
    changes: dict[str, Any] = {"grammar": spec}
    if formats.reads_control_tokens(tools=bool(use.schemas), reasoning=reasoning):
        changes["skip_special_tokens"] = False
    return msgspec.structs.replace(sampling, **changes)
