"""The peers suite against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import run


def test_the_suite_meets_a_real_server(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.machine.GEMM_SECONDS", 0.01)
    path = tmp_path / "peers.json"
    arguments = ["--base-url", server.url, "--tokenizer", "toy", "--scale", "0.02", "--repeat", "1", "--warm-up", "0", "--json", str(path)]
    assert run.main([*arguments, "--workloads", "W2,W3,W4,W5", "--plot", str(tmp_path / "peers.png")]) == 0
    report = json.loads(path.read_text())
    medians = {result["workload"]: result["median"] for result in report["results"]}
    assert [medians[name]["requests"] for name in ("W2", "W3", "W4", "W5")] == [1, 64, 128, 84]
    assert not any(median["errors"] or median["inexact_prompts"] for median in medians.values())
    assert medians["W2"]["prompt_tokens"] == round(2048 * 0.02)
    assert min(medians["W4"]["cached_percent"], medians["W5"]["cached_percent"]) > 80 > 60 > medians["W3"]["cached_percent"]
    assert medians["W3"]["server_pss_mb"] > 10 and report["machine"]["memory_gb_s"] > 0
    assert (tmp_path / "peers.png").stat().st_size > 1000
    assert server.is_idle()


def test_requests_that_fail_are_counted_and_the_script_says_so(server: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("peers.machine.GEMM_SECONDS", 0.01)
    arguments = ["--base-url", server.url, "--tokenizer", "toy", "--repeat", "1", "--warm-up", "0"]
    assert run.main([*arguments, "--workloads", "W2b", "--scale", "1.3"]) == 1  # longer than the toy's context
    assert "1 requests failed" in capsys.readouterr().out
    assert run.main(["--base-url", "http://127.0.0.1:9", "--tokenizer", "toy"]) == 2
