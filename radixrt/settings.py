"""Flags from elsewhere: a YAML file (``--config``) and the environment (``RADIXRT_PORT`` for ``--port``), and back (``--dump-config``).

A flag on the command line comes first, then the environment, then the file, then the built-in default.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from radixrt.config import flag, nearest
from radixrt.errors import ConfigError

PREFIX = "RADIXRT_"
MAX_FILE_BYTES = 1 << 20
# What the project reads from the environment that is no flag.
NOT_FLAGS = frozenset({"RADIXRT_PYTHON", "RADIXRT_NO_NATIVE", "RADIXRT_CPU_ISA", "RADIXRT_NUM_THREADS"})
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class Repeat(argparse.Action):
    """A flag that may be given several times; what the command line says replaces what came from elsewhere."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, (values,) if before is self.default else (*before, values))


def config_file(arguments: Sequence[str]) -> str | None:
    """Return what ``--config`` names on a command line."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    path: str | None = finder.parse_known_args(list(arguments))[0].config
    return path


def read_file(path: str) -> dict[str, Any]:
    """Read a file of flags: ``schedule-policy: lpm``, or with underscores; sections are for the reader's eyes only.

    Raises ConfigError.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(f"--config {path}: larger than {MAX_FILE_BYTES} bytes")
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {path} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} must hold 'flag: value' lines")
    values: dict[str, Any] = {}
    for name, value in content.items():
        values |= value if isinstance(value, dict) else {name: value}
    return {str(name).removeprefix("--").replace("-", "_"): value for name, value in values.items()}


def read_environment(environment: Mapping[str, str], dests: Sequence[str]) -> dict[str, Any]:
    """Return the flags that the environment sets.  Raises ConfigError for a name that is close to a flag's and is none."""
    values = {}
    for name, value in environment.items():
        if name.startswith(PREFIX) and name not in NOT_FLAGS:
            dest = name.removeprefix(PREFIX).lower()
            if dest in dests:
                values[dest] = value
            elif hint := nearest(name, [PREFIX + known.upper() for known in dests]):
                raise ConfigError(f"unknown setting {name} in the environment{hint}")
    return values


def set_defaults(
    parser: argparse.ArgumentParser, *, file: Mapping[str, Any], environment: Mapping[str, str], known: argparse.ArgumentParser
) -> None:
    """Make what file and environment say the defaults of a command's flags.

    ``known`` has all flags there are: one file serves every command, each of which takes what it has.  Raises ConfigError.
    """
    names = _names(known) | _names(parser)
    actions = {action.dest: action for action in parser._actions if action.option_strings}
    given: dict[str, tuple[str, Any]] = {}
    for name, value in file.items():
        if name not in names:
            raise ConfigError(f"unknown setting {name!r} in the file{nearest(name, names)}")
        given[names[name]] = (f"{flag(name)} in the file", value)
    for dest, value in read_environment(environment, list(names.values())).items():
        given[dest] = (f"{PREFIX}{dest.upper()}", value)
    for dest, (where, value) in given.items():
        if dest in actions:
            actions[dest].default = _converted(actions[dest], value, where)


def _names(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Every spelling of a parser's flags, with the field it sets."""
    return {
        name.removeprefix("--").replace("-", "_"): action.dest
        for action in parser._actions for name in action.option_strings if action.dest not in ("help", "config", "dump_config")
    }


def dump(options: argparse.Namespace, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the flags of a run as a file that ``--config`` reads; secrets are left out."""
    sections: dict[str, dict[str, Any]] = {}
    for title, names in groups.items():
        section = {}
        for name in names:
            value = getattr(options, name)
            if "api_key" not in name or name == "allow_remote_without_api_key":
                section[name.replace("_", "-")] = list(value) if isinstance(value, tuple) else value
        sections[title] = section
    text: str = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)
    return text


def _converted(action: argparse.Action, value: Any, where: str) -> Any:
    """Return a value as the command line would have made it."""
    if isinstance(action, Repeat):
        items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ConfigError(f"{where}: takes a list, got {value!r}")
        return tuple(str(item) for item in items if item != "")
    if action.nargs == 0:
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise ConfigError(f"{where}: takes true or false, got {value!r}")
        return text in _TRUE
    if value is None:
        return action.default
    if isinstance(value, bool | dict | list):
        raise ConfigError(f"{where}: takes one value, got {value!r}")
    try:
        return action.type(str(value)) if callable(action.type) else str(value)
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
