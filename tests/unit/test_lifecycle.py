"""What a server refuses before it starts."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server.lifecycle import bind, check


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"host": "::"}, "--api-key"),
        ({"host": "example.org"}, "--api-key"),
        ({"api_key": (" ",)}, "empty"),
        ({"port": 70000}, "--port"),
        ({"port": -1}, "--port"),
        ({"max_body_bytes": 0}, "--max-body-bytes"),
        ({"drain_timeout": -1.0}, "--drain-timeout"),
        ({"max_choices": 0}, "--max-choices"),
        ({"max_streams_per_key": 0}, "--max-streams-per-key"),
        ({"max_top_logprobs": 21}, "--max-top-logprobs"),
        ({"stall_timeout": float("inf")}, "--stall-timeout"),
        ({"body_timeout": 0.0}, "--body-timeout"),
        ({"body_timeout": float("nan")}, "--body-timeout"),
    ],
    ids=str,
)
def test_setting_that_cannot_work_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        check(ServerConfig(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"host": "localhost"},
        {"host": "127.0.0.7"},
        {"host": "::1"},
        {"host": "0.0.0.0", "api_key": ("k",)},
        {"host": "0.0.0.0", "allow_remote_without_api_key": True},
    ],
    ids=str,
)
def test_loopback_or_a_key_or_the_explicit_flag_will_do(options: dict[str, Any]) -> None:
    check(ServerConfig(**options))


def test_port_that_is_taken_is_a_config_error() -> None:
    with closing(bind(ServerConfig(port=0))) as first:
        port = first.getsockname()[1]
        assert port > 0
        with pytest.raises(ConfigError, match=str(port)):
            bind(ServerConfig(port=port))


def test_host_that_does_not_exist_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--host"):
        bind(ServerConfig(host="no.such.host.invalid"))
