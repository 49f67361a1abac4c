"""The command line: flags from dataclasses, readable numbers, one line for a mistake."""

from __future__ import annotations

import argparse
import dataclasses
import json

import pytest

from radixrt import cli
from radixrt.config import EngineConfig, ServerConfig, flag
from radixrt.samplers import DEFAULT_ORDER, NAMES


def parsed(*flags: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(["serve", *flags])


def test_no_flags_give_the_dataclass_defaults() -> None:
    options = parsed()
    assert cli.engine_config(options) == EngineConfig()
    assert cli.server_config(options) == ServerConfig()


def test_every_field_has_a_flag_in_the_help() -> None:
    text = cli.build_parser().parse_args(["serve"]).parser.format_help()
    for kind in (ServerConfig, *cli.ENGINE_GROUPS):
        for field in dataclasses.fields(kind):
            assert flag(field.name) in text
    for title in ("server:", "model:", "cache:", "schedule:"):
        assert title in text


def test_flags_reach_their_group() -> None:
    options = parsed(
        "--model", "toy", "--max-total-tokens", "16K", "--schedule-policy", "lpm", "--disable-radix-cache", "--chunked-prefill-size", "-1",
        "--port", "0", "--api-key", "k", "--mem-fraction-static", "0.25",
    )  # fmt: skip
    config = cli.engine_config(options)
    assert config.model.model_path == "toy"
    assert (config.cache.max_total_tokens, config.cache.disable_radix_cache, config.cache.mem_fraction_static) == (16384, True, 0.25)
    assert (config.schedule.schedule_policy, config.schedule.chunked_prefill_size) == ("lpm", -1)
    assert (cli.server_config(options).port, cli.server_config(options).api_key) == (0, ("k",))


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("-1", -1), ("2k", 2000), ("2K", 2048), ("1.5K", 1536), ("1M", 1 << 20)])
def test_numbers_of_tokens_may_have_a_unit(text: str, value: int) -> None:
    assert parsed("--context-length", text).context_length == value


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--schedul-policy", "lpm"], "did you mean '--schedule-policy'"),
        (["serve", "--schedule-policy", "lpn"], "did you mean 'lpm'"),
        (["serve", "--max-total-tokens", "many"], "16K"),
        (["serve", "--max-total-tokens", "0.0001K"], "whole number"),
        (["serve", "extra"], "unexpected argument"),
        (["serve", "--model-pat", "toy"], "did you mean '--model-path'"),
    ],
)
def test_mistake_is_one_line_and_code_two(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_combination_that_cannot_work_is_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--disable-radix-cache", "--schedule-policy", "lpm"]) == 2
    assert "lpm" in capsys.readouterr().err


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "serve" in capsys.readouterr().out


def test_info_resolves_and_hides_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json", "--api-key", "s3cret", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out)
    assert report["model"]["dtype"] == "float32"
    assert report["versions"]["torch"]
    assert "s3cret" not in out


def test_info_lists_every_sampler_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--samplers", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["order"] == list(DEFAULT_ORDER)
    assert cli.main(["info", "--samplers"]) == 0
    text = capsys.readouterr().out
    assert [text.index(f" {name}: {link['source']}") for name, link in report["samplers"].items()] == sorted(
        text.index(f" {name}: {link['source']}") for name, link in report["samplers"].items()
    )
    assert all(name in text for name in (*NAMES, "temperature", "top_p", "frequency_penalty") if name != "samplers")


def test_generate_completes_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model-path", "toy", "--max-new-tokens", "8", "--temperature", "0", "--max-total-tokens", "256"]
    assert cli.main(["generate", "abc", *flags]) == 0
    first = capsys.readouterr().out
    assert len(first) > 1
    assert cli.main(["generate", "abc", *flags]) == 0
    assert capsys.readouterr().out == first
