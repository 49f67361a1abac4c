"""Who is let in: by the path and the key alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server.auth import ADMIN_PATHS, BoundStreams, RequireKey, api_keys


def status(path: str, *headers: tuple[str, str], keys: tuple[str, ...] = (), admin: str | None = None) -> tuple[int, Any]:
    """The status that a request gets, 200 from the app behind the keys, and the body."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(name.encode(), value.encode()) for name, value in headers]}
    asyncio.run(RequireKey(app, keys, admin)(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], orjson.loads(sent[1]["body"])


def bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


@pytest.mark.parametrize("header", [bearer("one"), bearer("zwei-ü"), ("x-api-key", "one"), ("authorization", "bearer one")])
def test_any_of_the_keys_opens(header: tuple[str, str]) -> None:
    assert status("/v1/models", header, keys=("one", "zwei-ü"))[0] == 200


@pytest.mark.parametrize("headers", [(), (bearer("on"),), (bearer("one "),), (("x-api-key", ""),), (("authorization", "Basic one"),)])
def test_nothing_else_does(headers: tuple[tuple[str, str], ...]) -> None:
    assert status("/v1/models", *headers, keys=("one",))[0] == 401
    assert status("/health", *headers, keys=("one",))[0] == 200


@pytest.mark.parametrize("path", sorted(ADMIN_PATHS))
def test_the_admin_key_alone_opens_what_concerns_everybody(path: str) -> None:
    assert status(path, bearer("boss"), keys=("one",), admin="boss")[0] == 200
    assert status(path, bearer("one"), keys=("one",), admin="boss")[0] == 403
    assert status(path, keys=("one",), admin="boss")[0] == 401
    assert status(path, keys=(), admin="boss")[0] == 401
    assert status(path, bearer("one"), keys=("one",))[0] == 200


def test_the_admin_key_opens_the_rest_too_and_needs_no_other_keys() -> None:
    assert status("/v1/models", bearer("boss"), keys=("one",), admin="boss")[0] == 200
    assert status("/v1/models", keys=(), admin="boss")[0] == 200


def test_refusals_have_the_shape_of_the_dialect() -> None:
    assert status("/v1/messages", keys=("one",))[1]["error"]["type"] == "authentication_error"
    assert isinstance(status("/api/chat", keys=("one",))[1]["error"], str)


def test_keys_come_from_flags_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("two\n\n three \n")
    assert api_keys(ServerConfig(api_key=("one",), api_key_file=str(file))) == ("one", "two", "three")
    file.write_text("\n")
    for options in ({"api_key_file": str(file)}, {"api_key_file": str(tmp_path / "none")}, {"admin_api_key": " "}):
        with pytest.raises(ConfigError):
            api_keys(ServerConfig(**options))


def test_a_key_has_so_many_requests_open_and_others_have_theirs() -> None:
    async def run(keys: tuple[str, ...]) -> None:
        leave = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/breaks":
                raise RuntimeError
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await leave.wait()

        bounded: Any = BoundStreams(app, most=2)
        if keys:
            bounded = RequireKey(bounded, keys)

        async def ask(key: str = "one", path: str = "/v1/completions", method: str = "POST") -> tuple[int, asyncio.Task[None]]:
            sent: list[dict[str, Any]] = []

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [(name.encode(), value.encode()) for name, value in (bearer(key),)]
            task = asyncio.create_task(bounded({"type": "http", "method": method, "path": path, "headers": headers}, None, send))
            await asyncio.sleep(0.01)
            return (sent[0]["status"] if sent else 0), task

        assert [(await ask())[0], (await ask())[0]] == [200, 200]
        refused, task = await ask()
        assert refused == 429 and task.done()
        assert (await ask("two"))[0] == (200 if keys else 429)
        assert (await ask(path="/abort_request"))[0] == 200
        assert (await ask(method="GET"))[0] == 200
        leave.set()
        await asyncio.sleep(0.01)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await (await ask(path="/breaks"))[1]
        assert (await ask())[0] == 200

    asyncio.run(run(("one", "two")))
    asyncio.run(run(()))
