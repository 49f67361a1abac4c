"""One HTTP exchange whose bytes are stamped as they come and read when all are there.

The client shares the machine with the server it measures.  A full HTTP client spends 50 to 250 us of CPU on each event of a
stream, on two cores a good part of what is measured; here an event costs a clock reading, and the answer is taken apart after
its end.  HTTP/1.1, one connection an exchange.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

LAST_CHUNK = b"0\r\n\r\n"


class BadResponse(ValueError):
    """What came back is no whole HTTP response."""


@dataclass(slots=True)
class Response:
    """status: the code.  body: without its framing.  arrivals: (end in ``body``, seconds of the monotonic clock) of each piece."""

    status: int
    body: bytes
    arrivals: list[tuple[int, float]] = field(default_factory=list)

    def lines(self) -> Iterator[tuple[float, bytes]]:
        """Yield each line of the body with the time at which its end had come."""
        start = 0
        for line in self.body.split(b"\n"):
            end = start + len(line)
            if line:
                at = bisect_left(self.arrivals, end, key=lambda arrival: arrival[0])
                yield self.arrivals[min(at, len(self.arrivals) - 1)][1], line.rstrip(b"\r")
            start = end + 1


class _Receiver(asyncio.Protocol):
    """Collects what comes until the other side closes, or says that this was all."""

    def __init__(self, request: bytes) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.monotonic(), data))
        if data.endswith(LAST_CHUNK):  # of a server that keeps the connection open all the same
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(exc)


async def exchange(base_url: str, path: str, body: bytes, headers: Mapping[str, str], timeout: float) -> Response:
    """POST a body and wait for the end of the response.

    Raises OSError when the server cannot be reached or breaks off, TimeoutError after ``timeout`` seconds, BadResponse.
    """
    url = urlsplit(base_url)
    assert url.hostname is not None, "the base URL is checked before anything is asked"
    secure = ssl.create_default_context() if url.scheme == "https" else None
    fields = {"Host": url.netloc, "Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close", **headers}
    head = f"POST {url.path.rstrip('/')}{path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = head.encode("latin-1") + b"\r\n" + body
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        transport, receiver = await loop.create_connection(
            lambda: _Receiver(request), url.hostname, url.port or (443 if secure else 80), ssl=secure
        )
        try:
            await receiver.done
        finally:
            transport.abort()
    return read_response(receiver.pieces)


def read_response(pieces: list[tuple[float, bytes]]) -> Response:
    """Take a response apart.  Raises BadResponse when it is malformed or breaks off."""
    raw = b"".join(data for _, data in pieces)
    head, separator, rest = raw.partition(b"\r\n\r\n")
    status_line, *fields = head.decode("latin-1").split("\r\n")
    words = status_line.split(" ", 2)
    if not separator or not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise BadResponse(f"no HTTP response: {raw[:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
    ends, end = [], -(len(head) + len(separator))
    for at, data in pieces:
        end += len(data)
        ends.append((end, at))
    response = Response(int(words[1]), b"")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        _read_chunks(rest, ends, response)
    else:
        if len(rest) < int(headers.get("content-length", 0)):
            raise BadResponse(f"the response breaks off after {len(rest)} of {headers['content-length']} bytes")
        response.body, response.arrivals = rest, ends
    return response


def _read_chunks(rest: bytes, ends: list[tuple[int, float]], response: Response) -> None:
    parts, size, at = [], 0, 0
    while True:
        line_end = rest.find(b"\r\n", at)
        try:
            length = int(rest[at:line_end].partition(b";")[0], 16) if line_end >= 0 else -1
        except ValueError as error:
            raise BadResponse(f"no chunk size: {rest[at : at + 20]!r}") from error
        stop = line_end + 2 + length
        if length < 0 or stop > len(rest):
            raise BadResponse(f"the response breaks off after {size} bytes of its body")
        if length == 0:
            break
        parts.append(rest[line_end + 2 : stop])
        size += length
        response.arrivals.append((size, ends[bisect_left(ends, stop, key=lambda arrival: arrival[0])][1]))
        at = stop + 2
    response.body = b"".join(parts)
