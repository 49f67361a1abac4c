"""Tokens without a model: ``/tokenize``, ``/detokenize`` and ``/tokenizer_info``, with SGLang's and vLLM's fields side by side."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.engine.prompts import check_prompt
from radixrt.errors import RequestError
from radixrt.server.bodies import read_json, typed
from radixrt.server.openai import body_schema, json_response
from radixrt.server.service import Service
from radixrt.server.translate import check_model


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/tokenize``: ``prompt`` (one text or a list), or ``messages`` to put through the chat template."""

    model: str | None = None
    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/detokenize``: the ids of one text, or of several."""

    model: str | None = None
    tokens: list[int | list[int]]
    skip_special_tokens: bool = True


def token_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """What clients ask to count and to cut texts as the server does."""
    router = APIRouter(tags=["tokens"])
    engine = service.engine

    async def read(request: Request, kind: type[Any]) -> Any:
        raw = await read_json(request, service.config)
        service.require_ready()
        body = typed(raw, kind)
        check_model(body.model, service.model_names)
        return body

    @router.post("/v1/tokenize", include_in_schema=False)
    @router.post("/tokenize", openapi_extra=body_schema(TokenizeBody, components), summary="Text or messages to token ids")
    async def tokenize(request: Request) -> Response:
        body: TokenizeBody = await read(request, TokenizeBody)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("Give one of prompt and messages.", param="prompt", code="invalid_value")
        if body.messages is not None:
            options = {"add_generation_prompt": body.add_generation_prompt, "continue_final_message": body.continue_final_message}
            found = [await engine.encode_chat(body.messages, **options)]
        else:
            texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
            if len(texts) > (most := service.config.max_prompts):
                raise RequestError(f"prompt takes at most {most} texts, got {len(texts)}.", param="prompt", code="invalid_value")
            found = [await engine.encode(text, add_special_tokens=body.add_special_tokens) for text in texts]
        one = not isinstance(body.prompt, list)
        answer: dict[str, Any] = {
            "tokens": found[0] if one else found, "count": len(found[0]) if one else [len(tokens) for tokens in found],
            "max_model_len": engine.max_tokens,
        }
        if body.return_token_strs:
            strings = [[engine.tokenizer.token_text(token) for token in tokens] for tokens in found]
            answer["token_strs"] = strings[0] if one else strings
        return json_response(answer)

    @router.post("/v1/detokenize", include_in_schema=False)
    @router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody, components), summary="Token ids to text")
    async def detokenize(request: Request) -> Response:
        body: DetokenizeBody = await read(request, DetokenizeBody)
        lists = [item for item in body.tokens if isinstance(item, list)]
        ids = [item for item in body.tokens if isinstance(item, int)]
        if lists and ids:
            raise RequestError("tokens must hold only ids or only lists of ids.", param="tokens", code="invalid_type")
        if len(lists) > (most := service.config.max_prompts):
            raise RequestError(f"tokens takes at most {most} lists, got {len(lists)}.", param="tokens", code="invalid_value")
        texts = []
        for tokens in lists or [ids]:
            if tokens:
                check_prompt(tokens, engine.info, "tokens")
            texts.append(await engine.decode(tokens, skip_special_tokens=body.skip_special_tokens))
        text = texts if lists else texts[0]
        return json_response({"text": text, "prompt": text})

    @router.get("/tokenizer_info", summary="Describe the tokenizer")
    async def tokenizer_info() -> Response:
        service.require_known()
        tokenizer = engine.tokenizer
        return json_response(
            {
                "tokenizer_class": type(tokenizer).__name__, "vocab_size": tokenizer.vocab_size, "bos_token": tokenizer.bos_token,
                "eos_token": tokenizer.eos_token, "eos_token_ids": list(tokenizer.eos_token_ids), "pad_token": None,
                "chat_template": tokenizer.chat_template, "model_max_length": engine.info.context_length,
            }
        )

    return router
