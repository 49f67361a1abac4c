"""One turn of a chat, from the body to its open streams, before any dialect gives it a form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from radixrt.engine.tools import ToolUse
from radixrt.engine.turn import Turn, read_tools
from radixrt.server.choices import Choice, WholeChoice
from radixrt.server.service import Service, new_id
from radixrt.server.sse import Outputs
from radixrt.server.translate import ChatBody, Plan, chat_options, chat_plan, check_model


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
    asked = await _read(service, raw)
    turn = Turn.of(
        service.engine.formats, asked.use, asked.plan.sampling, asked.prompt, separate_reasoning=asked.body.separate_reasoning is not False
    )
    plan = replace(asked.plan, sampling=turn.sampling)
    id = plan.rid or new_id(id_prefix)
    outputs = await service.submit([asked.prompt], [plan], [id], param="messages")
    choices = [Choice(turn.parser(), forced=turn.use.forced) for _ in range(plan.sampling.n)]
    return ChatTurn(id, asked.body, plan, outputs, choices)


async def _read(service: Service, raw: dict[str, Any]) -> _Asked:
    service.require_ready()
    body, plan = chat_plan(raw, service.vocab_size, service.config)
    check_model(body.model, service.model_names)
    options = chat_options(body)
    use = read_tools(service.engine.formats, body.tools, body.tool_choice, body.parallel_tool_calls, plan.sampling, service.config)
    return _Asked(body, plan, use, await service.engine.encode_chat(body.messages, tools=use.tools or None, **options))
