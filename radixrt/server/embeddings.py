"""``/v1/embeddings``: the mean of a text's hidden states, of length 1, computed by the model that is served.

A language model was not trained for it, so texts are told apart less well than by a model for embeddings.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.engine.stream import RequestStream
from radixrt.errors import RequestError
from radixrt.server import aside, bodies
from radixrt.server.openai import body_schema, gone, json_response
from radixrt.server.problems import Refusal
from radixrt.server.service import Service, new_id, numbered
from radixrt.server.sse import Outputs, while_connected
from radixrt.server.translate import check_model
from radixrt.types import SamplingParams

_UNSUPPORTED = {"dimensions": "shortened embeddings"}
_FORMATS = ("float", "base64")
# Numbers of a vector that take as long to write as a position with logprobs.
NUMBERS_A_POSITION = 64


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/v1/embeddings``."""

    model: str | None = None
    input: Any
    encoding_format: str | None = None
    user: str | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None


def unit(vector: list[float]) -> np.ndarray:
    """Return a vector of length 1 [H] float32; zero stays zero."""
    values = np.asarray(vector, dtype=np.float64)
    length = float(np.linalg.norm(values))
    return (values / length if length else values).astype(np.float32)


def spelled(vector: np.ndarray, encoding_format: str) -> list[float] | str:
    """Spell a vector as numbers, or as little-endian float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if encoding_format == "base64" else vector.tolist()


def embeddings_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["openai"])

    @router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingsBody, components), summary="Embed texts")
    async def embeddings(request: Request) -> Response:
        raw = await bodies.read_json(request, service.config)
        service.require_ready()
        bodies.refuse(raw, _UNSUPPORTED)
        body = bodies.typed(raw, EmbeddingsBody)
        check_model(body.model, service.model_names)
        encoding_format = body.encoding_format or "float"
        if encoding_format not in _FORMATS:
            raise RequestError("encoding_format must be 'float' or 'base64'.", param="encoding_format", code="invalid_value")
        asked = bodies.prompts(body.input, "input", service.engine.check_fits, service.config)
        space = bodies.namespace(body.cache_salt, body.extra_key)
        rids = numbered(bodies.check_rid(body.rid) or new_id("embd"), len(asked))

        async def answer() -> Response:
            streams: list[RequestStream] = []
            outputs = Outputs(streams)
            async with outputs:
                for prompt, rid in zip(asked, rids, strict=True):
                    stream = await service.engine.submit(
                        prompt, SamplingParams(), rid=rid, namespace=space, priority=body.priority or 0, embed=True, prompt_param="input"
                    )
                    streams.append(stream)
                answers = await outputs.collect()
            found = [answer.embedding for (answer,) in answers]
            vectors = [unit(vector) for vector in found if vector is not None]
            if len(vectors) < len(found):
                raise Refusal(400, "The request was aborted.", code="aborted")
            # Each prompt goes with a token that is not computed.
            num_tokens = sum(stream.num_prompt - 1 for stream in streams)
            usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}

            def response() -> Response:
                data = [
                    {"object": "embedding", "index": index, "embedding": spelled(vector, encoding_format)}
                    for index, vector in enumerate(vectors)
                ]
                return json_response({"object": "list", "data": data, "model": service.model_name, "usage": usage})

            return await aside.build(response, sum(map(len, vectors)) // NUMBERS_A_POSITION)

        return await while_connected(request.receive, answer()) or gone()

    return router
