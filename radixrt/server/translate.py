"""What the OpenAI routes take, in the engine's words: body structs, sampling parameters, logprob options.

Pure: no I/O, no engine.  A field that would change the answer if it were honoured, and is not, is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from radixrt import samplers
from radixrt.engine.sessions import SessionParams
from radixrt.errors import InvalidSampling, RequestError, UnknownModel
from radixrt.grammar import spellings
from radixrt.limits import DEFAULTS, Limits
from radixrt.server import bodies
from radixrt.server.problems import excerpt
from radixrt.types import LogprobOptions, Namespace, SamplingParams

COMPLETION_MAX_TOKENS = 16

_UNSUPPORTED = {
    "guided_whitespace_pattern": "patterns of white space",
    "stop_regex": "stopping at a regular expression", "lora_path": "adapters", "custom_logit_processor": "code from requests",
    "custom_params": "code from requests", "use_beam_search": "beam search",
    "return_hidden_states": "hidden states", "input_embeds": "embeddings as input", "image_data": "images", "mm_processor_kwargs": "images",
}
_UNSUPPORTED_IN_CHAT = _UNSUPPORTED | {
    "functions": "the deprecated form of tools", "function_call": "the deprecated form of tools", "audio": "audio",
    "web_search_options": "web search", "input_ids": "prompts of token ids; use /v1/completions",
}
_UNSUPPORTED_IN_COMPLETIONS = _UNSUPPORTED | {"suffix": "insertion", "tools": "tools; use /v1/chat/completions"}


class StreamOptions(msgspec.Struct, frozen=True):
    """Which usage a stream reports: that of the whole in a last chunk, and that of each choice so far in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ConstraintFields(msgspec.Struct, frozen=True, kw_only=True):
    """What may be generated, of which a body sets at most one: OpenAI's field, vLLM's, SGLang's, llama.cpp's ``grammar``.

    ``grammar_options`` is radixrt's own: ``GrammarOptions`` as an object.
    """

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    choice: list[str] | None = None
    structural_tag: dict[str, Any] | str | None = None
    grammar: str | None = None
    grammar_options: dict[str, Any] | None = None


class ChainFields(ConstraintFields, frozen=True, kw_only=True):
    """llama.cpp's samplers, see ``radixrt.samplers.ChainParams``."""

    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    samplers: list[str] | None = None


class CommonBody(ChainFields, frozen=True, kw_only=True):
    """The fields that chat and text completions share: OpenAI's, then SGLang's; null means the default."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    session_params: SessionParams | None = None
    return_cache_report: bool | None = None
    routing_key: str | None = None


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """The body of ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    modalities: list[str] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """The body of ``/v1/completions``; ``prompt`` is a string, token ids, or a list of either."""

    prompt: Any
    max_tokens: int | None = COMPLETION_MAX_TOKENS
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A request in the engine's words, without its prompt."""

    sampling: SamplingParams
    logprobs: LogprobOptions | None
    namespace: Namespace
    priority: int
    rid: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool = False
    session: SessionParams | None = None
    want_report: bool = False
    routing_key: str = ""


def chat_plan(raw: dict[str, Any], vocab_size: int, limits: Limits = DEFAULTS) -> tuple[ChatBody, Plan]:
    """Translate a chat body.  Raises RequestError."""
    bodies.refuse(raw, _UNSUPPORTED_IN_CHAT)
    body = bodies.typed(raw, ChatBody)
    bodies.check_messages(body.messages, limits)
    if body.modalities and body.modalities != ["text"]:
        raise RequestError("modalities other than text are not supported.", param="modalities", code="unsupported_parameter")
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs", code="invalid_value")
    logprobs = LogprobOptions(top=bodies.check_top_logprobs(body.top_logprobs, "top_logprobs", limits)) if body.logprobs else None
    return body, _plan(body, getattr(body, limit), limit, logprobs, vocab_size, limits)


def completion_plan(raw: dict[str, Any], vocab_size: int, limits: Limits = DEFAULTS) -> tuple[CompletionBody, Plan]:
    """Translate a text-completion body.  Raises RequestError."""
    bodies.refuse(raw, _UNSUPPORTED_IN_COMPLETIONS)
    body = bodies.typed(raw, CompletionBody)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError("best_of other than n is not supported.", param="best_of", code="unsupported_parameter")
    bodies.check_top_logprobs(body.logprobs, "logprobs", limits)
    if body.echo and body.stream and body.logprobs is not None:
        raise RequestError("echo with logprobs cannot be streamed.", param="echo", code="unsupported_parameter")
    logprobs = None if body.logprobs is None else LogprobOptions(start_len=0 if body.echo else -1, top=body.logprobs)
    limit = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    return body, _plan(body, limit, "max_tokens", logprobs, vocab_size, limits)


