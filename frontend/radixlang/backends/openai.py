"""Any server with OpenAI's routes as a backend: text through /completions, roles through /chat/completions.

Each request is a round trip that pays for its whole prompt again.  Programs with ``num_api_spec_tokens`` therefore ask
for more than the first generation needs, and take the next ones from what is left over as long as that agrees with the text
the program says in between.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from radixlang.backends.base import Plain, Request
from radixlang.backends.client import JsonClient
from radixlang.options import DEFAULT_MAX_TOKENS, Sampling
from radixlang.piece import Answer, Piece, Turn, messages_of, text_of
from radixrt import RequestError

MAX_CHAT_TRIES = 3
_PLAIN = ("temperature", "top_p", "n", "frequency_penalty", "presence_penalty", "seed")
_EXTENDED = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "regex", "ebnf")


@dataclass(frozen=True, slots=True)
class Surplus:
    """Text that was written beyond a generation.  ``complete``: the model ended there by itself."""

    text: str
    complete: bool


class OpenAIBackend(Plain):
    """Runs programs at a provider or server.

    ``model``: its name there.  ``api_key``: default, the environment's OPENAI_API_KEY.  ``extended``: the server takes the
    sampling parameters that OpenAI's does not have, and continues the last message of a chat (radixrt, vLLM and SGLang do).
    """

    def __init__(
        self, model: str = "default", *, base_url: str = "https://api.openai.com/v1", api_key: str | None = None, extended: bool = False,
        transport: Any = None,
    ) -> None:  # fmt: skip
        key = api_key or os.environ.get("OPENAI_API_KEY", "")
        self._client = JsonClient(base_url, {"Authorization": f"Bearer {key}"} if key else {}, transport=transport)
        self._model = model
        self._extended = extended
        self.num_requests = 0

    async def generate(self, request: Request) -> list[Answer]:
        spec, sampling = request.program.num_api_spec_tokens, request.sampling
        speculates = spec is not None and (sampling.n or 1) == 1
        if request.before is not None and request.before.chat:
            turn = request.piece.turn if request.piece is not None else None
            if speculates and turn is not None:
                return [await self._from_turn(request, turn)]
            return await self._chat(request)
        if speculates and sampling.stops:
            assert spec is not None
            return [await self._speculated(request, spec)]
        return await self._call("completions", {"prompt": text_of(request.before)}, sampling, request.on_text)

    async def _speculated(self, request: Request, spec: int) -> Answer:
        stops = request.sampling.stops
        ready = _left_over(request.before)
        if ready is not None:
            text, left = cut(ready.text, stops)
            if left or ready.complete:
                _tell(request, text)
                return Answer(text, meta=_free_meta(), state=Surplus(left, ready.complete))
        wanted = _lengthened(request.sampling, spec)
        (answer,) = await self._call("completions", {"prompt": text_of(request.before)}, wanted, None)
        text, left = cut(answer.text, stops)
        _tell(request, text)
        return Answer(text, meta=answer.meta, state=Surplus(left, answer.meta["finish_reason"]["type"] == "stop"))

    async def _from_turn(self, request: Request, turn: Turn) -> Answer:
        """Take a generation out of a whole message, which is asked for when its first generation is."""
        await asyncio.wrap_future(turn.closed)
        if turn.results is None:
            turn.results = asyncio.ensure_future(self._whole_turn(request, turn))
        texts, meta = await asyncio.shield(turn.results)
        text = texts[id(request.piece)]
        first = next(piece for piece in turn.pieces if piece.kind == "gen")
        _tell(request, text)
        return Answer(text, meta=meta if first is request.piece else _free_meta())

    async def _whole_turn(self, request: Request, turn: Turn) -> tuple[dict[int, str], dict[str, Any]]:
        pieces = [piece for piece in turn.pieces if piece.kind in ("text", "gen")]
        gens = [piece for piece in pieces if piece.kind == "gen"]
        options = {id(piece): piece.sampling or request.sampling for piece in gens}
        at: Piece | None = request.before
        while at is not None and at.kind != "begin":
            at = at.before
        messages = messages_of(at.before if at is not None else None)
        length = sum(options[id(piece)].max_tokens or DEFAULT_MAX_TOKENS for piece in gens)
        alone = len(pieces) == 1
        wanted = request.sampling if alone else _lengthened(request.sampling, request.program.num_api_spec_tokens or 0, length)
        said = ""
        for _ in range(MAX_CHAT_TRIES):
            (answer,) = await self._call("chat/completions", {"messages": messages}, wanted, None)
            said = answer.text
            texts = {id(gens[0]): said} if alone else match(said, pieces, {key: value.stops for key, value in options.items()})
            if texts is not None:
                return texts, answer.meta
        raise RequestError(f"In {MAX_CHAT_TRIES} tries no message had the form the program gives it; the last one was {said[:200]!r}.")

    async def _chat(self, request: Request) -> list[Answer]:
        messages = messages_of(request.before)
        extra: dict[str, Any] = {}
        if messages[-1]["content"]:
            if not self._extended:
                raise RequestError(
                    "This API cannot go on with a message that was begun. Let gen stand alone in its message, or give the program "
                    "num_api_spec_tokens, or the backend extended=True if its server takes continue_final_message.",
                    code="unsupported_parameter",
                )
            extra = {"continue_final_message": True, "add_generation_prompt": False}
        else:
            messages.pop()
        return await self._call("chat/completions", {"messages": messages, **extra}, request.sampling, request.on_text)

    async def _call(self, route: str, body: dict[str, Any], sampling: Sampling, on_text: Callable[[str], None] | None) -> list[Answer]:
        self.num_requests += 1
        body = {"model": self._model, **body, **self._parameters(sampling, chat="messages" in body)}
        if on_text is not None and (sampling.n or 1) == 1:
            return [await self._streamed(route, body, on_text)]
        reply = await self._client.post(route, body)
        usage = reply.get("usage") or {}
        return [
            Answer(_content(choice), meta=_meta(choice.get("finish_reason"), usage if i == 0 else {}))
            for i, choice in enumerate(sorted(reply["choices"], key=lambda choice: choice.get("index", 0)))
        ]

    async def _streamed(self, route: str, body: dict[str, Any], on_text: Callable[[str], None]) -> Answer:
        usage: dict[str, Any] = {}
        text, reason = "", None
        async for event in self._client.events(route, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                delta = _content(choice)
                text += delta
                reason = choice.get("finish_reason") or reason
                if delta:
                    on_text(delta)
        return Answer(text, meta=_meta(reason, usage))

    def _parameters(self, sampling: Sampling, *, chat: bool) -> dict[str, Any]:
        given = sampling.given()
        allowed = _PLAIN + (_EXTENDED if self._extended else ())
        unknown = given.keys() - {*allowed, "max_tokens", "stop", "json_schema", "logprobs", "top_logprobs"}
        if unknown:
            raise RequestError(f"This API does not take {', '.join(sorted(unknown))}.", param=min(unknown), code="unsupported_parameter")
        body = {name: given[name] for name in allowed if name in given}
        body["max_tokens"] = given.get("max_tokens", DEFAULT_MAX_TOKENS)
        if sampling.stops:
            body["stop"] = list(sampling.stops)
        if sampling.json_schema is not None:
            schema = {"name": "answer", "schema": json.loads(sampling.json_schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


def cut(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Return the text before the first stop string, and the rest from there; all of it and nothing when there is none."""
    end = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    return text[:end], text[end:]


