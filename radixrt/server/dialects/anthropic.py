"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.errors import RequestError
from radixrt.server.bodies import namespace, read_json
from radixrt.server.chat import chat_prompt, open_chat
from radixrt.server.dialects.anthropic_input import MessagesBody, chat_body, pin, read_body
from radixrt.server.dialects.anthropic_output import FRAMING, MessageBuilder, MessageWriter
from radixrt.server.dialects.whole import respond
from radixrt.server.openai import body_schema, gone, json_response
from radixrt.server.service import Service, new_id
from radixrt.server.sse import EventStream, while_connected

logger = logging.getLogger(__name__)


def anthropic_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """Messages, and their length."""
    router = APIRouter(tags=["anthropic"])
    steady = not service.config.keep_volatile_prompt_lines

    async def keep(body: MessagesBody, chat: dict[str, Any]) -> None:
        """Pin what ``cache_control`` asks to keep; pins are a wish, so one that cannot be granted costs nothing."""
        wish = pin(body, chat)
        if wish is None:
            return
        ttl, prefix = wish
        try:
            prompt = await chat_prompt(service, prefix)
            name = hashlib.sha256(orjson.dumps(prefix["messages"][:2])).hexdigest()
            space = namespace(prefix.get("cache_salt"), prefix.get("extra_key"))
            await service.engine.cache.pin(prompt, ttl=min(ttl, service.engine.resolved.cache.max_pin_ttl), name=name, namespace=space)
        except RequestError as error:
            logger.info("a prefix was not pinned: %s", error.message)

    @router.post("/v1/messages", openapi_extra=body_schema(MessagesBody, components), summary="Create a message")
    async def messages(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_ready()
        body = read_body(raw)
        chat, rules = chat_body(raw, body, steady=steady)
        await keep(body, chat)
        thinking = (body.thinking or {}).get("type") in ("enabled", "adaptive")
        builder = MessageBuilder(
            new_id("msg").replace("-", "_"), body.model or service.model_name, with_thinking=thinking, rules=rules
        )
        if body.stream:
            turn = await open_chat(service, chat)
            return EventStream(turn.outputs, MessageWriter(builder, turn.choices[0].push), FRAMING)

        async def answer() -> Response:
            return await respond(await open_chat(service, chat), builder)

        return await while_connected(request.receive, answer()) or gone()

    @router.post("/v1/messages/count_tokens", openapi_extra=body_schema(MessagesBody, components), summary="Count a prompt's tokens")
    async def count_tokens(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_ready()
        body = read_body(raw, counts_only=True)
        chat, _ = chat_body(raw, body, steady=steady)
        prompt = await chat_prompt(service, chat)
        return json_response({"input_tokens": len(prompt)})

    return router
