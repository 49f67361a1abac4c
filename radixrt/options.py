"""Declaring a configuration field together with what its command-line flag needs."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(
    default: Any, help: str, *, choices: tuple[str, ...] = (), metavar: str = "", aliases: tuple[str, ...] = (), group: str = ""
) -> Any:
    """Declare a configuration field; ``group`` is where help lists its flag, if not under the name of its class."""
    return field(default=default, metadata={"help": help, "choices": choices, "metavar": metavar, "aliases": aliases, "group": group})