def match(text: str, pieces: Sequence[Piece], stops: dict[int, tuple[str, ...]]) -> dict[int, str] | None:
    """Read a message as the pieces of a program: what each generation would be, or None when it says something else."""
    found: dict[int, str] = {}
    for i, piece in enumerate(pieces):
        if piece.kind == "text":
            if not text.startswith(piece.text):
                return None
            text = text[len(piece.text) :]
            continue
        following = pieces[i + 1] if i + 1 < len(pieces) else None
        ends = stops[id(piece)] + ((following.text,) if following is not None and following.kind == "text" else ())
        found[id(piece)], text = cut(text, ends)
    return found


def _left_over(before: Piece | None) -> Surplus | None:
    """What a generation before left over, if the program goes on as it does."""
    at = before
    while at is not None and not isinstance(at.state, Surplus):
        at = at.before
    if at is None:
        return None
    said = text_of(before, at)
    text = at.state.text
    return Surplus(text[len(said) :], at.state.complete) if text.startswith(said) else None


def _lengthened(sampling: Sampling, spec: int, length: int | None = None) -> Sampling:
    given = sampling.given()
    given.pop("stop", None)
    given["max_tokens"] = (length or given.get("max_tokens", DEFAULT_MAX_TOKENS)) + spec
    return Sampling(**given)


def _tell(request: Request, text: str) -> None:
    if request.on_text is not None and text:
        request.on_text(text)


def _content(choice: dict[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("content") or part.get("text") or ""


def _meta(reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details") or {}
    return {
        "finish_reason": {"type": reason or "stop"}, "prompt_tokens": usage.get("prompt_tokens", 0),
        "cached_tokens": details.get("cached_tokens") or 0, "completion_tokens": usage.get("completion_tokens", 0),
    }  # fmt: skip


def _free_meta() -> dict[str, Any]:
    """Of a generation that needed no request."""
    return {**_meta("stop", {}), "speculated": True}

