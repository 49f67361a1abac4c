"""The routes under /v1/cache: pin and unpin prefixes, explain a prompt, look at the tree."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.engine.prompts import check_prompt
from radixrt.errors import RequestError
from radixrt.server.bodies import namespace, prompts, read_json, typed
from radixrt.server.openai import GONE, body_schema, json_response
from radixrt.server.service import Service
from radixrt.server.sse import while_connected
from radixrt.server.translate import check_model


class PrefixBody(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix: ``prompt`` (text or token ids), ``input_ids`` or ``messages``, and the namespace it is cached in."""

    model: str | None = None
    prompt: Any = None
    input_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    extra_key: str | None = None


class PinBody(PrefixBody, frozen=True, kw_only=True):
    """The body of ``/v1/cache/pin``; ``ttl`` in seconds counts from the last use, ``name`` replaces what it named before."""

    ttl: float | None = None
    name: str | None = None


class UnpinBody(msgspec.Struct, frozen=True, kw_only=True):
    pin_id: str


def cache_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """What may be done with the cache besides using it."""
    router = APIRouter(tags=["cache"])
    calls = service.engine.cache

    async def read(request: Request, kind: type[Any]) -> Any:
        raw = await read_json(request, service.config)
        service.require_ready()
        return typed(raw, kind)

    async def tokens_of(body: PrefixBody, *, generation_prompt: bool) -> list[int]:
        check_model(body.model, service.model_names)
        given = [name for name in ("prompt", "input_ids", "messages") if getattr(body, name) is not None]
        if len(given) != 1:
            raise RequestError("Give one of prompt, input_ids and messages.", param="prompt", code="invalid_value")
        if body.messages is not None:
            options: dict[str, Any] = {"add_generation_prompt": generation_prompt}
            if body.chat_template_kwargs:
                options["template_kwargs"] = body.chat_template_kwargs
            tokens = await service.engine.encode_chat(body.messages, **options)
        elif body.input_ids is not None:
            tokens = body.input_ids
        else:
            asked = prompts(body.prompt, "prompt", service.engine.check_fits, service.config)
            if len(asked) != 1:
                raise RequestError("prompt must be one text or one list of token ids.", param="prompt", code="invalid_value")
            tokens = await service.engine.encode(asked[0]) if isinstance(asked[0], str) else asked[0]
        check_prompt(tokens, service.engine.info, given[0])
        return tokens

    @router.post("/v1/cache/pin", openapi_extra=body_schema(PinBody, components), summary="Keep a prefix cached for a while")
    async def pin(request: Request) -> Response:
        body: PinBody = await read(request, PinBody)
        space = namespace(body.cache_salt, body.extra_key)
        tokens = await tokens_of(body, generation_prompt=False)
        work = calls.pin(tokens, ttl=body.ttl, name=body.name, namespace=space)
        receipt = await while_connected(request.receive, work)
        return Response(status_code=GONE) if receipt is None else json_response(msgspec.to_builtins(receipt))

    @router.post("/v1/cache/unpin", openapi_extra=body_schema(UnpinBody, components), summary="End a pin")
    async def unpin(request: Request) -> Response:
        body: UnpinBody = await read(request, UnpinBody)
        return json_response({"unpinned": await calls.unpin(body.pin_id)})

    @router.post("/v1/cache/explain", openapi_extra=body_schema(PrefixBody, components), summary="Say how much of a prompt is cached")
    async def explain(request: Request) -> Response:
        body: PrefixBody = await read(request, PrefixBody)
        space = namespace(body.cache_salt, body.extra_key)
        return json_response(await calls.explain(await tokens_of(body, generation_prompt=True), namespace=space))

    @router.get("/v1/cache/tree", summary="The upper levels of the radix tree")
    async def tree(request: Request) -> Response:
        service.require_ready()
        depth, min_tokens, limit = (number(request, name, default) for name, default in (("depth", 3), ("min_tokens", 1), ("limit", 100)))
        view = await calls.tree(depth=depth, min_tokens=min_tokens, limit=limit)
        if service.config.no_cache_text:
            for node in view["nodes"]:
                del node["text"], node["first_tokens"]
        return json_response(view)

    return router


def number(request: Request, name: str, default: int) -> int:
    """Read a whole number of the query.  Raises RequestError."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise RequestError(f"{name} must be a whole number.", param=name, code="invalid_type")
    return int(value)
