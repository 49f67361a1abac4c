"""The page at /ui: what it may load, and what a browser makes of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def rendered(url: str, profile: Path) -> str:
    """The document as headless Chromium has it after some seconds."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--virtual-time-budget=8000",
        "--dump-dom", url,
    ]
    return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.decode()


def test_the_page_loads_nothing_from_elsewhere(server: Any) -> None:
    answer = server.http.get("/ui")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_tree_and_takes_no_markup_from_prompts(server: Any, tmp_path: Path) -> None:
    for text in ("<b>x</b> and more", "plain words of a prompt"):
        assert server.http.post("/v1/completions", json={"prompt": text, "max_tokens": 2}).status_code == 200
    document = rendered(f"{server.url}/ui", tmp_path)
    assert "plain w" in document
    assert "&lt;b&gt;x" in document
    assert "<b>x" not in document
    assert ">ready<" in document


def test_requests_are_listed_with_what_they_wait_for(server: Any) -> None:
    view = server.http.get("/v1/requests").json()
    assert view == {"running": [], "waiting": [], "num_running": 0, "num_waiting": 0}
    body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True, "rid": "long-one"}
    with server.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        (facts,) = server.http.get("/v1/requests").json()["running"]
        assert facts["rid"] == "long-one"
        assert facts["prompt"] == 3
    server.wait_for(server.is_idle, 10)
    for limit in ("0", "1001", "x"):
        assert server.http.get(f"/v1/requests?limit={limit}").status_code == 400


def test_texts_can_be_kept_out_of_the_tree(start_server: Any) -> None:
    server = start_server("--no-cache-text").wait_ready()
    server.http.post("/v1/completions", json={"prompt": "a secret", "max_tokens": 2})
    view = server.http.get("/v1/cache/tree")
    assert view.json()["nodes"]
    assert "secret" not in view.text
    assert not {"text", "first_tokens"} & set(view.json()["nodes"][0])
