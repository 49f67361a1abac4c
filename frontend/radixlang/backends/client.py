"""A small JSON-over-HTTP client: answers, streams of events, and errors as radixrt's exceptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from radixrt import EngineStopped, InternalError, Overloaded, RadixrtError, RequestError, UnknownModel

MAX_TRIES = 5
MAX_CONNECTIONS = 256


class JsonClient:
    """Posts to one server.  A server that is overloaded is asked again, after as long as it says."""

    def __init__(self, base_url: str, headers: Mapping[str, str], *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/") + "/", headers=dict(headers), timeout=httpx.Timeout(None, connect=10.0), transport=transport,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS),
        )  # fmt: skip

    async def get(self, path: str) -> Any:
        return self._read(await self._send("GET", path, None))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        for attempt in range(MAX_TRIES):
            response = await self._send("POST", path, body)
            if response.status_code != Overloaded.status or attempt == MAX_TRIES - 1:
                break
            await asyncio.sleep(_seconds(response.headers.get("retry-after")))
        return self._read(response)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Yield the JSON events of a stream; leaving early hangs up, which ends the request."""
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code >= 400:
                    await response.aread()
                    self._read(response)
                async for line in response.aiter_lines():
                    if line.startswith("data:") and (value := line[5:].strip()) != "[DONE]":
                        event = json.loads(value)
                        if isinstance(event, dict) and event.get("error"):
                            raise _error(500, event)
                        yield event
        except httpx.HTTPError as error:
            raise EngineStopped(f"{self._client.base_url}: {error or type(error).__name__}") from error

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return await self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise EngineStopped(f"{self._client.base_url}: {error or type(error).__name__}") from error

    def _read(self, response: httpx.Response) -> Any:
        try:
            value = response.json() if response.content else None
        except ValueError:
            value = None
        if response.status_code >= 400:
            raise _error(response.status_code, value)
        return value


def _seconds(text: str | None) -> float:
    try:
        return min(max(float(text or 1.0), 0.1), 60.0)
    except ValueError:
        return 1.0


def _error(status: int, body: Any) -> RadixrtError:
    told = body.get("error", body) if isinstance(body, dict) else {}
    told = told if isinstance(told, dict) else {"message": str(told)}
    message = str(told.get("message") or f"The server answered {status}.")
    if status == UnknownModel.status:
        return UnknownModel(message, param=told.get("param"), code=told.get("code"))
    if status == Overloaded.status:
        return Overloaded(message)
    if status == EngineStopped.status:
        return EngineStopped(message)
    if status < 500:
        return RequestError(message, param=told.get("param"), code=told.get("code"))
    return InternalError(message)
