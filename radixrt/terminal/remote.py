"""A client of a running server, small enough to need no library: JSON in, JSON or events out."""

from __future__ import annotations

import http.client
import json
import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

from radixrt.errors import ConfigError, RadixrtError

TIMEOUT = 300.0


class Remote:
    """The server at a URL.  ``api_key`` defaults to RADIXRT_API_KEY's first key.  Raises ConfigError for what is no URL."""

    def __init__(self, url: str, api_key: str | None = None, *, timeout: float = TIMEOUT) -> None:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url!r} is not a URL such as http://127.0.0.1:30000")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._kind = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
        self._netloc = parts.netloc
        self._timeout = timeout
        key = api_key or os.environ.get("RADIXRT_API_KEY", "").partition(",")[0].strip()
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON of an answer, None when it is empty.  Raises RadixrtError with what the server said."""
        connection, response = self._send(path, body)
        try:
            text = response.read()
        finally:
            connection.close()
        return json.loads(text) if text else None

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer.  Raises RadixrtError with what the server said."""
        connection, response = self._send(path, body)
        try:
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RadixrtError(str(event["error"].get("message", event["error"])))
                    yield event
        finally:
            connection.close()

    def _send(self, path: str, body: dict[str, Any] | None) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._kind(self._netloc, timeout=self._timeout)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status >= 300:
                raise RadixrtError(f"{path}: {_said(response.read()) or response.reason} ({response.status})")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise RadixrtError(f"{self.url} does not answer: {error}") from None
        except RadixrtError:
            connection.close()
            raise
        return connection, response


def _said(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error.get("message", error) if isinstance(error, dict) else error)
