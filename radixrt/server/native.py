"""SGLang's ``/generate``: its fields, its ``meta_info``, its streams whose text is the whole text so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from radixrt.engine.native import Collected, TokenText, native_answer, parse_sampling
from radixrt.engine.sessions import SessionParams
from radixrt.errors import RequestError
from radixrt.limits import DEFAULTS, Limits
from radixrt.server import aside, bodies
from radixrt.server.openai import body_schema, gone, json_response
from radixrt.server.service import Service, new_id, numbered
from radixrt.server.sse import EventStream, Outputs, event, while_connected
from radixrt.server.translate import Plan
from radixrt.types import LogprobOptions, RequestOutput, SamplingParams

_UNSUPPORTED = {
    "image_data": "images", "video_data": "video", "audio_data": "audio", "input_embeds": "embeddings as input",
    "session_id": "sessions", "lora_path": "adapters", "lora_id": "adapters",
    "custom_logit_processor": "code from requests", "return_hidden_states": "hidden states", "return_entropy": "entropies",
    "return_sampling_mask": "sampling masks", "max_thinking_tokens": "reasoning", "require_reasoning": "reasoning",
    "bootstrap_room": "disaggregation", "return_bytes": "raw bytes",
}
_UNSUPPORTED_SAMPLING = {
    "stop_regex": "stopping at a regular expression", "beam_width": "beam search",
    "custom_params": "code from requests", "watermark": "watermarks",
}
# These change when events are sent or nothing at all, not what they say.
_IGNORED_SAMPLING = frozenset({"stream_interval"}) | _UNSUPPORTED_SAMPLING.keys()


class NativeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/generate``; ``text`` or ``input_ids``, one or a list; most options one for all or a list."""

    text: Any = None
    input_ids: Any = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str | None] | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: Any = None
    return_text_in_logprobs: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    session_params: SessionParams | list[SessionParams] | None = None
    return_cache_report: bool | None = None
    routing_key: str | None = None


def native_plans(
    raw: dict[str, Any], vocab_size: int, check_fits: Callable[[int, str], None], limits: Limits = DEFAULTS
) -> tuple[NativeBody, list[str | list[int]], list[Plan], list[str]]:
    """Translate a body into prompts, plans and request ids, one of each a prompt.  Raises RequestError.

    ``check_fits`` as for ``bodies.prompts``.
    """
    bodies.refuse(raw, _UNSUPPORTED)
    body = bodies.typed(raw, NativeBody)
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("Give either text or input_ids.", param="text", code="invalid_value")
    param = "text" if body.text is not None else "input_ids"
    prompts = bodies.prompts(body.text if param == "text" else body.input_ids, param, check_fits, limits)
    if isinstance(prompts[0], str) != (param == "text"):
        raise RequestError(f"{param} must hold {'strings' if param == 'text' else 'token ids'}.", param=param, code="invalid_type")
    count = len(prompts)
    given = body.sampling_params
    samplings = [_sampling(params, vocab_size, limits) for params in _each("sampling_params", given, count)]
    space = bodies.namespace(body.cache_salt, body.extra_key)
    wanted = _each("return_logprob", body.return_logprob, count)
    starts = _each("logprob_start_len", body.logprob_start_len, count)
    tops = _each("top_logprobs_num", body.top_logprobs_num, count)
    ids = _token_ids(body.token_ids_logprob, count, limits.max_logprob_ids)
    sessions = _each("session_params", body.session_params, count)
    plans = []
    for i in range(count):
        logprobs = None
        if wanted[i]:
            start = starts[i]
            top = bodies.check_top_logprobs(tops[i], "top_logprobs_num", limits)
            logprobs = LogprobOptions(start_len=-1 if start is None else start, top=top, token_ids=ids[i])
        plan = Plan(
            sampling=samplings[i], logprobs=logprobs, namespace=space, priority=body.priority or 0, rid=None, stream=bool(body.stream),
            include_usage=False, session=sessions[i], want_report=bool(body.return_cache_report),
            routing_key=bodies.check_routing_key(body.routing_key),
        )
        plans.append(plan)
    return body, prompts, plans, _rids(body.rid, count)


def _sampling(params: dict[str, Any] | None, vocab_size: int, limits: Limits) -> SamplingParams:
    params = params or {}
    bodies.refuse(params, _UNSUPPORTED_SAMPLING, prefix="sampling_params.")
    sampling = parse_sampling({name: value for name, value in params.items() if name not in _IGNORED_SAMPLING})
    bodies.check_choices(sampling.n, limits)
    bodies.check_stop_tokens(sampling.stop_token_ids, limits)
    bodies.check_logit_bias(sampling.logit_bias, limits)
    sampling.validate(vocab_size)
    return msgspec.structs.replace(sampling, stop=bodies.check_stops(sampling.stop, limits=limits))


