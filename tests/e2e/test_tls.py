"""HTTPS with the certificate files that the flags name."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
TEXT = {"model": "toy", "prompt": "abc", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return certificate, key


def test_https_serves_whole_and_streamed_answers_to_whom_the_certificate_convinces(
    files: tuple[Path, Path], start_server: Callable[..., Any]
) -> None:
    certificate, key = files
    trusting = ssl.create_default_context(cafile=str(certificate))
    server = start_server("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), verify=trusting)
    assert server.url.startswith("https://")
    server.wait_ready()
    whole = server.http.post("/v1/completions", json=TEXT).json()["choices"][0]["text"]
    with server.http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert whole and lines[-1] == "data: [DONE]"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE"):
        httpx.get(f"{server.url}/health", trust_env=False)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url.replace('https', 'http')}/health", trust_env=False)
    assert server.http.get("/health").status_code == 200
