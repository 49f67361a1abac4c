"""The routes of operators and routers: health, what is served, the cache, aborts, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

import radixrt
from radixrt.engine.stream import failure
from radixrt.errors import RadixrtError, RequestError
from radixrt.server.bodies import check_rid, read_json, typed
from radixrt.server.openai import body_schema, gone, json_response
from radixrt.server.problems import Refusal
from radixrt.server.service import Service, wait_until
from radixrt.server.sse import while_connected
from radixrt.types import KVEventsAddress, Namespace, PauseMode, SamplingParams

logger = logging.getLogger(__name__)

HEALTH_TIMEOUT = 20.0
MAX_FLUSH_WAIT = 60.0
HEALTH = Namespace(adapter="health")  # where nothing of anybody's is cached
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/abort_request``: one request by its exact id, or all."""

    rid: str | None = None
    abort_all: bool | None = None


class PauseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/pause_generation``: what becomes of requests that are open."""

    mode: PauseMode = "abort"


def kv_events_view(address: KVEventsAddress) -> dict[str, Any]:
    """Where KV events can be had, in the form that routers look for."""

    def port(endpoint: str | None) -> int | None:
        tail = (endpoint or "").rpartition(":")[2]
        return int(tail) if tail.isdigit() else None

    return {
        **msgspec.to_builtins(address), "dp_size": 1, "endpoint_port_base": port(address.endpoint),
        "replay_endpoint_port_base": port(address.replay_endpoint),
    }


def operations_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """Every route that generates nothing for its caller."""
    router = APIRouter(tags=["operations"])
    engine = service.engine

    def ready() -> Response:
        return Response(status_code=200 if engine.status == "ready" else 503)

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="200 while requests are taken, 503 otherwise; costs no queue slot")
    async def health() -> Response:
        return ready()

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", summary="The same as /health")
    async def readiness() -> Response:
        return ready()

    @router.get("/health/live", summary="200 unless the engine has been lost and is not coming back")
    async def live() -> Response:
        return Response(status_code=503 if engine.status == "stopped" else 200)

    @router.get("/health/ready", summary="The same as /health")
    async def health_ready() -> Response:
        return ready()

    @router.get("/health_generate", summary="200 when one token could be generated")
    async def health_generate(request: Request) -> Response:
        service.require_ready()

        async def generate() -> Response:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                async with await engine.submit([0], SamplingParams(max_new_tokens=1, temperature=0.0), namespace=HEALTH) as stream:
                    (answer,) = await stream.collect()
            error = failure(answer.finish)
            if error is not None:
                raise error
            return Response()

        try:
            return await while_connected(request.receive, generate()) or gone()
        except (TimeoutError, RadixrtError):
            logger.warning("health_generate failed", exc_info=True)
            return Response(status_code=503)

    @router.head("/", include_in_schema=False)
    @router.get("/", summary="A line for people who open the address")
    async def root() -> Response:
        return PlainTextResponse(f"radixrt {radixrt.__version__} serves {service.model_name}; the API is described at /docs\n")

    @router.get("/version", summary="The server's version")
    async def version() -> Response:
        return json_response({"version": radixrt.__version__})

    def model_info() -> dict[str, Any]:
        service.require_known()
        info = engine.info
        return {
            "model_path": info.model_path, "served_model_name": service.model_name,
            "tokenizer_path": engine.config.model.tokenizer_path or info.model_path, "is_generation": True,
            "architectures": [info.architecture], "vocab_size": info.vocab_size, "context_length": info.context_length,
            "max_total_num_tokens": info.capacity_tokens, "eos_token_ids": list(info.eos_token_ids), "dtype": info.dtype,
            "load_format": engine.config.model.load_format, "preferred_sampling_params": None, "weight_version": "default",
            "has_image_understanding": False, "has_audio_understanding": False,
        }

    @router.get("/model_info", summary="Describe the model")
    @router.get("/get_model_info", summary="The older name of /model_info")
    async def describe_model() -> Response:
        return json_response(model_info())

    @router.get("/server_info", summary="Configuration and a snapshot of the engine")
    @router.get("/get_server_info", summary="The older name of /server_info")
    async def server_info() -> Response:
        service.require_known()
        stats = engine.stats
        config = engine.resolved
        options: dict[str, Any] = {}
        for part in (config.model, config.cache, config.schedule):
            options |= dataclasses.asdict(part)
        info = engine.info
        options |= {
            "host": service.config.host, "port": service.config.port, "served_model_name": service.model_name,
            "context_length": info.context_length, "dtype": info.dtype, "attention_backend": info.attention_backend,
        }
        used = stats.capacity_tokens - stats.free_tokens - stats.cached_tokens
        state = {
            "num_running_reqs": stats.num_running, "num_waiting_reqs": stats.num_waiting, "kv_used_tokens": used,
            "kv_available_tokens": stats.free_tokens, "kv_evictable_tokens": stats.cached_tokens,
            "max_total_num_tokens": stats.capacity_tokens or info.capacity_tokens, "steps": stats.steps,
        }
        return json_response(
            options
            | {
                "served_names": ", ".join(service.served_names), "version": radixrt.__version__,
                "status": engine.status, "uptime_seconds": round(time.time() - service.started, 3),
                "load_seconds": info.load_seconds, "max_total_num_tokens": info.capacity_tokens,
                "max_req_input_len": min(info.context_length, info.capacity_tokens) - 1, "internal_states": [state],
                "kv_events": None if info.kv_events is None else kv_events_view(info.kv_events),
                "open_requests": engine.num_open, "open_sessions": len(engine.sessions), "stats": msgspec.to_builtins(stats),
            }
        )

    @router.get("/flush_cache", include_in_schema=False)
    @router.post("/flush_cache", summary="Empty the cache; refused while requests run")
    async def flush_cache(request: Request) -> Response:
        service.require_ready()
        try:
            timeout = float(request.query_params.get("timeout", 0.0))
        except ValueError:
            raise RequestError("timeout must be a number of seconds.", param="timeout", code="invalid_type") from None
        if not (math.isfinite(timeout) and timeout >= 0.0):
            raise RequestError("timeout must be a finite number of seconds, 0 or more.", param="timeout", code="invalid_value")
        flushed = await while_connected(request.receive, wait_until(engine.flush_cache, min(timeout, MAX_FLUSH_WAIT)))
        if flushed is None:
            return gone()
        if not flushed:
            raise Refusal(400, "The cache was not flushed: requests are running or waiting.", code="engine_busy")
        return PlainTextResponse("Cache flushed.\n")

    @router.post("/abort_request", openapi_extra=body_schema(AbortBody, components), summary="End requests early")
    async def abort_request(request: Request) -> Response:
        body = typed(await read_json(request, service.config), AbortBody)
        if body.abort_all:
            return json_response({"aborted": await engine.abort_all()})
        rid = check_rid(body.rid)
        if rid is None:
            raise RequestError("rid or abort_all is required.", param="rid", code="missing_parameter")
        return json_response({"aborted": int(await engine.abort(rid))})

    @router.post("/pause_generation", openapi_extra=body_schema(PauseBody, components), summary="Compute nothing until told to go on")
    async def pause_generation(request: Request) -> Response:
        body = typed(await read_json(request, service.config), PauseBody)
        service.require_ready()
        await engine.pause(body.mode)
        return json_response({"message": "Generation paused.", "status": "ok"})

    @router.post("/continue_generation", summary="Go on after /pause_generation")
    async def continue_generation() -> Response:
        service.require_ready()
        await engine.resume()
        return json_response({"message": "Generation continued.", "status": "ok"})

    @router.get("/loads", include_in_schema=False)
    @router.get("/get_load", summary="The older name of /v1/loads")
    @router.get("/v1/loads", summary="How busy the engine is, as routers ask for it")
    async def loads() -> Response:
        service.require_known()
        stats, capacity = engine.stats, engine.info.capacity_tokens
        load = {
            "dp_rank": 0, "num_running_reqs": stats.num_running, "num_waiting_reqs": stats.num_waiting,
            "num_reqs": stats.num_running + stats.num_waiting, "num_used_tokens": stats.locked_tokens,
            "num_tokens": stats.locked_tokens, "max_total_num_tokens": capacity, "token_usage": stats.locked_tokens / capacity,
            "gen_throughput": engine.metrics.throughput(stats), "max_running_requests": engine.resolved.schedule.max_running_requests,
            "cache_hit_rate": stats.cached_prompt_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0,
        }
        return json_response({"loads": [load], "timestamp": time.time()})

    @router.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(engine.metrics_text(), media_type=METRICS_TYPE)

    return router
