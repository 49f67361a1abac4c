"""Two servers behind smg: conversations stay with their prefix, and a dead server loses no later request."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

MISSING = importlib.util.find_spec("smg") is None
pytestmark = [pytest.mark.skipif(MISSING, reason="smg, the extra gateway, is not installed"), pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--model", "toy", "--port", str(port), "--dp-size", "2", "--max-total-tokens", "4000"]
    command = [sys.executable, "-m", "radixrt.launch_server", *flags]
    process = subprocess.Popen(command)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    try:
        # The gateway answers once it knows one of them.
        wait(client, lambda: num_ready(client) == 2 and ask(client, "ready?").status_code == 200, 90)
        yield client, process
    finally:
        client.close()
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not psutil.wait_procs(children, timeout=10)[1]


def num_ready(client: httpx.Client) -> int:
    return sum(worker["status"] == "ready" for worker in client.get("/workers").json()["workers"])


def ask(client: httpx.Client, *turns: str) -> httpx.Response:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return client.post("/v1/chat/completions", json={"model": "toy", "messages": messages, "max_tokens": 4, "temperature": 0})


def wait(client: httpx.Client, holds, seconds: float) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_conversation_stays_where_its_prefix_is(fleet: tuple[httpx.Client, subprocess.Popen[bytes]]) -> None:
    client, _ = fleet
    hits = []
    for conversation in range(6):
        turns = [f"Conversation {conversation}, " + f"{conversation} words of its own. " * 12]
        for turn in range(4):
            answer = ask(client, *turns).json()
            usage = answer["usage"]
            if turn:
                hits.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
            turns += [answer["choices"][0]["message"]["content"] or "-", f"And then, {turn}?"]
    assert sum(hit > 0.5 for hit in hits) >= 0.9 * len(hits)


def test_killing_one_server_loses_no_later_request(fleet: tuple[httpx.Client, subprocess.Popen[bytes]]) -> None:
    client, process = fleet
    servers = [child for child in psutil.Process(process.pid).children() if "radixrt serve" in " ".join(child.cmdline())]
    assert len(servers) == 2
    os.kill(servers[0].pid, signal.SIGKILL)
    statuses = [ask(client, f"question {number} " * 5).status_code for number in range(12)]
    assert statuses == [200] * 12
