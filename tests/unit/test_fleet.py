"""The command lines of a fleet, and what happens to a server that dies."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server import fleet, lifecycle


def test_the_gateway_gets_the_public_address_and_the_servers() -> None:
    command = fleet.gateway_command(ServerConfig(host="::1", port=5, api_key=("k",), log_level="warning"), ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    assert command[command.index("--worker-urls") + 1 :][:2] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    for flag, value in (("--host", "::1"), ("--port", "5"), ("--api-key", "k"), ("--log-level", "warn")):
        assert command[command.index(flag) + 1] == value


def test_ports_are_free_and_different() -> None:
    ports = fleet.free_ports(20)
    assert len(set(ports)) == 20


@pytest.mark.parametrize("options", [{"dp_size": 0}, {"dp_size": 2, "port": 0}])
def test_what_cannot_be_a_fleet_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--dp-size"):
        lifecycle.check(ServerConfig(**options))


def test_a_server_that_dies_is_started_again_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "RESTART_DELAYS", (0.0, 0.0))
    member = fleet.Member([], 1)
    member._command = [sys.executable, "-c", "raise SystemExit(3)"]
    member.start()
    starts = 1
    for _ in range(20):
        assert member.process is not None
        before = member.process
        before.wait(20)
        if not member.look_after():
            break
        member.look_after()
        starts += member.process is not before
    assert starts == 3
