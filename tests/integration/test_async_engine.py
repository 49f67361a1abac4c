"""The engine front over a core that echoes: what it refuses, what it answers, and that a failure is its sender's alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from echo_core import BREAK, CAPACITY, CONTEXT, REFUSE, VOCABULARY
from echo_engine import LONG, SLOW, answer, run, running, samples, settled, until

from radixrt.engine.stream import failure
from radixrt.errors import InternalError, InvalidSampling, PromptTooLong, RequestError
from radixrt.types import FinishReason, LogprobOptions, RequestOutput, SamplingParams


def test_events_join_to_the_whole_answer() -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit("abc", SamplingParams(max_new_tokens=7), rid="mine", logprobs=LogprobOptions())
            assert (stream.rid, stream.num_prompt, list(stream.prompt), stream.num_choices) == ("mine", 3, [97, 98, 99], 1)
            events = [event async for event in stream]
            assert "".join(event.text_delta for event in events) == "abcabca"
            assert [token for event in events for token in event.token_ids_delta] == list(b"abcabca")
            assert [entry.token for event in events for entry in event.logprobs_delta or ()] == list(b"abcabca")
            assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
            assert events[-1].usage.completion_tokens == 7
            assert await answer(engine, "abc", 7) == "abcabca"

    run(main())


def test_each_choice_is_a_request_of_its_own_with_its_own_seed() -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit("ab", SamplingParams(max_new_tokens=3, n=3, seed=2**63 - 2))
            answers = await stream.collect()
            assert [(a.index, a.text) for a in answers] == [(0, "aba"), (1, "aba"), (2, "aba")]
            requests = engine.cores[0].requests
            assert [r.sampling.seed for r in requests] == [2**63 - 2, 2**63 - 1, -(2**63)]
            assert [r.sampling.n for r in requests] == [1, 1, 1]
            assert len({r.uid for r in requests}) == 3

    run(main())


@pytest.mark.parametrize(("asked", "given"), [(None, CONTEXT - 3), (10**9, CONTEXT - 3), (5, 5), (0, 0)])
def test_the_context_bounds_what_is_generated(asked: int | None, given: int) -> None:
    async def main() -> None:
        async with running() as engine:
            (whole,) = await (await engine.submit("abc", SamplingParams(max_new_tokens=asked, min_new_tokens=0))).collect()
            assert (len(whole.token_ids), whole.finish.reason) == (given, FinishReason.LENGTH)

    run(main())


BAD = [
    ("", {}, {}, RequestError, "prompt"),
    ([], {}, {}, RequestError, "prompt"),
    ([-1], {}, {}, RequestError, "prompt"),
    ([VOCABULARY], {}, {}, RequestError, "prompt"),
    ([1, True], {}, {}, RequestError, "prompt"),
    ([1, 2.0], {}, {}, RequestError, "prompt"),
    (["a"], {}, {}, RequestError, "prompt"),
    ("a" * CONTEXT, {}, {}, PromptTooLong, "prompt"),
    ([1] * (CONTEXT + 1), {}, {}, PromptTooLong, "prompt"),
    ("a" * 10**7, {}, {}, PromptTooLong, "prompt"),
    ("\ud83d", {}, {}, RequestError, None),
    ("a", {"temperature": float("nan")}, {}, InvalidSampling, "temperature"),
    ("a", {"stop_token_ids": (VOCABULARY,)}, {}, InvalidSampling, "stop_token_ids"),
    ("a", {"n": 0}, {}, InvalidSampling, "n"),
    ("a", {}, {"logprobs": LogprobOptions(top=21)}, InvalidSampling, "top_logprobs"),
    ("a", {}, {"logprobs": LogprobOptions(start_len=2)}, RequestError, "logprob_start_len"),
    ("a", {}, {"rid": "taken"}, RequestError, "rid"),
    # What has the wrong type would break the core in the middle of everybody's step.
    ("a", {"max_new_tokens": 2.5}, {}, RequestError, "max_new_tokens"),
    ("a", {"temperature": "hot"}, {}, RequestError, "temperature"),
    ("a", {"seed": 1.5}, {}, RequestError, "seed"),
    ("a", {"logit_bias": {1.5: 1}}, {}, RequestError, "logit_bias"),
    ("a", {"top_k": True}, {}, RequestError, "top_k"),
    ("a", {}, {"logprobs": LogprobOptions(top=2.0)}, RequestError, "top"),  # type: ignore[arg-type]
    ("a", {}, {"logprobs": LogprobOptions(start_len=None)}, RequestError, "start_len"),  # type: ignore[arg-type]
    ("a", {}, {"namespace": ("", [5])}, RequestError, "namespace"),
    ("a", {}, {"priority": 2**70}, RequestError, None),
    ("a", {}, {"namespace": ("\ud800",)}, RequestError, None),
    ("a", {"stop": ("\ud800",)}, {}, RequestError, None),
    ("a", {"seed": object()}, {}, RequestError, None),
]


@pytest.mark.parametrize(("prompt", "sampling", "options", "error", "param"), BAD)
def test_bad_input_costs_its_sender_an_error_and_nobody_else_anything(
    prompt: Any, sampling: dict[str, Any], options: dict[str, Any], error: type[RequestError], param: str | None
) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            neighbour = await engine.submit("xyz", SamplingParams(max_new_tokens=20), rid="taken")
            with pytest.raises(error) as caught:
                await engine.submit(prompt, SamplingParams(**sampling), **options)
            assert type(caught.value) is error
            assert caught.value.param == param or param is None
            assert engine.num_open == 1
            (whole,) = await neighbour.collect()
            assert whole.text == "xyz" * 6 + "xy"
            assert len(engine.cores[0].requests) == 1

    run(main())


def test_a_prompt_that_is_too_long_is_told_the_limit_and_its_length() -> None:
    async def main() -> None:
        async with running() as engine:
            with pytest.raises(PromptTooLong, match=rf"maximum context length is {CONTEXT} tokens.* {CONTEXT + 5}\."):
                await engine.submit([1] * (CONTEXT + 5), SamplingParams(), prompt_param="input_ids")
            with pytest.raises(PromptTooLong, match="of 1000000 characters"):
                await engine.encode("a" * 10**6)
            messages = [{"role": "user", "content": [{"type": "text", "text": "a" * 10**6}]}]
            with pytest.raises(PromptTooLong, match="maximum context length"):
                await engine.encode_chat(messages)

    run(main())


def test_ids_of_a_prompt_that_is_too_long_are_not_looked_at() -> None:
    class Unread(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("looked at")

    async def main() -> None:
        async with running() as engine:
            with pytest.raises(PromptTooLong):
                await engine.submit(Unread([1] * CONTEXT), SamplingParams())

    run(main())


def test_a_name_is_free_again_once_its_request_has_ended() -> None:
    async def main() -> None:
        async with running() as engine:
            for _ in range(3):
                stream = await engine.submit("a", SamplingParams(max_new_tokens=2), rid="again")
                await stream.collect()

    run(main())


def test_of_two_racing_requests_of_one_name_one_runs() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            results = await asyncio.gather(
                *(engine.submit("a", SamplingParams(max_new_tokens=3), rid="one") for _ in range(4)), return_exceptions=True
            )
            streams = [result for result in results if not isinstance(result, BaseException)]
            assert len(streams) == 1
            await streams[0].collect()

    run(main())


def test_abort_takes_exactly_the_named_request() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            one = await engine.submit("abc", SamplingParams(max_new_tokens=100, n=2), rid="job-1")
            other = await engine.submit("xyz", SamplingParams(max_new_tokens=20), rid="job-12")
            await anext(one)
            assert not await engine.abort("job")
            assert not await engine.abort("")
            assert await engine.abort("job-1")
            answers = await one.collect()
            assert [a.finish.reason for a in answers] == [FinishReason.ABORT] * 2
            assert failure(answers[0].finish) is None
            (whole,) = await other.collect()
            assert whole.text == "xyz" * 6 + "xy"
            assert not await engine.abort("job-1")

    run(main())


def test_a_stop_string_ends_the_answer_and_the_computing() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            stream = await engine.submit("abcd", SamplingParams(max_new_tokens=None, stop=("da",)))
            (whole,) = await stream.collect()
            assert (whole.text, whole.finish.reason, whole.finish.matched) == ("abc", FinishReason.STOP, "da")
            await settled(engine)
            assert engine.stats.generated_tokens < 20

    run(main())


@pytest.mark.parametrize(("prompt", "status", "error"), [(REFUSE, 400, RequestError), (BREAK, 500, InternalError)])
def test_a_request_that_fails_in_the_core_fails_alone(prompt: str, status: int, error: type[Exception]) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            neighbour = await engine.submit("xyz", SamplingParams(max_new_tokens=20))
            (whole,) = await (await engine.submit(prompt, LONG)).collect()
            assert (whole.finish.reason, whole.finish.status) == (FinishReason.ABORT, status)
            assert isinstance(failure(whole.finish), error)
            (other,) = await neighbour.collect()
            assert other.text == "xyz" * 6 + "xy"

    run(main())


def test_an_answer_whose_text_cannot_be_made_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            push = engine._answers.output.push

            def breaking(output: Any) -> tuple[RequestOutput | None, bool]:
                if output.tokens == [ord("!")]:
                    raise ValueError("no text")
                return push(output)

            monkeypatch.setattr(engine._answers.output, "push", breaking)
            neighbour = await engine.submit("xyz", SamplingParams(max_new_tokens=20))
            (whole,) = await (await engine.submit("!", LONG)).collect()
            assert whole.finish.status == 500
            (other,) = await neighbour.collect()
            assert other.text == "xyz" * 6 + "xy"

    run(main())


def test_the_cache_is_flushed_only_when_idle() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            async with await engine.submit("abc", LONG) as stream:
                await anext(stream)
                assert not await engine.flush_cache()
            await until(lambda: engine.stats.num_running == 0)
            assert await engine.flush_cache()
            assert engine.stats.evicted_tokens == 1
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await engine.flush_cache()

    run(main())


def test_a_question_that_is_declined_or_breaks_costs_its_asker_an_error_and_nobody_else_anything() -> None:
    async def main() -> None:
        async with running() as engine:
            assert await engine.cache.unpin("there")
            assert not await engine.cache.unpin("elsewhere")
            with pytest.raises(RequestError) as declined:
                await engine.cache.unpin(REFUSE)
            assert (declined.value.message, declined.value.param, declined.value.code) == ("refused", "pin_id", "no")
            with pytest.raises(InternalError):
                await engine.cache.unpin(BREAK)
            async with await engine.submit("abc", SamplingParams(max_new_tokens=3)) as stream:
                assert (await stream.collect())[0].text == "abc"

    run(main())


def test_many_requests_at_once_with_random_leavers_end_at_the_baseline() -> None:
    async def main() -> None:
        async with running("echo/0.001") as engine:

            async def call(i: int) -> None:
                stream = await engine.submit("abc", SamplingParams(max_new_tokens=i % 40, n=1 + i % 3), rid=f"r{i}")
                if i % 4 == 0:
                    await engine.abort(f"r{i}")
                if i % 3 == 0:
                    async with stream:
                        for _ in range(i % 7):
                            await anext(stream, None)
                else:
                    assert len(await stream.collect()) == 1 + i % 3

            await asyncio.gather(*(call(i) for i in range(200)))
            await settled(engine)
            text = engine.metrics_text().decode()
            assert 'sglang:num_requests_total{model_name="echo/0.001"} 399.0' in text

    run(main())


def test_metrics_balance_and_count_what_happened() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            await answer(engine)
            async with await engine.submit("abc", LONG) as stream:
                await anext(stream)
                values = samples(engine)
            kv = [values[f"sglang:kv_{kind}_tokens"] for kind in ("available", "evictable", "used")]
            assert sum(kv) == values["sglang:max_total_num_tokens"] == CAPACITY
            assert kv[2] > 0
            assert values["sglang:num_requests_total"] == 2
            assert values["sglang:num_aborted_requests_total"] == 0
            assert values["sglang:time_to_first_token_seconds_count"] == 2
            assert values["sglang:inter_token_latency_seconds_count"] >= 5
            assert values["sglang:queue_time_seconds_count"] == 2
            assert (values["sglang:prompt_tokens_histogram_count"], values["sglang:prompt_tokens_histogram_sum"]) == (1, 3)
            assert values["sglang:generation_tokens_histogram_sum"] == 6
            assert samples(engine)["sglang:num_aborted_requests_total"] == 1
            assert values["radixrt_process_resident_memory_bytes"] > 1 << 20

    run(main())