def bounded(plans: Sequence[Plan], lengths: Sequence[int], max_tokens: int, param: str, limits: Limits = DEFAULTS) -> list[Plan]:
    """Hold the logprobs that the plans of one body may report to max_logprob_entries in all.

    What is asked for counts: prompt positions, and output positions up to ``max_new_tokens``.  Answers as long as the
    context allows become as long as the bound allows too.

    Args:
        lengths: tokens of each plan's prompt.
        max_tokens: what prompt and output of one request may have together.
        param: the field to name when it is too much; that raises RequestError.
    """
    asked = unlimited = 0
    for plan, length in zip(plans, lengths, strict=True):
        if plan.logprobs is None:
            continue
        options, sampling = plan.logprobs, plan.sampling
        width = (1 + options.top + len(options.token_ids)) * sampling.n
        if options.start_len >= 0:
            asked += (length - options.start_len) * width
        if sampling.max_new_tokens is None:
            unlimited += width
        else:
            asked += min(sampling.max_new_tokens, max(0, max_tokens - length)) * width
    left = limits.max_logprob_entries - asked
    if left < unlimited or left < 0:
        raise RequestError(
            f"The logprobs asked for are at least {asked + unlimited} over all prompts and choices; a request may have at most "
            f"{limits.max_logprob_entries}. Ask for fewer alternatives, positions or choices, or send several requests.",
            param=param, code="too_many_logprobs",
        )
    if not unlimited:
        return list(plans)
    longest = left // unlimited
    return [
        replace(plan, sampling=msgspec.structs.replace(plan.sampling, max_new_tokens=longest))
        if plan.logprobs is not None and plan.sampling.max_new_tokens is None else plan
        for plan in plans
    ]


def chat_options(body: ChatBody) -> dict[str, Any]:
    """The options of the chat template."""
    continues = bool(body.continue_final_message)
    options: dict[str, Any] = {
        "continue_final_message": continues,
        "add_generation_prompt": not continues if body.add_generation_prompt is None else body.add_generation_prompt,
    }
    if continues and body.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other."
        raise RequestError(message, param="continue_final_message", code="invalid_value")
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    if kwargs:
        options["template_kwargs"] = kwargs
    return options


def check_model(model: str | None, served: tuple[str, ...]) -> None:
    """Raise UnknownModel (404) unless the body names a served model, ``default``, or none."""
    if model and model != "default" and model not in served:
        raise UnknownModel(f"The model {excerpt(model)!r} does not exist; this server serves {served[0]!r}.", param="model")


def _plan(
    body: CommonBody, max_tokens: int | None, limit_name: str, logprobs: LogprobOptions | None, vocab_size: int, limits: Limits
) -> Plan:
    given: dict[str, Any] = {
        "temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k, "min_p": body.min_p,
        "frequency_penalty": body.frequency_penalty, "presence_penalty": body.presence_penalty,
        "repetition_penalty": body.repetition_penalty, "min_new_tokens": body.min_tokens, "seed": body.seed,
        "ignore_eos": body.ignore_eos, "no_stop_trim": body.no_stop_trim, "skip_special_tokens": body.skip_special_tokens,
        "spaces_between_special_tokens": body.spaces_between_special_tokens,
    }
    sampling = SamplingParams(
        max_new_tokens=max_tokens,
        stop=bodies.check_stops(body.stop, limits=limits),
        stop_token_ids=bodies.check_stop_tokens(body.stop_token_ids, limits),
        logit_bias=bodies.check_logit_bias(body.logit_bias, limits),
        n=bodies.check_choices(body.n, limits),
        grammar=spellings.constraint({name: getattr(body, name) for name in ConstraintFields.__struct_fields__}),
        chain=samplers.chain({name: getattr(body, name) for name in samplers.NAMES}),
        **{name: value for name, value in given.items() if value is not None},
    )
    try:
        sampling.validate(vocab_size)
        if logprobs is not None:
            logprobs.validate(vocab_size, 0)
    except InvalidSampling as error:
        raise _renamed(error, {"max_new_tokens": limit_name, "min_new_tokens": "min_tokens"}) from None
    return Plan(
        sampling=sampling, logprobs=logprobs, namespace=bodies.namespace(body.cache_salt, body.extra_key),
        priority=body.priority or 0, rid=bodies.check_rid(body.rid), stream=bool(body.stream),
        include_usage=bool(body.return_cache_report or (body.stream_options and body.stream_options.include_usage)),
        continuous_usage=bool(body.stream_options and body.stream_options.continuous_usage_stats),
        session=body.session_params, want_report=bool(body.return_cache_report),
        routing_key=bodies.check_routing_key(body.routing_key),
    )


def _renamed(error: InvalidSampling, names: dict[str, str]) -> InvalidSampling:
    """Say the parameter's name as the caller wrote it."""
    message = str(error)
    for ours, theirs in names.items():
        message = message.replace(ours, theirs)
    return InvalidSampling(message, param=names.get(error.param or "", error.param), code=error.code)
