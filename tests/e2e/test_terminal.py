"""chat, doctor and top, against a running server and in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from radixrt import cli
from radixrt.engine.engine import Engine
from radixrt.errors import ConfigError, RadixrtError
from radixrt.terminal.chat import EmbeddedPartner, RemotePartner, converse
from radixrt.terminal.remote import Remote

SAMPLING = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}


def typing(*lines: str) -> Callable[[str], str]:
    """A person who types these lines and leaves."""
    left = list(lines)

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


def talk(partner: Any, *lines: str) -> str:
    screen = io.StringIO()
    converse(partner, Console(file=screen, width=200), typing(*lines), system="Be kind.")
    return screen.getvalue()


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(model_path="toy", max_total_tokens=2000) as engine:
        yield engine


def test_a_server_and_a_model_in_this_process_say_the_same(server: Any, engine: Engine) -> None:
    lines = ("hello", "and you?", "/reset", "hello", "/nonsense", "", "/exit", "never read")
    here, there = talk(EmbeddedPartner(engine, SAMPLING), *lines), talk(RemotePartner(Remote(server.url), SAMPLING), *lines)
    assert here.split("prompt tokens")[0].rsplit("[", 1)[0] == there.split("prompt tokens")[0].rsplit("[", 1)[0]
    assert here.count("generated]") == there.count("generated]") == 3
    assert here.count("/reset forgets") == 2


def test_a_second_turn_comes_from_the_cache(engine: Engine) -> None:
    partner = EmbeddedPartner(engine, SAMPLING)
    talk(partner, "a question of some length", "more")
    prompt, cached, _ = partner.usage
    assert cached > prompt / 2


def test_an_error_ends_an_answer_and_not_the_conversation(server: Any) -> None:
    partner = RemotePartner(Remote(server.url), SAMPLING | {"temperature": -1})
    assert talk(partner, "hello", "again").count("error: ") == 2


def test_doctor_finds_a_healthy_server_healthy(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--url", server.url]) == 0
    text = capsys.readouterr().out
    assert "fail" not in text
    assert text.count("ok  ") == 5


def test_doctor_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--url", "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().out
    assert cli.main(["doctor", "--model", "/no/such/model.gguf", "--port", "0"]) == 1
    assert "model" in capsys.readouterr().out


def test_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--model", "toy", "--port", "0"]) == 0
    assert "python" in capsys.readouterr().out


def test_top_shows_requests_and_tree(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.http.post("/v1/completions", json={"prompt": "to be seen in the tree", "max_tokens": 2})
    assert cli.main(["top", "--url", server.url, "--once"]) == 0
    text = capsys.readouterr().out
    assert "0 running, 0 waiting" in text
    assert "to be se" in text
    assert cli.main(["top", "--url", "http://127.0.0.1:9", "--once"]) == 1


def test_a_key_comes_from_the_environment(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server("--api-key", "secret").wait_ready()
    with pytest.raises(RadixrtError, match="401"):
        Remote(server.url).call("/v1/models")
    monkeypatch.setenv("RADIXRT_API_KEY", "secret")
    assert Remote(server.url).call("/v1/models")["data"]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Remote(url)
