"""The command line: ``radixrt serve | chat | generate | bench | info | doctor | top``.

Flags are generated from the configuration dataclasses.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import radixrt
from radixrt import samplers, settings
from radixrt.bench import flags
from radixrt.config import (
    CacheConfig,
    EngineConfig,
    GrammarConfig,
    Hardware,
    ModelConfig,
    ScheduleConfig,
    ServerConfig,
    flag,
    nearest,
    resolve,
)
from radixrt.errors import ConfigError, RadixrtError
from radixrt.processes import collector_paused
from radixrt.types import SamplingParams

EXIT_FAILURE = 1
EXIT_CONFIG = 2
ENGINE_GROUPS: tuple[type[Any], ...] = (ModelConfig, CacheConfig, ScheduleConfig, GrammarConfig)
ALL_GROUPS: tuple[type[Any], ...] = (ServerConfig, *ENGINE_GROUPS)
SHOWN_PACKAGES = ("torch", "numpy", "tokenizers", "transformers", "gguf", "safetensors", "fastapi", "uvicorn", "pyzmq", "msgspec", "orjson")

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for a mistake in the flags or the configuration, 1 for another failure."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    try:
        command = parser.commands.get(given[0]) if given else None
        if command is not None:
            file = settings.config_file(given)
            values = {} if file is None else settings.read_file(file)
            settings.set_defaults(command, file=values, environment=os.environ, known=parser.commands["serve"])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG
    options, unknown = parser.parse_known_args(given)
    if options.command is None:
        parser.print_help()
        return EXIT_CONFIG
    if unknown:
        chosen: Parser = options.parser
        chosen.error(_unknown(unknown[0], chosen.flags()))
    options.given = given[1:]
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except RadixrtError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 130


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line.

    ``commands``: those that run a model, whose flags a file and the environment can set.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)
        self.commands: dict[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_CONFIG, f"error: {message} (see {self.prog} --help)\n")

    def flags(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)


def build_parser() -> Parser:
    """Build the parser with its commands."""
    parser = Parser(prog="radixrt", description="Serve language models with a shared-prefix KV cache.")
    parser.add_argument("--version", action="version", version=f"radixrt {radixrt.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    serve = commands.add_parser(
        "serve", usage="%(prog)s [flags]", help="serve a model over HTTP", description="Serve a model over HTTP."
    )
    for group in ALL_GROUPS:
        add_options(serve, group)
    serve.set_defaults(run=run_serve, parser=serve)

    generate = commands.add_parser(
        "generate", usage="%(prog)s [flags] PROMPT", help="complete a prompt without a server",
        description="Complete a prompt in this process.",
    )
    generate.add_argument("prompt", help="the text to complete, or - for standard input")
    generate.add_argument("--chat", action="store_true", help="send the prompt as a user's message through the chat template")
    add_sampling(generate)
    for group in ENGINE_GROUPS:
        add_options(generate, group)
    generate.set_defaults(run=run_generate, parser=generate)

    chat = commands.add_parser(
        "chat", usage="%(prog)s [flags]", help="talk to a model in the terminal",
        description="Talk to a model in the terminal: in this process, or at a running server.",
    )
    chat.add_argument("--url", help="talk to the server at this URL instead of loading a model")
    chat.add_argument("--system", default="", metavar="TEXT", help="the system prompt")
    add_sampling(chat)
    for group in ENGINE_GROUPS:
        add_options(chat, group)
    chat.set_defaults(run=run_chat, parser=chat)

    show = commands.add_parser(
        "info", usage="%(prog)s [flags]", help="show versions, hardware and configuration", description="Show what would run here."
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument("--samplers", action="store_true", help="list the samplers in their default order, and leave")
    for group in ALL_GROUPS:
        add_options(show, group)
    show.set_defaults(run=run_info, parser=show)
    doctor = commands.add_parser(
        "doctor", usage="%(prog)s [flags]", help="check this machine, or a running server",
        description="Check this machine and installation, or with --url a running server.",
    )
    doctor.add_argument("--url", help="check the server at this URL")
    for group in ALL_GROUPS:
        add_options(doctor, group)
    doctor.set_defaults(run=run_doctor, parser=doctor)

    top = commands.add_parser(
        "top", usage="%(prog)s [flags]", help="watch a running server", description="Watch the requests and the tree of a running server."
    )
    top.add_argument("--url", default="http://127.0.0.1:30000", help="the server (default: %(default)s)")
    top.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="time between looks (default: 1)")
    top.add_argument("--once", action="store_true", help="look once and leave")
    top.set_defaults(run=run_top, parser=top)
    parser.commands |= {"serve": serve, "generate": generate, "chat": chat, "info": show, "doctor": doctor}
    for command in parser.commands.values():
        command.add_argument("--config", metavar="FILE", help="read flags from a YAML file")
    serve.add_argument("--dump-config", action="store_true", help="print the flags as a file for --config, and leave")
    add_bench(commands.add_parser("bench", help="measure scheduling and cache", description="Measure scheduling and cache."))
    return parser


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of how tokens are chosen."""
    sampling = parser.add_argument_group("sampling")
    defaults = SamplingParams()
    for name, kind in (("max_new_tokens", _count), ("temperature", float), ("top_p", float), ("top_k", int), ("seed", int)):
        default = getattr(defaults, name)
        note = "random" if default is None else default
        sampling.add_argument(flag(name), type=kind, default=default, help=f"default: {note}")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop before this text; may be repeated")


