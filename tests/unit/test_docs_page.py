"""``/docs`` says what the schema says, in a page that needs nothing from elsewhere."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from radixrt.config import EngineConfig, ModelConfig, ServerConfig
from radixrt.engine.async_engine import AsyncEngine
from radixrt.server.app import build_app
from radixrt.server.docs import render


def test_every_operation_is_on_a_page_that_loads_nothing() -> None:
    app = build_app(AsyncEngine(EngineConfig(model=ModelConfig(model_path="toy"))), ServerConfig())
    page = TestClient(app).get("/docs").text
    told = {(method.lower(), path) for method, path in re.findall(r">([A-Z]+)</b> <code>([^<]*)</code>", page)}
    assert told == {(method, path) for path, methods in app.openapi()["paths"].items() for method in methods}
    assert set(re.findall(r'<details id="([^"]*)"', page)) == set(app.openapi()["components"]["schemas"])
    assert not re.search(r"<script|<link|<img|src=|https?:|url\(", page)
    links = set(re.findall(r'href="#([^"]*)"', page))
    assert links <= set(app.openapi()["components"]["schemas"])


def test_text_of_the_schema_is_never_markup() -> None:
    hostile = "<script>alert(1)</script>"
    body = {"type": "object", "properties": {hostile: {"type": "string", "description": hostile, "default": hostile}}}
    operation = {"tags": [hostile], "summary": hostile, "requestBody": {"content": {hostile: {"schema": body}}}}
    page = render({"info": {"title": hostile, "version": "1"}, "paths": {"/" + hostile: {"post": operation}}, "components": {}})
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 7
