"""KV events from a running core, over real sockets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from block_mirror import Mirror, stored_blocks

from radixrt.cache.kv_events import AllBlocksCleared, Event
from radixrt.config import EngineConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.kv_publisher import END, KVEventsConfig, KVPublisher
from radixrt.errors import ConfigError
from radixrt.types import GenerateRequest, Namespace, SamplingParams

WAIT_MS = 5000


class Batch(msgspec.Struct, array_like=True):
    time: float
    events: list[Event]
    rank: int


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def subscribe(context: zmq.Context[Any], endpoint: str, topic: bytes = b"") -> zmq.Socket[bytes]:
    socket = context.socket(zmq.SUB)
    socket.subscribe(topic)
    socket.connect(endpoint)
    return socket


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    assert socket.poll(WAIT_MS), "nothing came"
    return socket.recv_multipart()


def replay(context: zmq.Context[Any], endpoint: str, start: int) -> list[tuple[int, Batch]]:
    """Return every kept batch from a sequence number on."""
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        empty, number, payload = receive(socket)
        assert empty == b""
        if number == END:
            return batches
        batches.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload, type=Batch)))


def make(**events: Any) -> KVPublisher:
    config = KVEventsConfig.parse(json.dumps({"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"} | events))
    assert config is not None
    return KVPublisher(config)


def test_a_mirror_equals_the_cache_of_a_running_core(context: zmq.Context[Any]) -> None:
    options = {"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}
    core = EngineCore.load(
        EngineConfig.of(
            model_path="toy", max_total_tokens=256, max_running_requests=4, chunked_prefill_size=24, radix_tree="python",
            kv_events_config=json.dumps(options),
        )
    )
    try:
        address = core.info.kv_events
        assert address is not None
        assert address.replay_endpoint is not None
        rng = random.Random(1)
        preambles = [[rng.randrange(250) for _ in range(rng.randrange(20, 70))] for _ in range(3)]
        for uid in range(25):
            prompt = rng.choice(preambles) + [rng.randrange(250) for _ in range(rng.randrange(1, 30))]
            sampling = SamplingParams(max_new_tokens=rng.randrange(1, 16), temperature=0.0, ignore_eos=True)
            core.add(GenerateRequest(uid=uid, prompt=prompt, sampling=sampling, namespace=Namespace(cache_salt=rng.choice("ab"))))
            for _ in range(rng.randrange(6)):
                core.step()
            if rng.random() < 0.2:
                core.abort(rng.randrange(uid + 1))
        while core.has_work():
            core.step()
        assert core.stats().evicted_tokens > 0
        mirror = Mirror()
        for number, (expected, batch) in enumerate(replay(context, address.replay_endpoint, 0)):
            assert (number, batch.rank) == (expected, 0)
            mirror.take(batch.events)
        assert mirror.prefixes() == stored_blocks(core._scheduler.cache.tree)  # type: ignore[arg-type]
        assert mirror.blocks
        assert core.flush()
        last = replay(context, address.replay_endpoint, number + 1)
        assert [batch.events for _, batch in last] == [[AllBlocksCleared()]]
    finally:
        core.close()


def test_subscribers_of_the_topic_get_what_is_published_in_order(context: zmq.Context[Any]) -> None:
    publisher = make(topic="kv@here")
    try:
        socket = subscribe(context, publisher.address.endpoint, b"kv@")
        other = subscribe(context, publisher.address.endpoint, b"other")
        while not socket.poll(20):  # until the subscription has arrived
            publisher.publish([AllBlocksCleared()])
        first = int.from_bytes(receive(socket)[1], "big")
        for _ in range(5):
            publisher.publish([AllBlocksCleared()])
        for number in range(first + 1, first + 6):
            topic, sequence, payload = receive(socket)
            assert (topic, int.from_bytes(sequence, "big")) == (b"kv@here", number)
            assert msgspec.msgpack.decode(payload, type=Batch).events == [AllBlocksCleared()]
        assert not other.poll(0)
    finally:
        publisher.close()
        publisher.close()


def test_replay_starts_at_the_number_asked_for_and_keeps_the_last_batches(context: zmq.Context[Any]) -> None:
    publisher = make(buffer_steps=5)
    try:
        for _ in range(8):
            publisher.publish([AllBlocksCleared()])
        endpoint = publisher.address.replay_endpoint
        assert endpoint is not None
        assert [number for number, _ in replay(context, endpoint, 0)] == [3, 4, 5, 6, 7]
        assert [number for number, _ in replay(context, endpoint, 6)] == [6, 7]
        assert replay(context, endpoint, 8) == []
        broken = context.socket(zmq.DEALER)
        broken.connect(endpoint)
        broken.send_multipart([b"", b"short"])
        assert [number for number, _ in replay(context, endpoint, 7)] == [7]
    finally:
        publisher.close()


def test_an_ipc_endpoint_is_bound(context: zmq.Context[Any], tmp_path: Path) -> None:
    publisher = make(endpoint=f"ipc://{tmp_path}/events", replay_endpoint=None)
    try:
        assert publisher.address.replay_endpoint is None
        assert (tmp_path / "events").exists()
    finally:
        publisher.close()


def test_an_endpoint_of_another_host_is_connected_to(context: zmq.Context[Any]) -> None:
    collector = context.socket(zmq.SUB)
    collector.subscribe(b"")
    port = collector.bind_to_random_port("tcp://*")
    publisher = make(endpoint=f"tcp://127.0.0.2:{port}", replay_endpoint=None)  # not what loopback is usually called
    try:
        while not collector.poll(20):
            publisher.publish([AllBlocksCleared()])
    finally:
        publisher.close()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"publisher": "kafka"}', '{"endpont": "x"}', '{"buffer_steps": 0}', '{"hwm": "many"}', '{"endpoint": 5}']
)
def test_a_bad_config_is_refused_before_anything_is_loaded(text: str) -> None:
    with pytest.raises(ConfigError, match="kv-events-config"):
        EngineCore.load(EngineConfig.of(model_path="/nowhere.gguf", kv_events_config=text))


@pytest.mark.parametrize("text", [None, "", '{"publisher": "null"}', '{"enable_kv_cache_events": false}'])
def test_events_can_be_switched_off(text: str | None) -> None:
    assert KVEventsConfig.parse(text) is None


def test_an_address_in_use_is_a_config_error() -> None:
    publisher = make()
    try:
        with pytest.raises(ConfigError, match="cannot use"):
            make(endpoint=publisher.address.endpoint)
    finally:
        publisher.close()
