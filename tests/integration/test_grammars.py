"""Constraints on the engine core: the same text with and without drafts, whole at the end of its budget, and an answer to
every request whatever becomes of its grammar.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_engine
import msgspec
import pytest
import torch

from radixrt import attention
from radixrt.config import CacheConfig, ScheduleConfig
from radixrt.engine.core import EngineCore
from radixrt.engine.grammars import vocabulary_of
from radixrt.errors import GrammarError, Overloaded
from radixrt.grammar import select
from radixrt.grammar.compile.service import CompileService
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.models.toy import ToyModel
from radixrt.text.toy_tokenizer import ToyTokenizer
from radixrt.types import (
    Dormancy,
    Finish,
    FinishReason,
    GenerateRequest,
    GrammarOptions,
    GrammarSpec,
    LogprobOptions,
    SamplingParams,
    TokenOutput,
)

WAIT = 60.0
NESTED = ["(" * k + ")" * k for k in range(1, 60)]
KEYS = [f'{{"name": "{name}", "city": "{city}", "note": ""}}' for name in "abc" for city in ("Paris", "Parma")]
CHAINS = ["a" * k + "!" for k in range(3, 60)]


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = dict.fromkeys(("fsm", "llguidance", "xgrammar"), "fake_engine")
    for module in ("radixrt.grammar.select", "radixrt.grammar.compile.engines", "radixrt.grammar.compile.service"):
        monkeypatch.setattr(f"{module}.ENGINES", engines)
    assert select.ENGINES is engines
    monkeypatch.setenv("PYTHONPATH", str(Path(fake_engine.__file__).parent))  # for the children


MakeCore = Callable[..., EngineCore]


@pytest.fixture
def make_core() -> Iterator[MakeCore]:
    cores: list[EngineCore] = []

    def make(*, overlap: bool = True, jump: bool = True, budget: int = 64, num_slots: int = 2000, **schedule: Any) -> EngineCore:
        core = EngineCore.build(
            model=ToyModel(context_length=512),
            backend=attention.select_backend("torch_sdpa"),
            cache=CacheConfig(kv_cache_dtype="float32"),
            schedule=ScheduleConfig(
                schedule_policy="fcfs", chunked_prefill_size=budget, max_running_requests=6, disable_overlap_schedule=not overlap,
                schedule_conservativeness=0.0, **schedule,
            ),
            num_slots=num_slots,
            device=torch.device("cpu"),
            grammars=lambda info: CompileService(lambda: vocabulary_of(ToyTokenizer(), info), seconds=1.0, num_children=1, max_queued=2),
            jump_forward=jump,
        )
        cores.append(core)
        return core

    yield make
    for core in cores:
        core.close()


def choose(texts: Sequence[str], **options: Any) -> GrammarSpec:
    return GrammarSpec("regex", "cheap choose " + json.dumps(list(texts)), GrammarOptions(**options))


def ask(uid: int, grammar: GrammarSpec | None, *, prompt: str = "go", logprobs: bool = False, **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_new_tokens": 40, "temperature": 0.0, "seed": uid, "grammar": grammar, **sampling})
    return GenerateRequest(
        uid=uid, prompt=list(prompt.encode()), sampling=params, logprobs=LogprobOptions(top=1) if logprobs else None
    )


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Any] = []
        self.finish: Finish | None = None

    def push(self, output: TokenOutput) -> None:
        assert self.finish is None, "nothing comes after the end"
        self.tokens += output.tokens
        self.logprobs += output.logprobs or []
        self.finish = output.finish

    @property
    def text(self) -> str:
        return bytes(token for token in self.tokens if token < 256).decode()


def drain(core: EngineCore, requests: Iterable[GenerateRequest] = ()) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    for request in requests:
        answers[request.uid] = Answer()
        core.add(request)
    until = time.monotonic() + WAIT
    while any(answer.finish is None for answer in answers.values()):
        assert time.monotonic() < until, "some request never ended"
        if core.has_work():
            for output in core.step():
                answers.setdefault(output.uid, Answer()).push(output)
            core.check_invariants()
        else:
            assert core.patience is not None, "nobody would look again"
            time.sleep(core.patience)
    while core.has_work():
        core.step()
    stats = core.stats()
    assert stats.failed_steps == 0 and stats.free_tokens + stats.cached_tokens == stats.capacity_tokens
    return answers


def workload(seed: int) -> list[GenerateRequest]:
    rng = random.Random(seed)
    requests = []
    for uid in range(6):
        texts = rng.choice([NESTED, KEYS, CHAINS, None])
        shortest = min(map(len, texts)) if texts else 1
        options: dict[str, Any] = {
            "temperature": rng.choice([0.0, 1.0]), "max_new_tokens": rng.randrange(shortest, 50), "logprobs": rng.random() < 0.3,
        }
        if rng.random() < 0.3:
            options["min_new_tokens"] = min(5, options["max_new_tokens"])
        if rng.random() < 0.3:
            options["logit_bias"] = {ord("("): -50.0, ord("a"): 20.0}
        if rng.random() < 0.2:
            options["frequency_penalty"] = 1.0
        requests.append(ask(uid, choose(texts) if texts else None, prompt="p" * rng.randrange(1, 30), **options))
    return requests


SETTINGS = list(itertools.product((False, True), (False, True), (5, 64), (100, 2000)))


@pytest.mark.parametrize("seed", range(4))
def test_neither_drafts_nor_anything_else_changes_a_constrained_text(make_core: MakeCore, seed: int) -> None:
    reference: dict[int, Answer] | None = None
    for jump, overlap, budget, num_slots in [(False, False, 64, 2000), *SETTINGS[seed::4]]:
        answers = drain(make_core(jump=jump, overlap=overlap, budget=budget, num_slots=num_slots), workload(seed))
        reference = reference or answers
        for request in workload(seed):
            answer, expected, spec = answers[request.uid], reference[request.uid], request.sampling.grammar
            assert (answer.tokens, answer.finish) == (expected.tokens, expected.finish), request
            assert len(answer.tokens) <= (request.sampling.max_new_tokens or 0)
            if request.logprobs is not None:
                assert [entry.token for entry in answer.logprobs] == answer.tokens
            if spec is not None:
                assert answer.text in json.loads(spec.text.removeprefix("cheap choose "))
                assert answer.finish is not None and answer.finish.closed == (answer.finish.reason is FinishReason.LENGTH)


def test_forced_text_saves_steps_and_rides_on_the_prompts_step(make_core: MakeCore) -> None:
    steps = []
    for jump in (False, True):
        core = make_core(jump=jump, overlap=False)
        answer = drain(core, [ask(1, choose(KEYS), max_new_tokens=80)])[1]
        assert answer.text in KEYS
        steps.append(core.stats().steps)
    stats = core.stats().grammar
    assert stats.accepted_drafts == stats.drafted_tokens > 20
    assert steps[0] - steps[1] >= stats.accepted_drafts - 1
    # {"name": " is known before anything is sampled: it and the first choice come with the prompt.
    core = make_core(overlap=False)
    core.add(ask(2, choose(KEYS), max_new_tokens=80))
    while not core.has_work():
        time.sleep(core.patience or 0)
    (output,) = core.step()
    assert bytes(output.tokens).startswith(b'{"name": "') and len(output.tokens) == 11


def test_a_text_is_closed_in_time_or_cut_off_as_asked(make_core: MakeCore) -> None:
    core = make_core()
    bias = {ord("("): 100.0}
    for limit in (2, 3, 9, 20):
        answers = drain(core, [
            ask(2 * limit, choose(NESTED), max_new_tokens=limit, logit_bias=bias, logprobs=True),
            ask(2 * limit + 1, choose(NESTED, truncate="hard"), max_new_tokens=limit, logit_bias=bias),
        ])
        closed, hard = answers[2 * limit], answers[2 * limit + 1]
        assert closed.text == "(" * (limit // 2) + ")" * (limit // 2)
        assert closed.finish == Finish(FinishReason.LENGTH, closed=True)
        sampled = [entry.logprob is not None for entry in closed.logprobs]
        assert (any(sampled) and not all(sampled)) or limit == 2
        assert hard.text == "(" * limit and hard.finish == Finish(FinishReason.LENGTH)
    assert core.stats().grammar.closed == 4


def test_free_text_around_calls_is_never_closed_and_ends_as_asked(make_core: MakeCore) -> None:
    """The grammar begins at "<": free text is cut off, an end may be ignored in it, and what follows "<" is closed in time."""
    core = make_core()
    spec = choose(NESTED, dormancy=Dormancy(trigger="<"))
    end, room = ToyTokenizer.eos_token_ids[0], 7
    biases: list[dict[int, float]] = [{ord("x"): 100.0}, {end: 100.0}, {end: 100.0}, {ord("<"): 100.0, ord("("): 90.0}]
    answers = drain(core, [
        ask(uid, spec, max_new_tokens=room, logit_bias=bias, ignore_eos=uid == 2) for uid, bias in enumerate(biases)
    ])  # fmt: skip
    assert [answer.tokens for answer in answers.values()] == [[*b"xxxxxxx"], [end], [end] * room, [*b"<((()))"]]
    assert [answer.finish for answer in answers.values()] == [
        Finish(FinishReason.LENGTH), Finish(FinishReason.STOP, matched=end), Finish(FinishReason.LENGTH),
        Finish(FinishReason.LENGTH, closed=True),
    ]  # fmt: skip


def test_no_call_is_begun_that_does_not_fit(make_core: MakeCore) -> None:
    core = make_core()
    spec = choose(NESTED, dormancy=Dormancy(trigger="<"))
    answer = drain(core, [ask(1, spec, max_new_tokens=2, logit_bias={ord("<"): 100.0})])[1]
    assert (answer.text, answer.finish) == ("", Finish(FinishReason.LENGTH))


def test_what_closes_a_text_is_not_taken_for_what_was_computed(make_core: MakeCore) -> None:
    # The discarded token's K/V must not be found under the token in its place: the second answer goes on from the first.
    core, fresh = make_core(), make_core()
    first = drain(core, [ask(1, choose(NESTED), max_new_tokens=9, logit_bias={ord("("): 100.0})])[1]
    prompt = "go" + first.text
    assert drain(core, [ask(2, None, prompt=prompt)])[2].tokens == drain(fresh, [ask(2, None, prompt=prompt)])[2].tokens


def test_a_budget_below_the_shortest_answer_is_refused(make_core: MakeCore) -> None:
    core = make_core()
    drain(core, [ask(1, choose(CHAINS), max_new_tokens=4)])
    with pytest.raises(GrammarError, match="has 4 tokens, and there is room for 3") as caught:
        core.add(ask(2, choose(CHAINS), max_new_tokens=3))
    assert caught.value.code == "max_tokens_too_small"
    assert drain(core, [ask(3, choose(CHAINS, truncate="hard"), max_new_tokens=3)])[3].text == "aaa"
    assert drain(core, [ask(4, choose(CHAINS), max_new_tokens=0)])[4].text == ""


def test_more_tokens_are_wanted_than_the_grammar_has(make_core: MakeCore) -> None:
    answer = drain(make_core(), [ask(1, choose(["ab", "abc", "x"]), min_new_tokens=10)])[1]
    assert answer.text in ("abc", "x") and answer.finish == Finish(FinishReason.STOP)


def test_stop_tokens_and_ends_of_the_grammar(make_core: MakeCore) -> None:
    answers = drain(make_core(), [
        ask(1, choose(["abc"])), ask(2, choose(["abc"]), stop_token_ids=(ord("b"),)), ask(3, choose(["abc", "abcd"]), ignore_eos=True),
    ])
    assert answers[1].text == "abc" and answers[1].finish == Finish(FinishReason.STOP)
    assert answers[2].text == "ab" and answers[2].finish == Finish(FinishReason.STOP, matched=ord("b"))
    assert answers[3].text in ("abc", "abcd")


def slow(seconds: float = 0.3) -> GrammarSpec:
    return GrammarSpec("regex", f"cheap sleep {seconds}", param="guided_regex")


def test_others_run_while_a_grammar_is_compiled(make_core: MakeCore) -> None:
    core = make_core()
    core.add(ask(1, GrammarSpec("regex", "sleep 100", param="guided_regex")))
    started = time.monotonic()
    assert not core.has_work() and core.stats().num_waiting == 1
    answers = drain(core, [ask(2, None), ask(3, choose(CHAINS))])
    assert answers[2].finish and answers[3].finish and 1 not in answers
    while not core.has_work():
        assert time.monotonic() - started < WAIT
        time.sleep(0.01)
    (output,) = core.step()
    assert output.uid == 1 and output.finish is not None and output.finish.status == 400
    assert output.finish.code == "grammar_too_complex" and output.finish.param == "guided_regex"


def test_many_wait_for_one_grammar_and_all_get_it(make_core: MakeCore) -> None:
    core = make_core()
    answers = drain(core, [ask(uid, slow(0.2)) for uid in range(5)])
    assert len(answers) == 5 and core.stats().grammar.compiled == 1 and core.stats().grammar.wait_seconds >= 0.2


def test_the_wait_for_a_grammar_is_in_the_report_with_its_reason(make_core: MakeCore) -> None:
    core = make_core()
    started, outputs = time.monotonic(), []
    core.add(msgspec.structs.replace(ask(1, slow(0.2)), want_report=True))
    while not outputs or outputs[-1].finish is None:
        outputs += core.step()
        assert time.monotonic() - started < WAIT
    report = outputs[-1].report
    assert report is not None and 0.2 <= report.waited["grammar"] < time.monotonic() - started
    assert report.waited["grammar"] == core.stats().wait_seconds["grammar"]


def test_a_waiting_request_can_be_aborted_and_runs_out_of_time(make_core: MakeCore) -> None:
    core = make_core()
    core.add(ask(1, slow()))
    core.abort(1)
    (output,) = core.step()
    assert output.finish == Finish(FinishReason.ABORT, message="aborted")
    core.abort(1)
    assert not core.has_work()
    core = make_core(waiting_timeout=0.05)
    answer = drain(core, [ask(1, slow())])[1]
    assert answer.finish is not None and answer.finish.status == 503


def test_refusals_come_at_once_where_they_are_known(make_core: MakeCore) -> None:
    core = make_core()
    spec = GrammarSpec("regex", "cheap error", param="regex")
    answer = drain(core, [ask(1, spec)])[1]
    assert answer.finish is not None and (answer.finish.status, answer.finish.param) == (400, "regex")
    with pytest.raises(GrammarError) as caught:
        core.add(ask(2, spec))
    assert caught.value.param == "regex"
    with pytest.raises(GrammarError, match="NUL"):
        core.add(ask(3, GrammarSpec("regex", "\0")))
    with pytest.raises(GrammarError, match="serves no"):
        core.add(ask(4, GrammarSpec("regex", "a", GrammarOptions(backend="llguidance"))))
    assert core.stats().num_waiting == 0 and not core.has_work()


def test_a_full_queue_counts_those_that_wait_for_grammars(make_core: MakeCore) -> None:
    core = make_core(max_queued_requests=2)
    for uid in (1, 2):
        core.add(ask(uid, slow()))
    with pytest.raises(Overloaded):
        core.add(ask(3, slow()))


def test_closing_the_core_leaves_no_process(make_core: MakeCore) -> None:
    core = make_core()
    core.add(ask(1, GrammarSpec("regex", "sleep 100")))
    time.sleep(0.2)
    core.close()


def test_an_engine_without_a_tokenizer_refuses(make_core: MakeCore) -> None:
    core = make_core()
    core._grammars = None
    with pytest.raises(GrammarError, match="tokenizer"):
        core.add(ask(1, choose(CHAINS)))


def test_a_grammar_over_its_limits_ends_its_request_alone(make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    from text_grammar import TextState

    fill = TextState.fill_mask

    def broken(self: TextState, row: Any) -> None:
        if len(self.tokens) == 2:
            raise GrammarError("over the limits")
        fill(self, row)

    monkeypatch.setattr(TextState, "fill_mask", broken)
    answers = drain(make_core(jump=False), [ask(1, choose(CHAINS)), ask(2, None)])
    assert answers[1].finish == Finish(FinishReason.ABORT, message="over the limits", status=400)
    assert answers[2].finish is not None and answers[2].finish.status is None


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("method", ["accept", "rollback", "fill_mask", "is_finished", "is_accepting", "draft", "close"])
def test_a_grammar_that_breaks_ends_its_request_alone(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch, method: str, overlap: bool
) -> None:
    from text_grammar import TextState

    whole, others = getattr(TextState, method), [ask(2, choose(NESTED)), ask(3, None)]
    alone = drain(make_core(), others)

    def broken(self: TextState, *args: Any) -> Any:
        if 97 in self.tokens and len(self.tokens) >= 2:
            raise RuntimeError("as asked")
        return whole(self, *args)

    monkeypatch.setattr(TextState, method, broken)
    answers = drain(make_core(overlap=overlap), [ask(1, choose(CHAINS), max_new_tokens=12), *others])
    assert [answers[uid].tokens for uid in (2, 3)] == [alone[uid].tokens for uid in (2, 3)]
    if method in ("close", "is_accepting"):  # nothing that must be known
        assert answers[1].finish is not None and answers[1].finish.status is None
    else:
        assert answers[1].finish == Finish(FinishReason.ABORT, message="the grammar broke", status=500)


def test_masks_of_a_step_lie_in_one_piece_of_memory(make_core: MakeCore) -> None:
    core = make_core(overlap=False)
    arena = core._loop._runner.masks  # type: ignore[attr-defined]
    drain(core, [ask(uid, choose(CHAINS)) for uid in range(4)])
    before = arena._rows
    drain(core, [ask(uid, choose(CHAINS)) for uid in range(4, 8)])
    assert arena._rows is before and core.stats().grammar.masked_rows > 0


def test_the_vocabulary_of_a_tokenizer() -> None:
    core_info = ToyModel().shape
    words = vocabulary_of(ToyTokenizer(), type("Info", (), {"vocab_size": core_info.vocab_size, "eos_token_ids": (256,)})())  # type: ignore[arg-type]
    assert isinstance(words, Vocabulary) and words.end_ids == (256, 258) and words.bytes_of(257) is None
    assert words.encode("a<|im_end|>") == list(b"a<|im_end|>")
