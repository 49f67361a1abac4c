"""Bodies of the HTTP routes in the engine's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixrt.errors import InvalidSampling, PromptTooLong, RequestError, UnknownModel
from radixrt.limits import Limits
from radixrt.samplers import ChainParams
from radixrt.server import bodies
from radixrt.server.native import native_plans
from radixrt.server.translate import Plan, bounded, chat_options, chat_plan, check_model, completion_plan
from radixrt.types import LogprobOptions, SamplingParams

VOCAB = 100
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"prompt": "hi"}


def fits(length: int, param: str) -> None:
    pass


def test_defaults_are_openais() -> None:
    assert chat_plan(CHAT, VOCAB)[1].sampling == SamplingParams(max_new_tokens=None)
    assert completion_plan(TEXT, VOCAB)[1].sampling == SamplingParams(max_new_tokens=16)
    assert native_plans({"text": "hi"}, VOCAB, fits)[2][0].sampling == SamplingParams(max_new_tokens=128)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_new_tokens": 7}),
        ({"min_tokens": 2, "max_tokens": 5}, {"min_new_tokens": 2, "max_new_tokens": 5}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "", "y"]}, {"stop": ("x", "y")}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"seed": -3, "n": 2, "top_k": 4, "min_p": 0.1}, {"seed": -3, "n": 2, "top_k": 4, "min_p": 0.1}),
        ({"logit_bias": {"7": -100}}, {"logit_bias": {7: -100.0}}),
        ({"ignore_eos": True, "no_stop_trim": True}, {"ignore_eos": True, "no_stop_trim": True}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
        ({"stop_token_ids": [3, 4], "repetition_penalty": 1.5}, {"stop_token_ids": (3, 4), "repetition_penalty": 1.5}),
    ],
)  # fmt: skip
def test_chat_fields_reach_the_sampling_parameters(extra: dict[str, Any], expected: dict[str, Any]) -> None:
    defaults = {"max_new_tokens": None}
    assert chat_plan(CHAT | extra, VOCAB)[1].sampling == SamplingParams(**(defaults | expected))


@pytest.mark.parametrize(
    ("limits", "fields"),
    [
        (Limits(max_choices=2), {"n": 3}), (Limits(max_stops=2), {"stop": ["a", "b", "c"]}), (Limits(max_stop_chars=3), {"stop": "long"}),
        (Limits(max_stop_tokens=1), {"stop_token_ids": [1, 2]}), (Limits(max_logit_bias=1), {"logit_bias": {"1": 1, "2": 1}}),
    ],
)  # fmt: skip
def test_limits_hold_on_every_route_and_are_those_of_the_server(limits: Limits, fields: dict[str, Any]) -> None:
    routes = (
        lambda given: chat_plan(CHAT | fields, VOCAB, *given), lambda given: completion_plan(TEXT | fields, VOCAB, *given),
        lambda given: native_plans({"text": "hi", "sampling_params": fields}, VOCAB, fits, *given),
    )
    for route in routes:
        route(())
        with pytest.raises(InvalidSampling):
            route((limits,))


def test_prompts_and_messages_are_limited_too() -> None:
    with pytest.raises(RequestError, match="at most 1 prompts"):
        bodies.prompts(["a", "b"], "prompt", fits, Limits(max_prompts=1))
    with pytest.raises(RequestError, match="at most 1 entries"):
        chat_plan({"messages": CHAT["messages"] * 2}, VOCAB, Limits(max_messages=1))


def test_the_sampler_chain_is_the_same_on_every_route() -> None:
    extra = {
        "dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"], "typical_p": 0.9, "mirostat": None, "samplers": ["temp", "dry", "top-k"],
    }
    expected = ChainParams(dry_multiplier=0.8, dry_sequence_breakers=("\n",), typical_p=0.9, samplers=("temperature", "dry", "top_k"))
    native = native_plans({"text": "hi", "sampling_params": extra}, VOCAB, fits)[2][0]
    plans = (chat_plan(CHAT | extra, VOCAB)[1], completion_plan(TEXT | extra, VOCAB)[1], native)
    assert [plan.sampling.chain for plan in plans] == [expected] * 3
    for plan in (lambda bad: chat_plan(CHAT | bad, VOCAB), lambda bad: completion_plan(TEXT | bad, VOCAB)):
        with pytest.raises(InvalidSampling, match="xtc_probability must be in") as caught:
            plan({"xtc_probability": 2.0})
        assert caught.value.param == "xtc_probability"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, LogprobOptions(top=0)),
        ({"logprobs": True, "top_logprobs": 3}, LogprobOptions(top=3)),
    ],
)
def test_chat_logprobs(extra: dict[str, Any], expected: LogprobOptions | None) -> None:
    assert chat_plan(CHAT | extra, VOCAB)[1].logprobs == expected


def test_completion_echo_reports_the_prompt_too() -> None:
    assert completion_plan(TEXT | {"logprobs": 2, "echo": True}, VOCAB)[1].logprobs == LogprobOptions(start_len=0, top=2)
    assert completion_plan(TEXT | {"logprobs": 0}, VOCAB)[1].logprobs == LogprobOptions()
    with pytest.raises(RequestError, match="cannot be streamed"):
        completion_plan(TEXT | {"logprobs": 1, "echo": True, "stream": True}, VOCAB)


def test_alternatives_of_a_position_have_a_limit_on_every_route() -> None:
    limits = Limits(max_top_logprobs=3)
    asks: dict[str, Callable[[dict[str, Any]], Plan]] = {
        "top_logprobs": lambda extra: chat_plan(CHAT | {"logprobs": True} | extra, VOCAB, limits)[1],
        "logprobs": lambda extra: completion_plan(TEXT | extra, VOCAB, limits)[1],
        "top_logprobs_num": lambda extra: native_plans({"text": "a", "return_logprob": True} | extra, VOCAB, lambda *_: None, limits)[2][0],
    }
    for name, ask in asks.items():
        options = ask({name: 3}).logprobs
        assert options is not None and options.top == 3
        for count in (4, -1):
            with pytest.raises(InvalidSampling, match=f"^{name} must be in") as error:
                ask({name: count})
            assert error.value.param == name


def test_errors_name_the_field_as_the_caller_wrote_it() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(InvalidSampling, match=f"^{name} must be") as error:
            chat_plan(CHAT | {name: -1}, VOCAB)
        assert error.value.param == name


def test_cache_namespace_keeps_its_parts_apart() -> None:
    def of(**extra: str) -> tuple[str, ...]:
        return chat_plan(CHAT | extra, VOCAB)[1].namespace

    assert of(cache_salt="ab", extra_key="c") == ("", "ab", "c")
    assert len({of(), of(cache_salt="x"), of(extra_key="x"), of(cache_salt="xy"), of(cache_salt="x", extra_key="y")}) == 5


def test_template_options() -> None:
    def of(**extra: Any) -> dict[str, Any]:
        return chat_options(chat_plan(CHAT | extra, VOCAB)[0])

    assert of() == {"continue_final_message": False, "add_generation_prompt": True}
    assert of(continue_final_message=True) == {"continue_final_message": True, "add_generation_prompt": False}
    kwargs = of(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")["template_kwargs"]
    assert kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    with pytest.raises(RequestError):
        of(continue_final_message=True, add_generation_prompt=True)


def test_model_names() -> None:
    for name in (None, "", "default", "served", "some/path"):
        check_model(name, ("served", "some/path"))
    with pytest.raises(UnknownModel):
        check_model("served2", ("served", "some/path"))


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_empty_values_of_unsupported_fields_ask_for_nothing(value: object) -> None:
    completion_plan(TEXT | {"lora_path": value, "suffix": value}, VOCAB)
    native_plans({"text": "hi", "image_data": value}, VOCAB, fits)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ([[]], [[]])],
)
def test_prompt_forms(value: object, expected: object) -> None:
    assert bodies.prompts(value, "prompt", fits) == expected


@pytest.mark.parametrize("value", [None, 5, {}, [], [1, "a"], ["a", 1], [True], [1.0], [[1], "a"], [[True]], ["a"] * 65])
def test_wrong_prompt_forms_are_refused(value: object) -> None:
    with pytest.raises(RequestError) as error:
        bodies.prompts(value, "prompt", fits)
    assert error.value.param == "prompt"


class Unread(list[int]):
    """A prompt whose ids must not be looked at."""

    def __iter__(self) -> Any:
        raise AssertionError("looked at")


@pytest.mark.parametrize("value", [Unread([1] * 9), [[1], Unread([1] * 9)]], ids=["one", "several"])
def test_length_of_a_prompt_is_checked_before_its_ids(value: object) -> None:
    def at_most_8(length: int, param: str) -> None:
        if length > 8:
            raise PromptTooLong("too long", param=param)

    with pytest.raises(PromptTooLong):
        bodies.prompts(value, "prompt", at_most_8)


def test_parts_are_counted_over_all_messages() -> None:
    def chat(*counts: int) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * count} for count in counts]}

    chat_plan(chat(1000, 24), VOCAB)
    with pytest.raises(RequestError) as error:
        chat_plan(chat(1000, 25), VOCAB)
    assert (error.value.param, error.value.code) == ("messages", "invalid_value")


def plan(num_new: int | None, *, n: int = 1, logprobs: LogprobOptions | None) -> Plan:
    sampling = SamplingParams(max_new_tokens=num_new, n=n)
    return Plan(sampling=sampling, logprobs=logprobs, namespace=(), priority=0, rid=None, stream=False, include_usage=False)


@pytest.mark.parametrize(
    ("options", "n", "num_new", "entries"),
    [(LogprobOptions(), 1, 10, 10), (LogprobOptions(top=4), 1, 10, 50), (LogprobOptions(top=4, token_ids=(1, 2, 3)), 3, 10, 240),
     (LogprobOptions(start_len=0), 1, 10, 110), (LogprobOptions(start_len=90, top=1), 2, 10, 80), (LogprobOptions(), 1, 10**6, 900),
     (None, 16, 10**6, 0)],
    ids=str,
)  # fmt: skip
def test_logprobs_are_bounded_over_prompts_and_choices(
    options: LogprobOptions | None, n: int, num_new: int, entries: int
) -> None:
    plans = [plan(num_new, n=n, logprobs=options), plan(5, n=16, logprobs=None), plan(1, logprobs=LogprobOptions())]
    limits = Limits(max_logprob_entries=entries + 1)
    assert bounded(plans, [100] * 3, 1000, "logprobs", limits) == plans
    limits = Limits(max_logprob_entries=entries)
    with pytest.raises(RequestError) as error:
        bounded(plans, [100] * 3, 1000, "logprobs", limits)
    assert (error.value.param, error.value.code) == ("logprobs", "too_many_logprobs")


def test_answers_of_no_given_length_share_what_the_bound_leaves() -> None:
    plans = [plan(None, n=2, logprobs=LogprobOptions(top=1)), plan(None, logprobs=None), plan(20, logprobs=LogprobOptions())]
    limits = Limits(max_logprob_entries=61)
    assert [item.sampling.max_new_tokens for item in bounded(plans, [100] * 3, 1000, "logprobs", limits)] == [10, None, 20]
    limits = Limits(max_logprob_entries=23)
    with pytest.raises(RequestError):
        bounded(plans, [100] * 3, 1000, "logprobs", limits)


def test_native_options_are_spread_over_the_prompts() -> None:
    sampling = [{"n": 2}, {"sampling_seed": 5}]
    body = {"text": ["a", "b"], "rid": "r", "return_logprob": [True, False], "top_logprobs_num": 2, "sampling_params": sampling}
    _, prompts, plans, rids = native_plans(body, VOCAB, fits)
    assert prompts == ["a", "b"]
    assert rids == ["r_0", "r_1"]
    assert [plan.logprobs for plan in plans] == [LogprobOptions(top=2), None]
    assert (plans[0].sampling.n, plans[1].sampling.seed) == (2, 5)


@pytest.mark.parametrize(
    "body",
    [{}, {"text": "a", "input_ids": [1]}, {"text": [1]}, {"input_ids": "a"}, {"text": ["a", "b"], "rid": ["x", "x"]},
     {"text": ["a", "b"], "sampling_params": [{}]}, {"text": "a", "token_ids_logprob": [[1], 2]}, {"text": "a", "token_ids_logprob": ["x"]},
     {"text": "a", "token_ids_logprob": [1, 1]}, {"text": "a", "token_ids_logprob": [list(range(129))]},
     {"text": "a", "sampling_params": {"temprature": 1}}],
    ids=str,
)  # fmt: skip
def test_native_contradictions_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        native_plans(body, VOCAB, fits)


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [({"n": 1.0}, "n", "invalid_type"), ({"n": True}, "n", "invalid_type"), ({"stop": [1]}, "stop[0]", "invalid_type"),
     ({"messages": None}, "messages", "invalid_type")],
    ids=str,
)  # fmt: skip
def test_types_are_not_coerced(value: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(RequestError) as error:
        chat_plan(CHAT | value, VOCAB)
    assert (error.value.param, error.value.code) == (param, code)


def test_missing_field_is_named() -> None:
    with pytest.raises(RequestError) as error:
        chat_plan({}, VOCAB)
    assert (error.value.param, error.value.code) == ("messages", "missing_parameter")
