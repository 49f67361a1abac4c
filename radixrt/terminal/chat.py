"""``radixrt chat``: a conversation in the terminal, with the model in this process or with a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rich.console import Console

from radixrt.engine.engine import Engine
from radixrt.errors import RadixrtError
from radixrt.terminal.remote import Remote

HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /exit leaves; an empty line is ignored."

Messages = list[dict[str, str]]


class Partner(Protocol):
    """Whoever answers: yields pieces of text; ``usage`` then says (prompt tokens, cached tokens, output tokens)."""

    usage: tuple[int, int, int]

    def answer(self, messages: Messages) -> Iterator[str]: ...


class EmbeddedPartner:
    """The model in this process."""

    def __init__(self, engine: Engine, sampling: dict[str, Any]) -> None:
        self._engine = engine
        self._sampling = sampling
        self.usage = (0, 0, 0)

    def answer(self, messages: Messages) -> Iterator[str]:
        shown = 0
        for output in self._engine.chat(messages, self._sampling, stream=True):
            yield output["text"][shown:]
            shown = len(output["text"])
            meta = output["meta_info"]
            self.usage = (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"])


class RemotePartner:
    """A running server."""

    def __init__(self, remote: Remote, sampling: dict[str, Any]) -> None:
        self._remote = remote
        self._body = {("max_tokens" if name == "max_new_tokens" else name): value for name, value in sampling.items()}
        self.usage = (0, 0, 0)

    def answer(self, messages: Messages) -> Iterator[str]:
        body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **self._body}
        for event in self._remote.events("/v1/chat/completions", body):
            if event.get("usage"):
                usage = event["usage"]
                self.usage = (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def converse(partner: Partner, console: Console, read: Callable[[str], str], *, system: str = "") -> None:
    """Talk until the end of input or /exit.  An error ends one answer, not the conversation."""
    console.print(HELP, style="dim")
    messages: Messages = _opening(system)
    while True:
        try:
            line = read("> ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            messages = _opening(system)
        elif line.startswith("/system"):
            system = line.removeprefix("/system").strip()
            messages = _opening(system)
        elif line.startswith("/"):
            console.print(HELP, style="dim")
        elif line:
            messages.append({"role": "user", "content": line})
            said = _show(partner, console, messages)
            if said is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": said})


def _show(partner: Partner, console: Console, messages: Messages) -> str | None:
    """Print an answer as it comes and return it; None when there was none."""
    said = ""
    try:
        for piece in partner.answer(messages):
            said += piece
            console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
    except RadixrtError as error:
        console.print(f"error: {error}", markup=False, highlight=False)
        return said or None
    except KeyboardInterrupt:
        console.print()
        return said or None
    prompt, cached, output = partner.usage
    console.print(f"\n[{cached} of {prompt} prompt tokens from the cache, {output} generated]", style="dim", markup=False, highlight=False)
    return said


def _opening(system: str) -> Messages:
    return [{"role": "system", "content": system}] if system else []