def add_bench(bench: argparse.ArgumentParser) -> None:
    """Add the benchmarks, each with the flags of cache and scheduler."""
    commands = bench.add_subparsers(metavar="BENCHMARK", parser_class=Parser, required=True)
    benchmarks = (
        ("lpm", flags.add_lpm, "[flags]", "hit rates and waits of programs that share prefixes"),
        ("replay", flags.add_replay, "[flags] TRACE", "the same figures for a recorded trace"),
        ("what-if", flags.add_what_if, "[flags] TRACE", "the hit rate of a recorded trace with other pools and policies"),
    )
    for name, add, usage, help in benchmarks:
        parser = commands.add_parser(name, usage=f"%(prog)s {usage}", help=help, description=help[0].upper() + help[1:] + ".")
        add(parser)
        for group in (CacheConfig, ScheduleConfig):
            add_options(parser, group)
        parser.set_defaults(run=run_bench, benchmark=name, parser=parser)


def add_options(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    """Add a group with a flag for every field of a configuration dataclass, and one for each group that its fields name."""
    groups = {"": parser.add_argument_group(_title(kind), (kind.__doc__ or "").partition("\n")[0])}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        names = [flag(field.name), *field.metadata["aliases"]]
        help, named = field.metadata["help"], field.metadata["group"]
        group = groups.get(named) or groups.setdefault(named, parser.add_argument_group(named))
        if hints[field.name] == tuple[str, ...]:
            group.add_argument(
                *names, action=settings.Repeat, dest=field.name, default=field.default, metavar=field.metadata["metavar"], help=help
            )
            continue
        value_type = _value_type(hints[field.name])
        if value_type is bool:
            assert field.default is False, "switches are off by default"
            group.add_argument(*names, action="store_true", dest=field.name, help=help)
            continue
        if field.default is not None and "default:" not in help:
            help += f" (default: {field.default})"
        choices, metavar = field.metadata["choices"], field.metadata["metavar"]
        parse: Callable[[str], Any] = value_type
        if choices:
            parse, metavar = _one_of(choices), "{" + ",".join(choices) + "}"
        elif metavar in ("TOKENS", "BYTES"):
            parse = _count
        group.add_argument(
            *names, dest=field.name, type=parse, default=field.default, metavar=metavar or value_type.__name__.upper(),
            help=help.replace("%", "%%"),
        )


def _title(kind: type[Any]) -> str:
    return kind.__name__.removesuffix("Config").lower()


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Read the engine's configuration from parsed flags."""
    names = [field.name for kind in ENGINE_GROUPS for field in dataclasses.fields(kind)]
    return EngineConfig.of(**{name: getattr(options, name) for name in names if hasattr(options, name)})


def server_config(options: argparse.Namespace) -> ServerConfig:
    """Read the server's configuration from parsed flags."""
    return ServerConfig(**{field.name: getattr(options, field.name) for field in dataclasses.fields(ServerConfig)})


def run_serve(options: argparse.Namespace) -> int:
    if options.dump_config:
        groups = {_title(kind): [field.name for field in dataclasses.fields(kind)] for kind in ALL_GROUPS}
        print(settings.dump(options, groups), end="")
        return 0
    config, engine = server_config(options), engine_config(options)
    if config.dp_size > 1:
        return _run_fleet(options, config)
    from radixrt.engine.client import ProcessClient

    client = ProcessClient()
    # Until the server takes its signals itself, SIGTERM too is to leave no worker and no folder behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        # The worker's imports take longest, so they come first; the server's own run beside them.
        client.spawn()
        with collector_paused():
            from radixrt.server.lifecycle import serve
            from radixrt.server.screen import set_up_logging
        set_up_logging(config.log_level, config.log_format)
        return serve(engine, config, client=client)
    finally:
        client.discard()


def _run_fleet(options: argparse.Namespace, config: ServerConfig) -> int:
    from radixrt.server.fleet import serve_fleet
    from radixrt.server.lifecycle import check
    from radixrt.server.screen import set_up_logging

    set_up_logging(config.log_level, config.log_format)
    check(config)
    return serve_fleet(options.given, config)


def run_generate(options: argparse.Namespace) -> int:
    from radixrt.engine.engine import Engine

    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    params = SamplingParams(
        max_new_tokens=options.max_new_tokens, temperature=options.temperature, top_p=options.top_p, top_k=options.top_k,
        seed=options.seed, stop=tuple(options.stop),
    )
    with Engine(config=engine_config(options)) as engine:
        shown = 0
        if options.chat:
            answers = engine.chat([{"role": "user", "content": prompt}], params, stream=True)
        else:
            answers = engine.generate(prompt, params, stream=True)
        for answer in answers:
            text: str = answer["text"]
            print(text[shown:], end="", flush=True)
            shown = len(text)
        print()
    return 0


def run_chat(options: argparse.Namespace) -> int:
    from rich.console import Console

    from radixrt.engine.engine import Engine
    from radixrt.terminal.chat import EmbeddedPartner, RemotePartner, converse
    from radixrt.terminal.remote import Remote

    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
    sampling = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.stop:
        sampling["stop"] = options.stop
    console = Console()
    if options.url is not None:
        converse(RemotePartner(Remote(options.url), sampling), console, input, system=options.system)
        return 0
    with Engine(config=engine_config(options)) as engine:
        converse(EmbeddedPartner(engine, sampling), console, input, system=options.system)
    return 0


def run_doctor(options: argparse.Namespace) -> int:
    from rich.console import Console

    from radixrt.terminal.doctor import check_server, examine, report
    from radixrt.terminal.remote import Remote

    if options.url is not None:
        return report(check_server(Remote(options.url)), Console())
    return report(examine(engine_config(options), options.host, options.port), Console())


def run_top(options: argparse.Namespace) -> int:
    from rich.console import Console

    from radixrt.terminal.remote import Remote
    from radixrt.terminal.top import watch

    watch(Remote(options.url, timeout=10.0), Console(), interval=max(0.1, options.interval), rounds=1 if options.once else None)
    return 0


def run_info(options: argparse.Namespace) -> int:
    if options.samplers:
        print(json.dumps(samplers.table()) if options.json else "\n".join(samplers.lines()))
        return 0
    from radixrt.runner.kept import kept_weights
    from radixrt_kernels.ops import kernel_facts

    hardware = Hardware.detect()
    resolved = resolve(engine_config(options), hardware)
    server = dataclasses.asdict(server_config(options))
    for name in ("api_key", "admin_api_key"):
        server[name] = "***" if server[name] else None
    report = {
        "versions": {"radixrt": radixrt.__version__, "python": platform.python_version(), **_versions(SHOWN_PACKAGES)},
        "hardware": {"machine": platform.machine(), "system": platform.system(), **dataclasses.asdict(hardware)},
        "kernels": kernel_facts(),
        "weights": kept_weights(resolved.model),
        "server": server,
        **{name: dataclasses.asdict(getattr(resolved, name)) for name in ("model", "cache", "schedule")},
    }
    if options.json:
        print(json.dumps(report))
        return 0
    for title, rows in report.items():
        print(title)
        for name, value in rows.items():
            print(f"  {name:<30} {'-' if value is None else value}")
    return 0


def run_bench(options: argparse.Namespace) -> int:
    from radixrt.bench import command

    benchmarks = {"lpm": command.run_lpm, "replay": command.run_replay, "what-if": command.run_what_if}
    return benchmarks[options.benchmark](options, engine_config(options))


def _value_type(hint: Any) -> type[Any]:
    """The type of a field without its None."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in hint.__args__ if part is not type(None))
    assert isinstance(hint, type)
    return hint


def _count(text: str) -> int:
    """Read a whole number that may end in a unit: 16K is 16,384, 16k is 16,000."""
    number, scale = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        value = float(number) * scale if scale > 1 else int(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 4096, 16K or 2M") from None
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}{nearest(text, choices)}")
        return text

    return read


def _unknown(argument: str, flags: Iterable[str]) -> str:
    name = argument.partition("=")[0]
    return f"unknown flag {name}{nearest(name, flags)}" if name.startswith("-") else f"unexpected argument {name!r}"


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
