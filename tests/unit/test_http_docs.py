"""docs/http-api.md names every route of the app and every field of its bodies."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from radixrt.config import EngineConfig, ServerConfig, flag
from radixrt.engine.async_engine import AsyncEngine
from radixrt.limits import Limits
from radixrt.server import translate
from radixrt.server.app import build_app
from radixrt.server.dialects.anthropic_input import MessagesBody
from radixrt.server.dialects.ollama_input import OllamaChatBody, OllamaGenerateBody
from radixrt.server.dialects.responses_input import ResponsesBody
from radixrt.server.embeddings import EmbeddingsBody
from radixrt.server.native import NativeBody

PAGE = (Path(__file__).parents[2] / "docs/http-api.md").read_text()
ROUTES = set(re.findall(r"`(?:GET|POST|DELETE) (/[^`]*)`", PAGE))


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.M)[0]


def test_every_route_is_on_the_page_and_the_other_way_round() -> None:
    app = build_app(AsyncEngine(EngineConfig.of(model_path="toy"), in_process=True), ServerConfig())
    assert set(app.openapi()["paths"]) == ROUTES


@pytest.mark.parametrize(
    ("body", "title"),
    [
        (translate.ChatBody, "Chat completions and completions"),
        (translate.CompletionBody, "Chat completions and completions"),
        (EmbeddingsBody, "Embeddings"),
        (ResponsesBody, "Responses"),
        (MessagesBody, "Messages"),
        (OllamaChatBody, "Ollama"),
        (OllamaGenerateBody, "Ollama"),
        (NativeBody, "/generate"),
    ],
)
def test_every_field_is_in_its_section(body: type, title: str) -> None:
    named = set(re.findall(r"`(\w+)`", section(title)))
    assert set(body.__struct_fields__) - named == set()  # type: ignore[attr-defined]


def test_every_limit_is_a_flag_on_the_page() -> None:
    flags = {flag(field.name) for field in dataclasses.fields(Limits)}
    assert flags - set(re.findall(r"`(--[\w-]+)`", section("Limits"))) == set()


@pytest.mark.parametrize("refused", [translate._UNSUPPORTED_IN_CHAT, translate._UNSUPPORTED_IN_COMPLETIONS])
def test_what_is_refused_is_said_to_be(refused: dict[str, str]) -> None:
    text = section("Chat completions and completions")
    assert [name for name in refused if not re.search(rf"Refused(?:[^.]|\.\w)*`{name}`", text)] == []
