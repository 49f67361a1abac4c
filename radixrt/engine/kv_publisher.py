"""Sends KV events over ZMQ: a PUB socket for what happens, a ROUTER socket for what a subscriber has missed.

The frames are vLLM's and SGLang's: topic, sequence number of 8 bytes big-endian, and in msgpack ``[time, [events],
data-parallel rank]``.  A replay request is the first sequence number wanted; its answers end with number -1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

from radixrt.cache.kv_events import BLOCK_SIZE, Event
from radixrt.errors import ConfigError
from radixrt.types import KVEventsAddress

logger = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)
# A thread that has been told to end has this long to send what is queued.
CLOSE_SECONDS = 2.0
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ANY = ("*", "0.0.0.0", "[::]", "")


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON of ``--kv-events-config``; vLLM's and SGLang's names.

    ``endpoint`` is bound when it is ipc, inproc, loopback or a wildcard, and connected to otherwise.  ``buffer_steps``:
    batches kept for replay.  ``hwm`` and ``max_queue_size``: batches a slow subscriber, and the sending thread, may be
    behind before some are left out, which the sequence numbers show.
    """

    publisher: str = "zmq"
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    enable_kv_cache_events: bool = True

    @classmethod
    def parse(cls, text: str | None) -> KVEventsConfig | None:
        """Read the flag; None when no events are to be sent.  Raises ConfigError."""
        if not text:
            return None
        try:
            config = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ConfigError(f"--kv-events-config: {error}") from None
        if config.publisher not in ("zmq", "null"):
            raise ConfigError(f"--kv-events-config: publisher {config.publisher!r} is not one of zmq, null")
        if min(config.buffer_steps, config.hwm, config.max_queue_size) < 1:
            raise ConfigError("--kv-events-config: buffer_steps, hwm and max_queue_size must be at least 1")
        return config if config.publisher == "zmq" and config.enable_kv_cache_events else None


class KVPublisher:
    """Publishes batches of events from a thread of its own; ``publish`` is called from one thread and never waits.

    Raises ConfigError when an address cannot be used.
    """

    def __init__(self, config: KVEventsConfig, *, medium: str = "CPU", rank: int = 0) -> None:
        self.medium = medium
        self._rank = rank
        self._topic = config.topic.encode()
        self._next = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._context = zmq.Context()
        publications = self._context.socket(zmq.PUB)
        publications.setsockopt(zmq.SNDHWM, config.hwm)
        endpoint = self._open(publications, config.endpoint)
        replays, replay_endpoint = None, None
        if config.replay_endpoint is not None:
            replays = self._context.socket(zmq.ROUTER)
            replay_endpoint = self._open(replays, config.replay_endpoint)
        self.address = KVEventsAddress("zmq", endpoint, replay_endpoint, config.topic, BLOCK_SIZE)
        # Sockets belong to one thread each; this pair hands batches over.
        outbox, self._inbox = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._inbox.setsockopt(zmq.SNDHWM, config.max_queue_size)
        outbox.bind("inproc://batches")
        self._inbox.connect("inproc://batches")
        self._thread = threading.Thread(
            target=self._run, args=(outbox, publications, replays, config.buffer_steps), name="radixrt-kv-events", daemon=True
        )
        self._thread.start()

    def publish(self, events: Sequence[Event]) -> None:
        """Send a batch."""
        number = self._next
        self._next += 1
        try:
            self._inbox.send_multipart([number.to_bytes(8, "big"), self._encode([time.time(), events, self._rank])], zmq.NOBLOCK)
        except zmq.Again:
            logger.warning("KV events of batch %d were dropped: too many are queued", number)

    def close(self) -> None:
        """Send what is queued and close.  Idempotent."""
        if not self._inbox.closed:
            self._inbox.send_multipart([b""])
            self._thread.join(CLOSE_SECONDS)
            self._inbox.close(linger=0)
            self._context.destroy(linger=0)

    def _open(self, socket: zmq.Socket[bytes], endpoint: str) -> str:
        scheme, _, place = endpoint.partition("://")
        host = place.rpartition(":")[0]
        try:
            if scheme in ("ipc", "inproc") or host in _LOOPBACK + _ANY:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"--kv-events-config: cannot use {endpoint!r}: {error}") from None
        if scheme == "tcp" and host not in _LOOPBACK:
            logger.warning("KV events, which carry the tokens of prompts, leave this machine: %s", endpoint)
        bound: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return bound or endpoint

    def _run(
        self, outbox: zmq.Socket[bytes], publications: zmq.Socket[bytes], replays: zmq.Socket[bytes] | None, buffer_steps: int
    ) -> None:
        sent: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        poller = zmq.Poller()
        for socket in (outbox, replays):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        running = True
        while running:
            ready = dict(poller.poll())
            # What was published before a replay was asked for is part of its answer: the outbox is emptied first.
            while running and outbox.poll(0):
                frames = outbox.recv_multipart()
                running = frames != [b""]
                if running:
                    number, payload = frames
                    publications.send_multipart([self._topic, number, payload])
                    sent.append((number, payload))
            if replays is not None and replays in ready:
                self._replay(replays, sent)
        for socket in (outbox, publications, replays):
            if socket is not None:
                socket.close(linger=int(1000 * CLOSE_SECONDS) if socket is publications else 0)

    def _replay(self, replays: zmq.Socket[bytes], sent: deque[tuple[bytes, bytes]]) -> None:
        """Answer a request with every kept batch from the number it names, then the end mark."""
        *route, wanted = replays.recv_multipart()
        if len(wanted) != 8 or not route:
            logger.warning("a replay request of %d bytes was ignored", len(wanted))
            return
        for number, payload in sent:
            if number >= wanted:  # big-endian: bytes compare as the numbers do
                replays.send_multipart([*route, number, payload])
        replays.send_multipart([*route, END, b""])
