"""A backend whose answers are written down, for tests of programs without a model."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from radixlang.backends.base import Plain, Program, Request
from radixlang.piece import Answer, Piece, text_of
from radixlang.select import Score
from radixrt import RequestError

Script = Mapping[str, str | Sequence[str] | Exception] | Callable[[Request], str] | Iterable[str]


class ScriptedBackend(Plain):
    """Answers from a script: a mapping from variable to text (a list is used up one by one, an exception is raised), a function of
    the request, or texts in the order they are asked for.

    ``delay`` seconds pass before each answer.  ``likes``: choices that score best.  ``requests`` are all
    generations asked for, ``prompts`` their texts; ``peak`` is how many were open at once.  A text is cut at stop
    strings as a model's would be, and must be one that the request's regex allows.
    """

    def __init__(self, script: Script = (), *, likes: Sequence[str] = (), delay: float = 0.0) -> None:
        self._script = {name: list(value) if isinstance(value, list | tuple) else value for name, value in script.items()} if isinstance(
            script, Mapping) else script if callable(script) else iter(script)  # fmt: skip
        self._likes = likes
        self._delay = delay
        self._open = 0
        self.peak = 0
        self.requests: list[Request] = []
        self.prompts: list[str] = []
        self.ended: list[Program] = []

    async def generate(self, request: Request) -> list[Answer]:
        self.requests.append(request)
        prompt = text_of(request.before)
        self.prompts.append(prompt)
        self._open += 1
        self.peak = max(self.peak, self._open)
        try:
            await asyncio.sleep(self._delay)
            return [self._answer(request, prompt) for _ in range(request.sampling.n or 1)]
        finally:
            self._open -= 1

    def _answer(self, request: Request, prompt: str) -> Answer:
        text = self._next(request)
        matched: str | None = None
        sampling = request.sampling
        cuts = [(at, stop) for stop in sampling.stops if (at := text.find(stop)) >= 0]
        if sampling.stop_regex is not None and (found := re.search(sampling.stop_regex, text)):
            cuts.append((found.start(), found[0]))
        if cuts:
            end, matched = min(cuts)
            text = text[:end]
        if sampling.regex is not None and not re.fullmatch(sampling.regex, text):
            raise RequestError(f"The script's {text!r} does not match {sampling.regex!r}.")
        if request.on_text is not None:
            for word in re.findall(r"\s*\S+|\s+", text):
                request.on_text(word)
        words = len(text.split())
        reason: dict[str, Any] = {"type": "stop", "matched": matched}
        meta = {"prompt_tokens": len(prompt.split()), "cached_tokens": 0, "completion_tokens": words, "finish_reason": reason}
        return Answer(text, meta=meta)

    def _next(self, request: Request) -> str:
        name = request.piece.name if request.piece is not None else None
        if callable(self._script):
            return self._script(request)
        if isinstance(self._script, dict):
            value = self._script.get(name or "")
            if isinstance(value, list):
                value = value.pop(0) if value else None
            if isinstance(value, Exception):
                raise value
            if value is None:
                raise RequestError(f"The script has no (more) text for {name!r}.")
            return str(value)
        text = next(self._script, None)
        if text is None:
            raise RequestError(f"The script is over, and {name!r} has no text.")
        return text

    async def score(self, before: Piece | None, choices: Sequence[str], program: Program, *, unconditional: bool) -> list[Score]:
        self.prompts.append(text_of(before))
        await asyncio.sleep(self._delay)
        likely = [math.log(0.9 if choice in self._likes else 0.1) for choice in choices]
        return [Score(choice, (i,), (value,), (0.0,)) for i, (choice, value) in enumerate(zip(choices, likely, strict=True))]

    async def end(self, program: Program) -> None:
        self.ended.append(program)

