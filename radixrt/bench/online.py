"""A workload against a server, over HTTP: radixrt and SGLang with token ids, any OpenAI-compatible one with text."""

from __future__ import annotations

import asyncio
import json
import string
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from radixrt.bench.figures import Record, Run
from radixrt.bench.program import Player, Started, Workload
from radixrt.errors import ConfigError, RadixrtError

CONNECT_SECONDS = 10.0
LETTERS = string.ascii_lowercase


@dataclass(slots=True)
class Answer:
    """What came back of one call; ``first_token`` in seconds of the monotonic clock."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    first_token: float | None = None
    num_prompt: int = 0
    cached: int = 0


class Api(Protocol):
    """One way to ask a server."""

    path: str

    def body(self, started: Started, model: str) -> dict[str, Any]:
        """The body of a streaming request."""

    def take(self, event: dict[str, Any], answer: Answer) -> bool:
        """Take in one event of a stream; returns whether it brought text."""

    def units(self, tokens: array[int]) -> array[int]:
        """What prompts and answers are compared by, to tell what a cache could have found."""


class Generate:
    """SGLang's native route: token ids in and out, exact."""

    path = "/generate"

    def body(self, started: Started, model: str) -> dict[str, Any]:
        sampling = {"max_new_tokens": started.call.num_output, "temperature": 0.0, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": started.prompt.tolist(), "sampling_params": sampling, "stream": True}
        return body | ({"extra_key": "/".join(started.call.namespace)} if started.call.namespace else {})

    def take(self, event: dict[str, Any], answer: Answer) -> bool:
        meta, ids = event["meta_info"], event["output_ids"]
        answer.num_prompt, answer.cached = meta["prompt_tokens"], meta.get("cached_tokens", 0)
        if len(ids) == meta["completion_tokens"]:  # the whole answer so far, or, as some servers are told, only what is new
            del answer.tokens[:]
        answer.tokens.extend(ids)
        return bool(ids)

    def units(self, tokens: array[int]) -> array[int]:
        return tokens


class Completions:
    """OpenAI's route.  Tokens travel as words of three letters, one or two tokens each; answers are text, which goes back as it came."""

    path = "/v1/completions"

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._next_id = -1

    def body(self, started: Started, model: str) -> dict[str, Any]:
        return {
            "model": model, "prompt": self._text(started.prompt), "max_tokens": started.call.num_output, "temperature": 0.0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }

    def take(self, event: dict[str, Any], answer: Answer) -> bool:
        text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        if text:
            # One negative id stands for the text of an event: a later prompt that holds this answer gets that text back.
            self._texts[self._next_id] = text
            answer.tokens.append(self._next_id)
            self._next_id -= 1
        if usage := event.get("usage"):
            answer.num_prompt = usage["prompt_tokens"]
            answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return bool(text)

    def units(self, tokens: array[int]) -> array[int]:
        """Bytes: nobody here knows the server's tokens, but equal shares of the text are about equal shares of them."""
        return array("i", list(self._text(tokens).encode()))

    def _text(self, tokens: array[int]) -> str:
        return "".join(f" {_word(token)}" if token >= 0 else self._texts[token] for token in tokens)


def _word(token: int) -> str:
    return "".join(LETTERS[token // len(LETTERS) ** place % len(LETTERS)] for place in range(3))


APIS: dict[str, type[Generate] | type[Completions]] = {"generate": Generate, "completions": Completions}


class Server:
    """A server to measure."""

    def __init__(self, base_url: str, *, api: str, api_key: str | None = None, model: str = "default") -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        self._http = httpx.AsyncClient(base_url=base_url.rstrip("/"), headers=headers, limits=limits, timeout=timeout, trust_env=False)
        self.api: Api = APIS[api]()
        self._exact = api == "generate"
        self._model = model

    async def prepare(self) -> int:
        """Empty the cache, and return the size of the pool; 0 where the server does neither.

        Raises ConfigError when it cannot be reached, RadixrtError when it is busy.
        """
        if not self._exact:
            return 0
        try:
            flushed = await self._http.post("/flush_cache")
            shown = await self._http.get("/server_info")
        except httpx.HTTPError as error:
            raise ConfigError(f"no answer from {self._http.base_url}: {type(error).__name__}") from error
        if flushed.status_code != httpx.codes.OK:
            raise RadixrtError(f"/flush_cache answered {flushed.status_code}: the server must be idle, or hits of earlier runs would count")
        return int(shown.json().get("max_total_num_tokens") or 0) if shown.status_code == httpx.codes.OK else 0

    async def ask(self, started: Started) -> Answer:
        """Send one call and follow its stream to the end.  Raises httpx.HTTPError, or ValueError for a stream nobody can read."""
        answer = Answer(num_prompt=len(started.prompt))
        async with self._http.stream("POST", self.api.path, json=self.api.body(started, self._model)) as response:
            response.raise_for_status()
            async for event in _events(response):
                if "error" in event:
                    raise ValueError(f"the server ended the stream: {event['error']}")
                if self.api.take(event, answer) and answer.first_token is None:
                    answer.first_token = time.monotonic()
        return answer

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data:") and (payload := line[5:].strip()) != "[DONE]":
            yield json.loads(payload)


async def play(workload: Workload, server: Server) -> Run:
    """Play a workload to its end.  A call that fails is counted, and its program goes on as if it had answered nothing."""
    pool = await server.prepare()
    player = Player(workload)
    records: list[Record] = []
    asked: set[asyncio.Task[None]] = set()
    errors: list[str] = []
    begin = time.monotonic()

    async def ask(started: Started) -> None:
        try:
            answer = await server.ask(started)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            errors.append(f"{type(error).__name__}: {error}")
            player.end(started, (), time.monotonic() - begin)
            return
        ended = time.monotonic() - begin
        first = ended if answer.first_token is None else answer.first_token - begin
        records.append(_record(started, answer, first, ended, server.api))
        player.end(started, answer.tokens, ended)

    while not player.done:
        now = time.monotonic() - begin
        asked |= {asyncio.create_task(ask(started)) for started in player.take_due(now)}
        due = player.next_due()
        timeout = None if due is None else max(0.0, due - now)
        if asked:
            ended, asked = await asyncio.wait(asked, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        else:
            assert timeout is not None, "some call waits for one that never ends"
            await asyncio.sleep(timeout)
    if errors and not records:
        raise RadixrtError(f"every call failed, the first with {errors[0]}")
    return Run(
        workload=workload.name, policy="server", eviction="server", pool=pool, records=records, seconds=time.monotonic() - begin,
        errors=len(errors),
    )


def _record(started: Started, answer: Answer, first: float, ended: float, api: Api) -> Record:
    prompt, output = api.units(started.prompt), api.units(answer.tokens)
    return Record(
        kind=started.call.kind, due=started.due, first_token=first, ended=ended, num_prompt=len(prompt), cached=answer.cached, passes=0,
        retractions=0, order=first, tokens=prompt + output, namespace=started.call.namespace, prompt_tokens=answer.num_prompt,
    )


def run(workloads: Sequence[Workload], base_url: str, *, api: str, api_key: str | None = None, model: str = "default") -> list[Run]:
    """Play workloads against a server, one after the other."""

    async def play_all() -> list[Run]:
        server = Server(base_url, api=api, api_key=api_key, model=model)
        try:
            return [await play(workload, server) for workload in workloads]
        finally:
            await server.close()

    return asyncio.run(play_all())
