"""Ollama's routes under ``/api``: NDJSON, not server-sent events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

import radixrt
from radixrt.server.bodies import read_json, typed
from radixrt.server.chat import ChatTurn, open_chat
from radixrt.server.choices import Choice
from radixrt.server.dialects.ollama_input import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    chat_body,
    generate_body,
    served_name,
)
from radixrt.server.dialects.ollama_output import FRAMING, OllamaWriter
from radixrt.server.dialects.whole import pieces_of
from radixrt.server.openai import body_schema, gone, json_response
from radixrt.server.service import Service, new_id
from radixrt.server.sse import EventStream, Outputs, while_connected
from radixrt.server.translate import check_model, completion_plan


def ollama_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """Chat, generate, and what there is of models."""
    router = APIRouter(tags=["ollama"])
    engine = service.engine

    async def respond(request: Request, body: OllamaBody, outputs: Outputs, choice: Choice, *, chat: bool) -> Response:
        writer = OllamaWriter(body.model, choice.push, chat=chat)
        if body.stream is not False:
            return EventStream(outputs, writer, FRAMING)

        async def answer() -> Response:
            async with outputs:
                ((found,),) = await outputs.collect()
            return json_response(writer.whole(pieces_of(choice.collect(found)), found.usage, found.report))

        return await while_connected(request.receive, answer()) or gone()

    @router.post("/api/chat", openapi_extra=body_schema(OllamaChatBody, components), summary="Answer a conversation")
    async def chat(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_ready()
        body, chat = chat_body(raw)
        if not body.messages:
            check_model(chat["model"], service.model_names)
            return json_response(_loaded(body.model, {"message": {"role": "assistant", "content": ""}}))
        turn: ChatTurn = await open_chat(service, chat)
        return await respond(request, body, turn.outputs, turn.choices[0], chat=True)

    @router.post("/api/generate", openapi_extra=body_schema(OllamaGenerateBody, components), summary="Complete a prompt")
    async def generate(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_ready()
        body, chat = generate_body(raw)
        if not body.prompt:
            check_model(chat["model"], service.model_names)
            return json_response(_loaded(body.model, {"response": ""}))
        if not body.raw:
            turn = await open_chat(service, chat)
            return await respond(request, body, turn.outputs, turn.choices[0], chat=False)
        completion, plan = completion_plan(chat, service.vocab_size, service.config)
        check_model(completion.model, service.model_names)
        outputs = await service.submit([body.prompt], [plan], [new_id("cmpl")], param="prompt")
        return await respond(request, body, outputs, Choice(), chat=False)

    def details() -> dict[str, Any]:
        kind = engine.info.dtype if service.known else ""
        return {
            "parent_model": "", "format": "gguf", "family": family(), "families": [family()], "parameter_size": "",
            "quantization_level": kind,
        }

    def family() -> str:
        return engine.info.architecture if service.known else ""

    def card(name: str) -> dict[str, Any]:
        since = datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z")
        return {"name": name, "model": name, "modified_at": since, "size": 0, "digest": "", "details": details()}

    @router.get("/api/tags", summary="List the models")
    async def tags() -> Response:
        return json_response({"models": [card(name) for name in service.served_names]})

    @router.get("/api/ps", summary="List the models that are loaded")
    async def ps() -> Response:
        models = [card(name) | {"expires_at": "9999-12-31T00:00:00Z", "size_vram": 0} for name in service.served_names]
        return json_response({"models": models if service.known else []})

    @router.post("/api/show", openapi_extra=body_schema(OllamaBody, components), summary="Describe a model")
    async def show(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_known()
        raw.setdefault("model", raw.get("name"))
        body = typed(raw, OllamaBody)
        check_model(served_name(body.model), service.model_names)
        info = engine.info
        return json_response(
            {
                "modelfile": "", "parameters": "", "template": engine.tokenizer.chat_template or "", "details": details(),
                "model_info": {
                    "general.architecture": info.architecture, f"{info.architecture}.context_length": info.context_length,
                    "tokenizer.vocab_size": info.vocab_size,
                },
                "capabilities": ["completion", "tools"], "modified_at": card("")["modified_at"],
            }
        )

    @router.get("/api/version", summary="The server's version")
    async def version() -> Response:
        return json_response({"version": radixrt.__version__})

    return router


def _loaded(model: str, said: dict[str, Any]) -> dict[str, Any]:
    """The answer to a body without a prompt, by which Ollama's clients load a model."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": now, **said, "done": True, "done_reason": "load"}