def _each(name: str, value: Any, count: int) -> list[Any]:
    """Spread a value over the prompts, or take a list of one a prompt."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts.", param=name, code="invalid_value")
    return value


def _token_ids(value: Any, count: int, most: int) -> list[tuple[int, ...]]:
    name = "token_ids_logprob"
    if not value:
        return [()] * count
    nested = isinstance(value, list) and all(isinstance(item, list) or item is None for item in value)
    rows = _each(name, value, count) if nested else [value] * count
    for row in rows:
        if isinstance(row, list) and len(row) > most:
            raise RequestError(f"token_ids_logprob takes at most {most} ids.", param=name, code="invalid_value")
        if row is not None and not (isinstance(row, list) and all(type(token) is int for token in row)):
            raise RequestError("token_ids_logprob must be token ids, or a list of them a prompt.", param=name, code="invalid_type")
        if row is not None and len(set(row)) < len(row):
            raise RequestError("token_ids_logprob names an id twice.", param=name, code="invalid_value")
    return [tuple(row or ()) for row in rows]


def _rids(rid: str | list[str | None] | None, count: int) -> list[str]:
    if not isinstance(rid, list):
        checked = bodies.check_rid(rid)
        return numbered(checked or new_id("gen"), count)
    rids = [bodies.check_rid(item) or new_id("gen") for item in _each("rid", rid, count)]
    if len(set(rids)) < count:
        raise RequestError("rid names two prompts alike.", param="rid", code="duplicate_rid")
    return rids


class NativeWriter:
    """Events of ``/generate``: each carries what ``native_answer`` says of the answer so far, or only what is new in it."""

    def __init__(self, service: Service, ids: Sequence[str], plans: Sequence[Plan], token_text: TokenText | None) -> None:
        self._plans = plans
        self._ids = ids
        self._token_text = token_text
        self._incremental = service.config.incremental_streaming_output
        self._numbered = len(plans) > 1 or plans[0].sampling.n > 1
        self._first = [sum(plan.sampling.n for plan in plans[:i]) for i in range(len(plans))]
        self._started = time.monotonic()
        self._answers: dict[int, Collected] = {}

    def start(self) -> bytes:
        return b""

    def size(self, prompt: int, output: RequestOutput) -> int:
        if self._plans[prompt].logprobs is None:
            return 0
        num_output = len(output.logprobs_delta or ()) if self._incremental else output.usage.completion_tokens
        return num_output + len(output.prompt_logprobs or ())

    def push(self, prompt: int, output: RequestOutput) -> bytes:
        index = self._first[prompt] + output.index
        answer = self._answers.get(index)
        if answer is None:
            answer = self._answers[index] = Collected(self._ids[prompt], output.index, started=self._started)
        if self._incremental:
            answer.text, answer.token_ids, answer.logprobs = "", [], []
        answer.push(output)
        value = native_answer(answer, logprobs=self._plans[prompt].logprobs, token_text=self._token_text)
        if self._numbered:
            value["index"] = index
        return event(value)

    def end(self) -> bytes:
        return b""


def native_routes(service: Service, components: dict[str, Any]) -> APIRouter:
    """``/generate``."""
    router = APIRouter(tags=["native"])

    @router.put("/generate", include_in_schema=False)
    @router.post("/generate", openapi_extra=body_schema(NativeBody, components), summary="Generate, in SGLang's form")
    async def generate(request: Request) -> Response:
        raw = await bodies.read_json(request, service.config)
        service.require_ready()
        body, prompts, plans, ids = native_plans(raw, service.vocab_size, service.engine.check_fits, service.config)
        started = time.monotonic()
        token_text = service.engine.tokenizer.token_text if body.return_text_in_logprobs else None
        param = "text" if body.text is not None else "input_ids"
        single = isinstance(body.text, str) or (body.input_ids is not None and type(body.input_ids[0]) is int)

        async def open_streams() -> Outputs:
            return await service.submit(prompts, plans, ids, param=param, logprobs_param="return_logprob")

        if body.stream:
            return EventStream(await open_streams(), NativeWriter(service, ids, plans, token_text))

        async def answer() -> Response:
            async with await open_streams() as outputs:
                answers = await outputs.collect()

            def response() -> Response:
                values = [
                    native_answer(Collected.of(item, id, started=started), logprobs=plan.logprobs, token_text=token_text)
                    for choices, id, plan in zip(answers, ids, plans, strict=True)
                    for item in choices
                ]
                return json_response(values[0] if single and len(values) == 1 else values)

            return await aside.build(response, aside.num_positions(answers))

        return await while_connected(request.receive, answer()) or gone()

    return router
