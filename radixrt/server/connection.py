"""One HTTP connection: uvicorn's httptools protocol with the limits it lacks.

A request head has a largest size and a time to arrive in, so that idle or endless heads cost one socket for a bounded time;
a client that takes nothing of its answer is cut off; one that is still sending when it is refused can read why.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from radixrt.errors import RadixrtError
from radixrt.limits import DEFAULTS, Limits
from radixrt.server.problems import Refusal, error_json

# A client that is to take something must take so many bytes within the stall timeout.
STALL_BYTES = 1 << 10
# How long a connection that is to be closed may go on sending its request; the stall timeout at the server's end.
LINGER = 1.0
# The ASGI extension under which a request finds the connection's own ``send``, for the pieces of a body once its head has
# gone through everything in between: middleware here looks at heads only, and there are six layers of it.
PIECES = "radixrt.pieces"

logger = logging.getLogger(__name__)

TOO_LARGE = Refusal(431, "The request head is too large.", code="head_too_large")
INVALID = Refusal(400, "The request is not valid HTTP.", code="invalid_http")


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose request heads are bounded in size and time, and whose answers are in time; ``within`` says by what."""

    transport: asyncio.Transport
    limits = DEFAULTS
    _in_head = True
    _head_bytes = 0
    _tail = b""
    _refused = False
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _stall_timeout = 0.0
    _unsent = 0
    _close_timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, limits: Limits) -> type[BoundedProtocol]:
        """Return the same protocol with other limits; uvicorn makes the instances."""
        return type(cls.__name__, (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stall_timeout = self.limits.stall_timeout
        self._head_timer = self.loop.call_later(self.limits.head_timeout, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._stall_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(self.limits.head_timeout, self._head_is_late)
            # Counted in whole reads: a body that comes along with the head may use up the bound too, never the other way round.
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_head_bytes and not self._ends_head(data):
                self._refuse(TOO_LARGE)
                return
            self._tail = data[-3:]
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_timer()
        super().on_headers_complete()
        self.cycle.transport = _AnswerTransport(self)  # type: ignore[assignment]
        self.scope["extensions"] = {PIECES: self.cycle.send}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()
        if self._close_timer is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def shutdown(self) -> None:
        """Close at the server's end, which waits for nobody who takes nothing."""
        super().shutdown()
        self._stall_timeout = LINGER
        self._watch_writing()

    def close_answered(self) -> None:
        """Close after an answer.

        Closing while the request is still coming would reset the connection, and take the answer from a client that
        reads only when it has sent everything: what comes is dropped for a while.
        """
        if self._in_head:
            self.transport.close()
        elif self._close_timer is None:
            self._close_timer = self.loop.call_later(LINGER, self.transport.close)

    def _unsupported_upgrade_warning(self) -> None:
        # An upgrade is an offer, and the answer in plain HTTP declines it.  The parser takes nothing after it.
        self.cycle.keep_alive = False

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
        return end >= 0 and self._head_bytes - len(data) + end <= self.limits.max_head_bytes

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _watch_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_timeout, self._check_stall)

    def _check_stall(self) -> None:
        """Cut the client off if it takes too little of what waits for it; until all is taken, look again."""
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if not self._unsent:
            return
        # Otherwise more is being written, and the size says nothing.
        only_taken = self.flow.write_paused or self.transport.is_closing()
        if only_taken and before - self._unsent < STALL_BYTES:
            logger.warning("a client took nothing for %.0f s; its connection was cut", self._stall_timeout)
            self.transport.abort()
        else:
            self._stall_timer = self.loop.call_later(self._stall_timeout, self._check_stall)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _AnswerTransport:
    """What an answer is written to: the connection's transport, closed as the connection wants it."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_answered()
