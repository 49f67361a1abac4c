"""``/docs``: the OpenAPI description as one page of HTML that is made here, so that it reads the same without a network.

No script, no style sheet or picture from elsewhere; what the schema says is put in as escaped text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
METHODS = ("get", "post", "put", "delete")

STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #808080; --get: #2e9e6b; --post: #2f6fde; --delete: #c2503c; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: auto; padding: 1rem 1.2rem 4rem; }
h1 { margin-bottom: 0; } h2 { margin: 1.8rem 0 .4rem; font-size: 1.1rem; }
p, small, .type { color: var(--dim); } code { font: .88em ui-monospace, monospace; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .3rem 0; } summary { padding: .35rem .7rem; cursor: pointer; }
summary b { display: inline-block; min-width: 4.2rem; font-size: .8rem; } summary small { margin-left: .8rem; }
.get { color: var(--get); } .post { color: var(--post); } .delete { color: var(--delete); }
.in { padding: 0 .9rem .6rem; overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-top: 1px solid var(--line); }
th { font-weight: 500; color: var(--dim); }
"""


def docs_routes(openapi: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page about what ``openapi`` returns, made when it is first asked for."""
    router = APIRouter()
    page = functools.cache(lambda: render(openapi()))

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(page(), headers={"content-security-policy": POLICY, "x-content-type-options": "nosniff"})

    return router


def render(schema: dict[str, Any]) -> str:
    """Return the page of an OpenAPI schema: the operations of each tag, then the models they refer to."""
    info = schema["info"]
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method in METHODS:
            if method in methods:
                groups.setdefault((methods[method].get("tags") or ["other"])[0], []).append(_operation(path, method, methods[method]))
    models = [
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><div class="in">{_fields(model)}</div></details>'
        for name, model in sorted(schema.get("components", {}).get("schemas", {}).items())
    ]
    parts = [f"<h2>{escape(tag)}</h2>" + "".join(operations) for tag, operations in groups.items()]
    if models:
        parts.append("<h2>models</h2>" + "".join(models))
    title = f"{info['title']} {info['version']}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(info.get('description', ''))} "
        f'For programs: <a href="openapi.json">openapi.json</a>; to try a prompt: <a href="ui">ui</a>.</p>'
        f"{''.join(parts)}</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    inside = []
    if operation.get("description"):
        inside.append(f"<p>{escape(operation['description'])}</p>")
    if operation.get("parameters"):
        rows = {found["name"]: found.get("schema", {}) for found in operation["parameters"]}
        inside.append(_table(rows, {found["name"] for found in operation["parameters"] if found.get("required")}))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        inside.append(f"<p>Body, <code>{escape(kind)}</code>: {_type(content.get('schema', {}))}</p>")
        inside.append(_fields(content.get("schema", {})))
    for status, answer in operation.get("responses", {}).items():
        inside.append(f"<p><code>{escape(status)}</code> {escape(answer.get('description', ''))}</p>")
    return (
        f'<details><summary><b class="{method}">{method.upper()}</b> <code>{escape(path)}</code> '
        f'<small>{escape(operation.get("summary", ""))}</small></summary><div class="in">{"".join(inside)}</div></details>'
    )


def _fields(schema: dict[str, Any]) -> str:
    if "properties" in schema:
        return _table(schema["properties"], set(schema.get("required", ())))
    return "" if "$ref" in schema or not schema else f"<p>{_type(schema)}</p>"


def _table(fields: dict[str, Any], required: set[str]) -> str:
    rows = []
    for name, field in fields.items():
        notes = ["required"] if name in required else []
        if isinstance(field, dict) and field.get("default") is not None:
            notes.append("default " + json.dumps(field["default"]))
        if isinstance(field, dict) and field.get("description"):
            notes.append(field["description"])
        rows.append(f"<tr><td><code>{escape(name)}</code></td><td class='type'>{_type(field)}</td><td>{escape('; '.join(notes))}</td></tr>")
    return f"<table><tr><th>field</th><th>type</th><th></th></tr>{''.join(rows)}</table>" if rows else ""


def _type(schema: Any) -> str:
    """A schema in a few words, with links to the models it names."""
    if not isinstance(schema, dict) or not schema:
        return "anything"
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(branch) for branch in schema[key]))
    if "enum" in schema:
        return " | ".join(escape(json.dumps(value)) for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items'))}"
    return escape(kind if isinstance(kind, str) else " or ".join(kind))
