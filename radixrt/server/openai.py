"""The OpenAI routes: chat and text completions, streaming and not, and the list of models."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.server import aside, wire
from radixrt.server.bodies import prompts, read_json
from radixrt.server.chat import open_chat
from radixrt.server.problems import Refusal, excerpt
from radixrt.server.service import Service, new_id, numbered
from radixrt.server.sse import EventStream, Outputs, StreamWriter, while_connected
from radixrt.server.translate import ChatBody, CompletionBody, Plan, check_model, completion_plan

GONE = 499


def json_response(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


def gone() -> Response:
    """The answer to a client that has left; nobody reads it."""
    return Response(status_code=GONE)


def body_schema(kind: type, components: dict[str, Any]) -> dict[str, Any]:
    """Describe a body for /openapi.json."""
    (schema,), defined = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    components.update(defined)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openai_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(tags=["openai"])

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody, components), summary="Create a chat completion")
    async def chat(request: Request) -> Response:
        raw = await read_json(request, service.config)
        created = int(time.time())
        if raw.get("stream"):
            turn = await open_chat(service, raw)
            writer = wire.ChatWriter(
                turn.id, created, service.model_name, service.names, num_choices=turn.plan.sampling.n,
                include_usage=turn.plan.include_usage, continuous_usage=_prompt_lengths(turn.plan, turn.outputs), choices=turn.choices,
            )
            return EventStream(turn.outputs, writer)

        async def answer() -> Response:
            turn = await open_chat(service, raw)
            async with turn.outputs:
                (answers,) = await turn.outputs.collect()

            def response() -> Response:
                return json_response(wire.chat_completion(turn.id, created, service.model_name, answers, service.names, turn.choices))

            return await aside.build(response, aside.num_positions([answers]))

        return await while_connected(request.receive, answer()) or gone()

    @router.post("/v1/completions", openapi_extra=body_schema(CompletionBody, components), summary="Create a text completion")
    async def completions(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_ready()
        body, plan = completion_plan(raw, service.vocab_size, service.config)
        check_model(body.model, service.model_names)
        asked = prompts(body.prompt, "prompt", service.engine.check_fits, service.config)
        created = int(time.time())
        id = plan.rid or new_id("cmpl")

        async def open_streams() -> Outputs:
            return await service.submit(asked, [plan] * len(asked), numbered(id, len(asked)), param="prompt")

        def echoes() -> list[str] | None:
            if not body.echo:
                return None
            decode = service.engine.tokenizer.decode
            return [prompt if isinstance(prompt, str) else decode(prompt, skip_special_tokens=False) for prompt in asked]

        if plan.stream:
            outputs = await open_streams()
            return EventStream(outputs, _completion_writer(service, id, created, plan, outputs, echoes()))

        async def answer() -> Response:
            async with await open_streams() as outputs:
                answers = await outputs.collect()

            def response() -> Response:
                return json_response(wire.text_completion(id, created, service.model_name, answers, service.names, echoes()))

            return await aside.build(response, aside.num_positions(answers))

        return await while_connected(request.receive, answer()) or gone()

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": service.created, "owned_by": "radixrt",
            "root": service.model_names[-1], "parent": None, "max_model_len": service.engine.info.context_length if service.known else None,
        }

    @router.get("/v1/models", summary="List the models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [card(name) for name in service.served_names]})

    @router.get("/v1/models/{model_id:path}", summary="Describe a model")
    async def model(model_id: str) -> Response:
        if model_id not in service.model_names:
            raise Refusal(404, f"The model {excerpt(model_id)!r} does not exist.", code="model_not_found", param="model")
        return json_response(card(model_id))

    return router


def _prompt_lengths(plan: Plan, outputs: Outputs) -> list[int] | None:
    """Tokens of each prompt where every chunk is to say what was used so far."""
    return [stream.num_prompt for stream in outputs.streams] if plan.continuous_usage else None


def _completion_writer(
    service: Service, id: str, created: int, plan: Plan, outputs: Outputs, echoes: list[str] | None
) -> StreamWriter:
    return wire.CompletionWriter(
        id, created, service.model_name, service.names, num_choices=plan.sampling.n, include_usage=plan.include_usage,
        continuous_usage=_prompt_lengths(plan, outputs), echoes=echoes,
    )
