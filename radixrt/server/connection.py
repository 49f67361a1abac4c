"""One HTTP connection: uvicorn's httptools protocol with the limits it lacks.

A request head has a largest size and a time to arrive in, so that idle or endless heads cost one socket for a bounded time.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from radixrt.errors import RadixrtError
from radixrt.server.problems import Refusal, error_json

MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT = 10.0

TOO_LARGE = Refusal(431, "The request head is too large.", code="head_too_large")
INVALID = Refusal(400, "The request is not valid HTTP.", code="invalid_http")


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose request heads are bounded in size and time."""

    _in_head = True
    _head_bytes = 0
    _tail = b""
    _refused = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._head_is_late)
            # Counted in whole reads: a body that comes along with the head may use up the bound too, never the other way round.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._ends_head(data):
                self._refuse(TOO_LARGE)
                return
            self._tail = data[-3:]
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(INVALID)

    def _refuse(self, error: RadixrtError) -> None:
        """Answer from here, where no request has begun yet, and close."""
        self._refused = True
        self._cancel_timer()
        body = error_json(error)
        lines = (f"HTTP/1.1 {error.status} Refused", "content-type: application/json", f"content-length: {len(body)}", "connection: close")
        self.transport.write("\r\n".join((*lines, "\r\n")).encode() + body)
        self.transport.close()

    def _ends_head(self, data: bytes) -> bool:
        """Whether the head ends in this read within its bound."""
        end = (self._tail + data).find(b"\r\n\r\n")
        return end >= 0 and self._head_bytes - len(data) + end <= MAX_HEAD_BYTES

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
