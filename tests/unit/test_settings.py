"""Flags from a file and the environment, and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from radixrt import cli, settings
from radixrt.config import EngineConfig, ServerConfig
from radixrt.errors import ConfigError

FILE = """
server:
  port: 1234
  served-model-name: [one, two]
  log_requests: true
schedule_policy: fcfs
max-total-tokens: 16K
"""


def configs(arguments: list[str], environment: dict[str, str], file: str | None = None) -> tuple[ServerConfig, EngineConfig]:
    parser = cli.build_parser()
    values = {} if file is None else settings.read_file(file)
    settings.set_defaults(parser.commands["serve"], file=values, environment=environment, known=parser.commands["serve"])
    options = parser.parse_args(["serve", *arguments])
    return cli.server_config(options), cli.engine_config(options)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "radixrt.yaml"
    path.write_text(FILE)
    return str(path)


def test_flag_beats_environment_beats_file_beats_default(file: str) -> None:
    environment = {"RADIXRT_PORT": "2", "RADIXRT_SCHEDULE_POLICY": "hrrn", "RADIXRT_API_KEY": "a, b", "HOME": "/x"}
    server, engine = configs(["--schedule-policy", "lof", "--served-model-name", "mine"], environment, file)
    assert (server.port, server.log_requests, server.served_model_name, server.api_key) == (2, True, ("mine",), ("a", "b"))
    assert (engine.schedule.schedule_policy, engine.cache.max_total_tokens) == ("lof", 16384)
    assert server.host == ServerConfig().host


def test_repeated_flags_add_up() -> None:
    server, _ = configs(["--api-key", "a", "--api-key", "b"], {"RADIXRT_API_KEY": "c"})
    assert server.api_key == ("a", "b")


@pytest.mark.parametrize(
    ("environment", "content", "expected"),
    [
        ({"RADIXRT_PROT": "1"}, "", "RADIXRT_PORT"),
        ({"RADIXRT_PORT": "many"}, "", "RADIXRT_PORT"),
        ({"RADIXRT_LOG_REQUESTS": "maybe"}, "", "true or false"),
        ({}, "prot: 1", "did you mean 'port'"),
        ({}, "port: [1]", "one value"),
        ({}, "api-key: 3", "a list"),
        ({}, "schedule-policy: lpn", "did you mean 'lpm'"),
        ({}, "- a\n- b", "flag: value"),
        ({}, "a: [", "not YAML"),
        ({}, "x: !!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_mistakes_name_what_was_meant(environment: dict[str, str], content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=expected.replace("?", r"\?")):
        configs([], environment, str(path))


def test_a_missing_file_and_a_mistake_in_it_are_one_line_and_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--config", "/no/such/file"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_dumped_is_read_back(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--dump-config", "--config", file, "--host", "::1", "--api-key", "secret"]) == 0
    text = capsys.readouterr().out
    assert "secret" not in text
    assert set(yaml.safe_load(text)) == {"server", "model", "cache", "schedule", "grammar"}
    dumped = tmp_path / "dumped.yaml"
    dumped.write_text(text)
    assert configs([], {}, str(dumped)) == configs(["--host", "::1"], {}, file)


def test_one_file_serves_every_command(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json", "--config", file]) == 0
    assert '"schedule_policy": "fcfs"' in capsys.readouterr().out
    parser = cli.build_parser()
    settings.set_defaults(parser.commands["generate"], file=settings.read_file(file), environment={}, known=parser.commands["serve"])
    assert cli.engine_config(parser.parse_args(["generate", "hello"])).schedule.schedule_policy == "fcfs"


def test_what_the_project_reads_besides_flags_is_no_mistake() -> None:
    root = Path(settings.__file__).parents[1]
    files = [*root.glob("radixrt_kernels/*.py"), *root.glob("radixrt_kernels/csrc/**/*.cpp"), *root.glob("radixrt/**/*.py")]
    read = {name for path in files for name in re.findall(r"(?:getenv\(|environ\.get\()\"(RADIXRT_\w+)\"", path.read_text())}
    assert "RADIXRT_NO_NATIVE" in read
    assert configs([], dict.fromkeys(read - {"RADIXRT_API_KEY"}, "1")) == configs([], {})
