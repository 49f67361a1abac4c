"""The application: routes, errors and middleware around one engine.  Starting and stopping are not its business."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

import radixrt
from radixrt.config import ServerConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.server import auth, problems
from radixrt.server.auth import api_keys
from radixrt.server.cache import cache_routes
from radixrt.server.dialects.anthropic import anthropic_routes
from radixrt.server.dialects.ollama import ollama_routes
from radixrt.server.dialects.responses import responses_routes
from radixrt.server.docs import docs_routes
from radixrt.server.embeddings import embeddings_routes
from radixrt.server.native import native_routes
from radixrt.server.openai import openai_routes
from radixrt.server.operations import operations_routes
from radixrt.server.service import Service
from radixrt.server.sessions import session_routes
from radixrt.server.tokens import token_routes
from radixrt.server.ui import ui_routes

DESCRIPTION = "Serves a language model over the routes of OpenAI, Anthropic, Ollama and SGLang."


def build_app(engine: AsyncEngine, config: ServerConfig) -> FastAPI:
    """Build the app that serves an engine."""
    app = FastAPI(title="radixrt", version=radixrt.__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    service = Service(engine, config)
    components: dict[str, Any] = {}
    for routes in (
        openai_routes, embeddings_routes, responses_routes, anthropic_routes, ollama_routes, native_routes, token_routes, cache_routes,
        session_routes, operations_routes, ui_routes,
    ):
        app.include_router(routes(service, components))
    problems.install(app)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    app.include_router(docs_routes(openapi))
    keys = api_keys(config)
    # What is added later lies further out.
    if config.max_streams_per_key is not None:
        app.add_middleware(auth.BoundStreams, most=config.max_streams_per_key)
    if keys or config.admin_api_key:
        app.add_middleware(auth.RequireKey, api_keys=keys, admin_key=config.admin_api_key)
    if config.cors_allow_origin:
        # Outside the keys: a browser's preflight carries none.
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_allow_origin), allow_methods=["*"], allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    if config.otlp_traces_endpoint is not None:
        # Needs the extra otel.
        from radixrt.server.tracing import FollowTrace

        app.add_middleware(FollowTrace)
    # Added last, so outermost: refusals carry the request id too.
    app.add_middleware(auth.NameAnswers, log=config.log_requests)
    return app
