"""``radixrt doctor``: checks of this machine and installation, and of a running server; each with what to do about it."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import psutil
from rich.console import Console

from radixrt.config import EngineConfig
from radixrt.errors import ConfigError, RadixrtError
from radixrt.terminal.remote import Remote
from radixrt.text.tokenizer import load_tokenizer
from radixrt.weights.resolve import resolve_model

MIN_FILES = 4096
MIN_MEMORY = 2 << 30
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(NamedTuple):
    """What a check saw; ``advice`` says what to do unless all is well."""

    name: str
    grade: Literal["ok", "warn", "fail"]
    seen: str
    advice: str = ""


def check_python() -> Finding:
    seen = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", "ok" if fits else "fail", seen, "" if fits else "use Python 3.11, 3.12 or 3.13")


def check_kernels() -> Finding:
    from radixrt_kernels import ops

    if ops.NATIVE:
        return Finding("kernels", "ok", "compiled")
    return Finding("kernels", "warn", "not compiled: everything works, slowly", "install a C++ compiler and run scripts/install again")


def check_torch() -> Finding:
    import torch

    device = "CUDA" if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return Finding("torch", "ok", f"{torch.__version__}, {device}")


def check_memory() -> Finding:
    free = psutil.virtual_memory().available
    seen = f"{free / (1 << 30):.1f} GiB free"
    if free >= MIN_MEMORY:
        return Finding("memory", "ok", seen)
    return Finding("memory", "warn", seen, "give --max-total-tokens a small value")


def check_files() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    fits = limit == resource.RLIM_INFINITY or limit >= MIN_FILES
    advice = "" if fits else f"raise it for many connections: ulimit -n {MIN_FILES}"
    return Finding("open files", "ok" if fits else "warn", f"limit {limit}", advice)


def check_cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0]
    busy = load > cores
    return Finding("cores", "warn" if busy else "ok", f"{cores}, load {load:.1f}", "something else is using this machine" if busy else "")


def check_model(config: EngineConfig) -> Finding:
    model = config.model
    try:
        files = resolve_model(
            model.model_path, tokenizer_path=model.tokenizer_path, revision=model.revision, load_format=model.load_format
        )
        tokenizer = load_tokenizer(files.tokenizer)
    except ConfigError as error:
        return Finding("model", "fail", model.model_path, str(error))
    text = "Grüße, 世界! {}"
    if tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)).strip() != text:
        return Finding("model", "warn", model.model_path, "its tokenizer does not give a text back as it was")
    return Finding("model", "ok", f"{model.model_path}: {files.kind}, {tokenizer.vocab_size:,} tokens")


def check_port(host: str, port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding("port", "warn", f"{host}:{port}: {error.strerror or error}", "a server may run there already; or give --port")
    return Finding("port", "ok", f"{host}:{port} is free")


def check_server(remote: Remote) -> Iterator[Finding]:
    """Ask a running server what clients ask."""

    def tried(name: str, check: Callable[[], str]) -> Finding:
        try:
            return Finding(name, "ok", check())
        except (RadixrtError, KeyError, TypeError, ValueError, AssertionError) as error:
            return Finding(name, "fail", str(error) or type(error).__name__, f"look at the log of {remote.url}")

    messages = [{"role": "user", "content": "Say hello to a radix tree, which is a kind of tree."}]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0}

    def health() -> str:
        remote.call("/health")
        return remote.url

    def models() -> str:
        return ", ".join(model["id"] for model in remote.call("/v1/models")["data"])

    def chat() -> str:
        return repr(remote.call("/v1/chat/completions", body)["choices"][0]["message"]["content"])

    def stream() -> str:
        whole = remote.call("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        pieces = [choice["delta"].get("content") or "" for event in remote.events("/v1/chat/completions", body | {"stream": True})
                  for choice in event["choices"]]
        assert "".join(pieces) == whole, "a stream says something else than a whole answer"
        return f"{len(pieces)} events"

    def cache() -> str:
        usage = remote.call("/v1/chat/completions", body)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0, "a prompt that was sent before is not in the cache"
        return f"{cached} of {usage['prompt_tokens']} prompt tokens of a repeated prompt"

    for name, check in (("health", health), ("models", models), ("chat", chat), ("stream", stream), ("cache", cache)):
        yield tried(name, check)


def examine(config: EngineConfig, host: str, port: int) -> Iterator[Finding]:
    """Check this machine and installation."""
    yield check_python()
    yield check_torch()
    yield check_kernels()
    yield check_cores()
    yield check_memory()
    yield check_files()
    yield check_model(config)
    yield check_port(host, port)


def report(findings: Iterator[Finding], console: Console) -> int:
    """Print findings as they come; return 1 when one is a failure, else 0."""
    failed = False
    for finding in findings:
        failed |= finding.grade == "fail"
        console.print(f"{finding.grade:>4}", style=STYLES[finding.grade], end="  ")
        console.print(f"{finding.name:<11} {finding.seen}", markup=False, highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"{'':18}{finding.advice}", style="dim", markup=False, highlight=False, soft_wrap=True)
    return int(failed)
