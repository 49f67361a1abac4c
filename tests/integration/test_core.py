"""The engine core on the toy model: sharing, limits, logprobs, priorities of ends, and steps that fail."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable

import pytest
import torch
from simulator import make_core

from radixrt.cache.kv_pool import KVPool
from radixrt.engine.core import COMMITTED_BYTES, EngineCore
from radixrt.errors import EngineStopped, InvalidSampling, PromptTooLong, RequestError
from radixrt.models.toy import END_OF_TEXT
from radixrt.types import Finish, FinishReason, GenerateRequest, LogprobOptions, SamplingParams, TokenLogprob

PREAMBLE = list(range(60))


def ask(
    uid: int, prompt: list[int], *, logprobs: LogprobOptions | None = None, namespace: tuple[str, ...] = (), **sampling: object
) -> GenerateRequest:
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 4, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(uid=uid, prompt=prompt, sampling=params, logprobs=logprobs, namespace=namespace)


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish: Finish | None = None
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.cached = 0


def drain(core: EngineCore, requests: Iterable[GenerateRequest] = ()) -> dict[int, Answer]:
    answers: dict[int, Answer] = defaultdict(Answer)
    for request in requests:
        core.add(request)
    for _ in range(2000):
        for output in core.step():
            answer = answers[output.uid]
            assert answer.finish is None
            answer.tokens += output.tokens
            answer.finish = output.finish
            answer.logprobs += output.logprobs or []
            answer.prompt_logprobs += output.prompt_logprobs or []
            answer.cached = output.cached_tokens
        core.check_invariants()
        if not core.has_work():
            return answers
    raise AssertionError("the core never came to rest")


def test_a_core_that_prepares_commits_memory_of_its_pool_beside_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(num_slots=2000)
    committed: list[tuple[int, bool]] = []
    done = threading.Event()

    def commit(pool: KVPool, num_bytes: int) -> None:
        committed.append((num_bytes, threading.current_thread() is threading.main_thread()))
        done.set()

    monkeypatch.setattr(KVPool, "commit", commit)
    core.prepare()
    assert done.wait(10) and committed == [(COMMITTED_BYTES, False)]


def test_twelve_cold_requests_with_one_preamble_prefill_it_once() -> None:
    core = make_core(budget=256, num_slots=2000, max_running=12, context_length=256)
    answers = drain(core, [ask(i, [*PREAMBLE, 100 + i], max_new_tokens=1) for i in range(12)])
    assert core.stats().computed_tokens == len(PREAMBLE) + 12
    assert [answers[i].cached for i in range(12)] == [0, *[60] * 11]


@pytest.mark.parametrize("budget", [7, 16, 256])
def test_they_do_in_chunks_too(budget: int) -> None:
    core = make_core(budget=budget, num_slots=2000, max_running=12, context_length=256)
    drain(core, [ask(i, [*PREAMBLE, 100 + i], max_new_tokens=1) for i in range(12)])
    assert core.stats().computed_tokens == len(PREAMBLE) + 12


def test_a_second_turn_computes_only_what_is_new() -> None:
    core = make_core(num_slots=500, context_length=256)
    first = drain(core, [ask(0, PREAMBLE)])[0]
    before = core.stats().computed_tokens
    second = drain(core, [ask(1, [*PREAMBLE, *first.tokens, 9, 9])])[1]
    # All but the last output token was computed; the two new ones and three outputs are.
    assert second.cached == len(PREAMBLE) + 3
    assert core.stats().computed_tokens - before == 3 + 3


def test_namespaces_share_nothing() -> None:
    core = make_core(num_slots=500, context_length=256)
    answers = drain(core, [ask(i, PREAMBLE, namespace=("", salt)) for i, salt in enumerate(("a", "b", "a"))])
    assert [answers[i].cached for i in range(3)] == [0, 0, 59]
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens


@pytest.mark.parametrize("prompt", [[5], PREAMBLE])
@pytest.mark.parametrize("times", [1, 2])
def test_no_new_tokens_computes_the_prompt_and_samples_nothing(prompt: list[int], times: int) -> None:
    core = make_core(num_slots=500, context_length=256)
    for uid in range(times):
        answer = drain(core, [ask(uid, prompt, max_new_tokens=0)])[uid]
        assert (answer.tokens, answer.finish) == ([], Finish(FinishReason.LENGTH))
    assert core.stats().computed_tokens == len(prompt) - 1


def test_the_context_ends_an_answer_with_length() -> None:
    core = make_core(num_slots=500, context_length=64)
    answer = drain(core, [ask(0, PREAMBLE, max_new_tokens=None)])[0]
    assert (len(answer.tokens), answer.finish) == (4, Finish(FinishReason.LENGTH))


def test_the_pool_ends_an_answer_with_length() -> None:
    core = make_core(num_slots=20, context_length=64)
    answer = drain(core, [ask(0, PREAMBLE[:10], max_new_tokens=None)])[0]
    assert (len(answer.tokens), answer.finish) == (10, Finish(FinishReason.LENGTH))


def test_a_stop_token_ends_an_answer_and_is_reported() -> None:
    core = make_core(context_length=256)
    free = drain(core, [ask(0, [1, 2, 3], max_new_tokens=20)])[0].tokens
    stop = free[7]
    answer = drain(core, [ask(1, [1, 2, 3], max_new_tokens=20, ignore_eos=False, stop_token_ids=(stop,))])[1]
    assert answer.finish == Finish(FinishReason.STOP, matched=stop) or answer.tokens[-1] == END_OF_TEXT
    assert answer.tokens == free[: len(answer.tokens)]


@pytest.mark.parametrize("start", [0, 1, 17, 59, 60])
@pytest.mark.parametrize("budget", [7, 64])
def test_prompt_logprobs_are_the_same_cold_and_warm(start: int, budget: int) -> None:
    options = LogprobOptions(start_len=start, top=2, token_ids=(3, 4))
    warm = make_core(budget=budget, num_slots=500, context_length=256)
    drain(warm, [ask(0, PREAMBLE, max_new_tokens=6)])
    cold = make_core(budget=64, num_slots=500, context_length=256, cache=False)
    answers = [drain(core, [ask(1, PREAMBLE, logprobs=options)])[1] for core in (warm, cold, warm)]
    for answer in answers:
        assert [entry.token for entry in answer.prompt_logprobs] == PREAMBLE[start:]
        assert [entry.logprob is None for entry in answer.prompt_logprobs] == [start + i == 0 for i in range(60 - start)]
        assert len(answer.logprobs) == len(answer.tokens)
    assert answers[0].prompt_logprobs == answers[1].prompt_logprobs == answers[2].prompt_logprobs
    assert answers[0].logprobs == answers[1].logprobs
    assert answers[0].cached <= max(0, start - 1)
    for entry in answers[0].logprobs:
        assert len(entry.top) == 2 and entry.top[0][0] >= entry.top[1][0] and [token for _, token in entry.given] == [3, 4]
        assert entry.top[0] == (entry.logprob, entry.token), "greedy takes the best"


def test_logprobs_survive_retraction() -> None:
    options = LogprobOptions(start_len=0, top=1)
    requests = [ask(i, [i, *PREAMBLE[:8]], max_new_tokens=50, ignore_eos=False, logprobs=options) for i in range(6)]
    large = drain(make_core(num_slots=400), requests)
    core = make_core(num_slots=110, schedule_conservativeness=0.1)
    small = drain(core, requests)
    assert core.stats().num_retracted > 0
    for uid in large:
        assert small[uid].tokens == large[uid].tokens
        assert small[uid].logprobs == large[uid].logprobs
        assert small[uid].prompt_logprobs == large[uid].prompt_logprobs


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ask(0, []), RequestError),
        (ask(0, [259]), RequestError),
        (ask(0, [-1]), RequestError),
        (ask(0, [1] * 64), PromptTooLong),
        (ask(0, [1], temperature=float("nan")), InvalidSampling),
        (ask(0, [1], logit_bias={259: 1.0}), InvalidSampling),
        (ask(0, [1], repetition_penalty=1e-40), InvalidSampling),
        (ask(0, [1], ignore_eos=False, min_new_tokens=1, stop_token_ids=tuple(range(259))), InvalidSampling),
        (ask(0, [1], stop_token_ids=(-1,)), InvalidSampling),
        (ask(0, [1], logprobs=LogprobOptions(start_len=2)), RequestError),
        (ask(0, [1], logprobs=LogprobOptions(top=21)), InvalidSampling),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing(request_: GenerateRequest, error: type[Exception]) -> None:
    core = make_core(context_length=64)
    with pytest.raises(error):
        core.add(request_)
    assert not core.has_work()
    assert len(drain(core, [ask(1, [1])])[1].tokens) == 4


def test_flush_is_refused_while_anything_runs_and_empties_the_cache_after() -> None:
    core = make_core(num_slots=500, context_length=256)
    core.add(ask(0, PREAMBLE))
    core.step()
    assert not core.flush()
    drain(core)
    assert core.stats().cached_tokens > 0
    assert core.flush()
    assert core.stats().free_tokens == 500
    assert drain(core, [ask(1, PREAMBLE)])[1].cached == 0


class Breaks:
    """Wraps a model; the forward passes named fail."""

    def __init__(self, core: EngineCore, calls: set[int]) -> None:
        self.model, self.calls, self.count = core._runner._model, calls, 0
        self.shape = self.model.shape
        core._runner._model = self

    def forward(self, *args: object) -> torch.Tensor:
        self.count += 1
        if self.count in self.calls:
            raise RuntimeError("broken on purpose")
        return self.model.forward(*args)  # type: ignore[arg-type]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_failed_step_ends_its_requests_and_nobody_else(overlap: bool, call: int) -> None:
    core = make_core(overlap=overlap, num_slots=500, context_length=256, max_running=2)
    requests = [ask(i, [i, *PREAMBLE], max_new_tokens=5) for i in range(4)]
    whole = drain(make_core(num_slots=500, context_length=256), requests)
    Breaks(core, {call})
    answers = drain(core, requests)
    failed = [uid for uid, answer in answers.items() if answer.finish and answer.finish.status == 500]
    assert failed == [0, 1], "the two that ran"
    assert all(answers[uid].tokens == whole[uid].tokens for uid in (2, 3))
    assert core.stats().failed_steps == 1 and core.stats().free_tokens + core.stats().cached_tokens == 500
    again = drain(core, [ask(9, [0, *PREAMBLE], max_new_tokens=5)])[9]
    assert again.tokens == whole[0].tokens, "what the failed step published is gone"


def test_a_fault_on_the_host_side_ends_what_is_there_and_the_core_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(num_slots=500, context_length=256)
    monkeypatch.setattr("radixrt.engine.core.build_batch", lambda *_: 1 / 0)
    answers = drain(core, [ask(i, [i, *PREAMBLE]) for i in range(3)])
    assert all(answer.finish and answer.finish.status == 500 for answer in answers.values()) and len(answers) == 3
    monkeypatch.undo()
    assert len(drain(core, [ask(9, PREAMBLE)])[9].tokens) == 4


def test_three_failed_steps_in_a_row_stop_the_engine() -> None:
    core = make_core(num_slots=500, context_length=256)
    Breaks(core, set(range(1, 100)))
    for uid in range(2):
        drain(core, [ask(uid, PREAMBLE)])
    with pytest.raises(EngineStopped):
        drain(core, [ask(2, PREAMBLE)])


def test_a_row_whose_logits_are_not_finite_ends_alone() -> None:
    core = make_core(num_slots=500, context_length=256)
    model = Breaks(core, set())
    model.logits = lambda hidden: torch.where(torch.arange(len(hidden))[:, None] == 0, torch.nan, model.model.logits(hidden))  # type: ignore[method-assign]
    answers = drain(core, [ask(0, [1, 2]), ask(1, [3, 4], max_new_tokens=1)])
    assert answers[0].finish is not None and answers[0].finish.status == 500
    assert len(answers[1].tokens) == 1


@pytest.mark.parametrize("temperature", [1e30, 3.5e38, 1e300])
def test_a_temperature_beyond_float32_still_forbids_the_stop_tokens(temperature: float) -> None:
    core = make_core(context_length=256)
    request = ask(0, [1, 2], temperature=temperature, ignore_eos=False, max_new_tokens=8, min_new_tokens=8, seed=3)
    assert len(drain(core, [request])[0].tokens) == 8


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_lpm_runs_what_is_cached_first(policy: str) -> None:
    core = make_core(num_slots=500, context_length=256, max_running=1, policy=policy)
    drain(core, [ask(0, PREAMBLE)])
    ended = []
    for request in (ask(1, [200] * 30), ask(2, [*PREAMBLE, 7])):
        core.add(request)
    while core.has_work():
        ended += [output.uid for output in core.step() if output.finish]
    assert ended == ([2, 1] if policy == "lpm" else [1, 2])


def test_a_long_prompt_never_takes_a_running_stream_out_of_a_step() -> None:
    core = make_core(budget=8, num_slots=500, context_length=256)
    core.add(ask(0, [1, 2, 3], max_new_tokens=30))
    core.step()
    core.step()
    core.add(ask(1, [9] * 200, max_new_tokens=1))
    for _ in range(10):
        assert any(output.uid == 0 and output.tokens for output in core.step())
