"""``/v1/responses``: answers as lists of items, and conversations that the server remembers."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.server.bodies import read_json
from radixrt.server.chat import open_chat
from radixrt.server.dialects.response_store import ResponseStore, StoredResponse
from radixrt.server.dialects.responses_input import ResponsesBody, chat_body, input_messages, read_body
from radixrt.server.dialects.responses_output import FRAMING, ResponseBuilder, ResponsesWriter, history_messages
from radixrt.server.dialects.whole import respond
from radixrt.server.openai import body_schema, gone, json_response
from radixrt.server.problems import Refusal, excerpt
from radixrt.server.service import Service, new_id
from radixrt.server.sse import EventStream, while_connected


def responses_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """The routes of responses, and the store they share."""
    router = APIRouter(tags=["openai"])
    store = ResponseStore()

    def stored(id: str) -> StoredResponse:
        found = store.get(id)
        if found is None:
            raise Refusal(404, f"There is no response {excerpt(id)!r} (any more).", code="response_not_found", param="response_id")
        return found

    @router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody, components), summary="Create a response")
    async def create(request: Request) -> Response:
        raw = await read_json(request, service.config)
        service.require_ready()
        body = read_body(raw)
        history = [] if body.previous_response_id is None else list(stored(body.previous_response_id).messages)
        said = [*history, *input_messages(body.input)]
        chat = chat_body(raw, body, history)
        created = int(time.time())
        builder = ResponseBuilder(new_id("resp").replace("-", "_"), body, service.model_name, created)

        def keep() -> None:
            if body.store is not False:
                store.put(builder.object(), [*said, *history_messages(builder.output)])

        if body.stream:
            turn = await open_chat(service, chat)
            return EventStream(turn.outputs, ResponsesWriter(builder, turn.choices[0].push, keep), FRAMING)

        async def answer() -> Response:
            response = await respond(await open_chat(service, chat), builder)
            keep()
            return response

        return await while_connected(request.receive, answer()) or gone()

    @router.get("/v1/responses/{response_id}", summary="Get a response that was stored")
    async def get(response_id: str) -> Response:
        return json_response(stored(response_id).object)

    @router.get("/v1/responses/{response_id}/input_items", summary="Get the messages that led to a response")
    async def input_items(response_id: str) -> Response:
        messages = stored(response_id).messages
        return json_response({"object": "list", "data": [{"type": "message", **message} for message in messages], "has_more": False})

    @router.delete("/v1/responses/{response_id}", summary="Forget a response")
    async def delete(response_id: str) -> Response:
        stored(response_id)
        store.drop(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post("/v1/responses/{response_id}/cancel", summary="Refused: responses end with their connection")
    async def cancel(response_id: str) -> Response:
        stored(response_id)
        raise Refusal(400, "Only responses made in the background can be cancelled; close the connection instead.", code="not_background")

    return router
