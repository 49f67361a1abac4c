"""Programs on the embedded engine with the toy model: forks say what single requests say, and compute as little as can be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from radixlang import EngineBackend, Function, ProgramError, State, function, gen, gen_bool, gen_float, gen_int, gen_string, select
from radixlang.piece import walk
from radixlang_programs import GREEDY, PROGRAMS, few_shot_qa, judged, multi_turn, parallel_decoding

from radixrt import Engine

ROOT = Path(__file__).parents[2]
PREAMBLE = "A long preamble that all branches have in common, about nothing in particular. " * 20


@pytest.fixture(scope="module")
def backend() -> Iterator[EngineBackend]:
    with Engine(model_path="toy", max_total_tokens=100_000, random_seed=1) as engine:
        yield EngineBackend(engine)


@pytest.fixture
def engine(backend: EngineBackend) -> Engine:
    deadline = time.monotonic() + 5
    while not backend.engine.flush_cache():
        assert time.monotonic() < deadline
    return backend.engine


class Calls:
    """Takes down the tokens of every request of an engine, in and out."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[list[int], list[int]]] = []
        self._stats = engine.stats
        self._engine = engine
        generate = engine.async_generate

        async def recorded(prompt: Any, params: Any, **options: Any) -> Any:
            answer = await generate(prompt, params, **options)
            self.requests.append((list(options["input_ids"]), answer["output_ids"]))
            return answer

        monkeypatch.setattr(engine, "async_generate", recorded)
        self._before = engine.stats.computed_tokens

    @property
    def computed(self) -> int:
        return self._engine.stats.computed_tokens - self._before

    @property
    def optimum(self) -> int:
        """Tokens that any engine has to compute: of each prompt what no other has, at least its last; of each output all but the last."""
        nodes: dict[tuple[int, int], int] = {}
        total = 0
        for prompt, output in self.requests:
            at = new = 0
            for i, token in enumerate(prompt + output[:-1]):
                if (at, token) not in nodes:
                    nodes[at, token] = len(nodes) + 1
                    new += i < len(prompt)
                at = nodes[at, token]
            total += max(1, new) + len(output) - 1
        return total


@pytest.mark.parametrize(("program", "arguments"), PROGRAMS, ids=lambda value: value.__name__ if isinstance(value, Function) else "")
def test_every_generation_is_what_a_request_with_its_text_gets(
    backend: EngineBackend, engine: Engine, program: Function, arguments: dict[str, Any]
) -> None:
    state = program.run(backend=backend, **arguments, **GREEDY)
    compared = 0
    for piece in state._run.pieces:
        if piece.kind != "gen" or piece.chat or piece.sampling is None or piece.sampling.stop_regex:
            continue
        text = "".join(before.text for before in walk(piece.before))
        alone = engine.generate(text, piece.sampling.native())
        texts = [answer["text"] for answer in (alone if isinstance(alone, list) else [alone])]
        assert [answer.text for answer in piece.answers] == texts
        compared += 1
    assert compared or program is multi_turn


def test_a_conversation_is_what_the_chat_route_gets(backend: EngineBackend, engine: Engine) -> None:
    state = multi_turn.run("Hi", "And <|im_end|> now?", backend=backend, **GREEDY)
    messages = state.messages()
    assert engine.chat(messages[:2], {"max_new_tokens": 10, **GREEDY})["text"] == state["answer_1"]
    begun = [*messages[:4], {"role": "assistant", "content": "Well, "}]
    answer = engine.chat(begun, {"max_new_tokens": 10, **GREEDY}, continue_final_message=True)
    assert answer["text"] == state["answer_2"]
    assert messages[4]["content"] == f"Well, {state['answer_2']}."


@function
def tree(s: State, width: int, depth: int) -> None:
    """Branches that branch again."""
    s += gen("x", 6)
    if depth:
        forks = s.fork(width)
        for i, fork in enumerate(forks):
            fork += f" branch {i} "
            tree(fork, width, depth - 1)


def settle(state: State) -> None:
    deadline = time.monotonic() + 20
    while state._run.tasks:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_forks_compute_what_has_to_be_computed_and_no_more(
    backend: EngineBackend, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(engine, monkeypatch)

    @function
    def program(s: State) -> None:
        s += PREAMBLE
        tree(s, 3, 2)

    settle(program.run(backend=backend, **GREEDY))
    assert len(calls.requests) == 1 + 3 + 9
    assert calls.computed == calls.optimum
    # Siblings that arrive together, with nothing of what they share in the cache.
    engine.flush_cache()
    calls = Calls(engine, monkeypatch)
    state = parallel_decoding.run(PREAMBLE, backend=backend, **GREEDY)
    assert calls.computed == calls.optimum
    assert state.usage().hit_rate > 0.5


def test_two_hundred_forks_take_memory_and_tokens_by_what_is_new(
    backend: EngineBackend, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(engine, monkeypatch)

    @function
    def program(s: State) -> Any:
        s += PREAMBLE
        forks = s.fork(200)
        forks += lambda i: f" number {i:03}:" + gen("x", 4)
        forks.join()
        return forks

    state = program.run(backend=backend, **GREEDY)
    assert len(set(state["x"])) > 100
    assert calls.computed == calls.optimum
    new = len(" number 000:") + 4
    assert calls.computed <= len(PREAMBLE) + 200 * new
    assert engine.stats.capacity_tokens - engine.stats.free_tokens <= len(PREAMBLE) + 200 * new
    # What a branch remembers is what it added, not the whole of its prompt.
    for fork in state.ret_value:
        known = fork._last.state
        assert len(known.ids) + len(known.before.ids) < 2 * new


def test_forks_share_what_was_tokenized_before_them(backend: EngineBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = backend.engine.encode

    def counted(text: str, **options: Any) -> list[int]:
        encoded.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(backend.engine, "encode", counted)

    @function
    def program(s: State) -> None:
        s += PREAMBLE
        forks = s.fork(20)
        forks += lambda i: f" number {i}:" + gen("x", 2)
        forks.join()
        assert len(s["x"]) == 20

    program.run(backend=backend, **GREEDY)
    assert sum(encoded) < len(PREAMBLE) + 20 * 40


def test_a_batch_computes_its_constant_prefix_once_and_unpins_it(backend: EngineBackend, engine: Engine) -> None:
    @function
    def program(s: State, question: str) -> None:
        s += PREAMBLE + "Q: " + question + "\nA:" + gen("answer", 4)

    states = program.run_batch([{"question": f"question {i}"} for i in range(8)], backend=backend, **GREEDY)
    assert [state.usage().cached_tokens >= len(PREAMBLE) for state in states] == [True] * 8
    assert engine.stats.num_pins == 0
    single = [program.run(question=f"question {i}", backend=backend, **GREEDY)["answer"] for i in range(8)]
    assert [state["answer"] for state in states] == single
    pin = program.cache(backend=backend)
    assert engine.unpin(pin)


def test_what_was_written_is_found_in_the_cache_as_it_was_written(backend: EngineBackend, engine: Engine) -> None:
    @function
    def program(s: State) -> None:
        s += PREAMBLE
        for i in range(5):
            s += f"\n{i}." + gen(f"x{i}", 12, stop=["e", "t"])

    state = program.run(backend=backend, temperature=1.0, seed=3)
    for i in range(1, 5):
        meta = state.get_meta_info(f"x{i}")
        assert meta["prompt_tokens"] - meta["cached_tokens"] <= len(f"\n{i}.") + 1


def test_a_stream_of_the_engine_is_the_answer(backend: EngineBackend) -> None:
    state = few_shot_qa.run("why", backend=backend, stream=True, **GREEDY)
    pieces = list(state.text_iter("answer"))
    assert "".join(pieces) == state["answer"] == few_shot_qa.run("why", backend=backend, **GREEDY)["answer"]
    assert len(pieces) > 1


def test_a_regular_expression_ends_a_text_and_what_follows_goes_on_from_there(backend: EngineBackend, engine: Engine) -> None:
    @function
    def program(s: State) -> None:
        s += "Text:" + gen("x", 200, stop_regex="[aeiou]") + "|" + gen("y", 4)

    state = program.run(backend=backend, **GREEDY)
    free = engine.generate("Text:", {"max_new_tokens": 200, **GREEDY})["text"]
    first = next(i for i, char in enumerate(free) if char in "aeiou")
    assert state["x"] == free[:first]
    assert state["y"] == engine.generate(f"Text:{free[:first]}|", {"max_new_tokens": 4, **GREEDY})["text"]
    # A character is a token here, and that of the match is the last one, whatever the engine wrote until it was told.
    assert state.get_meta_info("x")["completion_tokens"] == first + 1


def test_a_regular_expression_that_matches_nothing_at_all_ends_a_text_before_its_first_token(backend: EngineBackend) -> None:
    @function
    def program(s: State) -> None:
        s += "Text:" + gen("x", 20, stop_regex="(?:never)*")

    state = program.run(backend=backend, **GREEDY)
    assert (state["x"], state.get_meta_info("x")["completion_tokens"]) == ("", 0)


def test_an_empty_state_can_be_written_and_forked(backend: EngineBackend, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks += gen("x", 4) + "z" + gen("w", 4)
        forks.join()
        s += select("y", ["a", "b"])

    calls = Calls(engine, monkeypatch)
    state = program.run(backend=backend, **GREEDY)
    assert state["x"][0] == state["x"][1]
    # The token that stands for the beginning stays where it was.
    prompts = sorted((prompt for prompt, _ in calls.requests), key=len)
    assert prompts[-1][: len(prompts[0])] == prompts[0] == [256]
    assert state["y"] in ("a", "b")


def test_select_takes_the_likeliest_choice(backend: EngineBackend, engine: Engine) -> None:
    choices = ["alpha", "beta", "gamma"]

    @function
    def program(s: State) -> None:
        s += "Pick: " + select("x", choices)

    state = program.run(backend=backend)
    means = []
    for choice in choices:
        text = "Pick: " + choice
        answer = engine.generate(text, {"max_new_tokens": 0}, return_logprob=True, logprob_start_len=len("Pick: "))
        logprobs = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]
        assert len(logprobs) == len(choice)
        means.append(sum(logprobs) / len(logprobs))
    assert state["x"] == choices[means.index(max(means))]
    told = state.get_meta_info("x")["choices"]
    assert [sum(score["logprobs"]) / len(score["logprobs"]) for score in told] == pytest.approx(means, abs=1e-5)


def test_logprobs_are_in_the_meta_information(backend: EngineBackend) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x", 3, logprobs=True, top_logprobs=2)

    meta = program.run(backend=backend, **GREEDY).get_meta_info("x")
    assert len(meta["output_token_logprobs"]) == 3
    assert [len(row) for row in meta["output_top_logprobs"]] == [2, 2, 2]


def test_a_prompt_too_long_fails_its_own_branch(backend: EngineBackend) -> None:
    @function
    def program(s: State) -> Any:
        s += "a"
        forks = s.fork(2)
        forks[0] += "b" * 9000 + gen("x", 2)
        forks[1] += "b" + gen("x", 2)
        return forks

    good, bad = reversed(program.run(backend=backend, **GREEDY).ret_value)
    assert len(good["x"]) == 2
    with pytest.raises(ProgramError, match="forks\\[0\\]"):
        bad["x"]


def test_a_page_shows_each_token_of_the_tree_once(backend: EngineBackend, engine: Engine) -> None:
    state = parallel_decoding.run("sleep", backend=backend, **GREEDY)
    page = state.to_html()
    assert page.count('class="cache"') == 0
    assert page.count("tips") == 0  # a letter is a token here
    assert page.count('<span class="model" title') == 3 * 10
    again = parallel_decoding.run("sleep", backend=backend, **GREEDY).to_html()
    assert again.count('<span class="cache"') > again.count('<span class="constant"')
    judged.run("An essay", backend=backend, **GREEDY)
    chosen = judged.run("An essay", backend=backend, **GREEDY).to_html()
    assert chosen.count('<span class="cache"') >= len("Essay: An essay\n")


SCRIPT = """
from radixlang import EngineBackend, function, gen, set_default_backend

@function
def program(s, x):
    s += f"{x}:" + gen("y", 4)

set_default_backend(EngineBackend(model_path="toy", max_total_tokens=1000))
states = program.run_batch([{"x": "a"}, {"x": "b"}], ignore_eos=True)
assert all(state.text().startswith(x) for state, x in zip(states, ("a:", "b:")))
print("done")
"""


def test_a_script_needs_no_main_guard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'frontend'}", "PATH": ""},
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr
    assert "Error" not in done.stderr




def cached_tokens(engine: Engine) -> int:
    nodes = engine.cache_tree(depth=1000, limit=1000)["nodes"]
    return sum(node["tokens"] for node in nodes)


def test_an_ephemeral_program_leaves_its_prompt_and_nothing_it_wrote(backend: EngineBackend, engine: Engine) -> None:
    def body(s: State) -> None:
        s += PREAMBLE + gen("a", 20, stop="e") + " and " + gen("b", 20)
        forks = s.fork(3)
        forks += lambda i: f" branch {i}" + gen("c", 20) + gen("d", 5, n=1)
        forks.join()
        assert len(s["c"]) == len(s["d"]) == 3

    lasting = function(body).run(backend=backend, **GREEDY)
    left = cached_tokens(engine)
    engine.flush_cache()
    ephemeral = function(ephemeral=True)(body).run(backend=backend, **GREEDY)
    assert ephemeral.text() == lasting.text()
    assert ephemeral["c"] == lasting["c"]
    assert ephemeral.usage().hit_rate > 0.9
    deadline = time.monotonic() + 5
    while cached_tokens(engine) > len(PREAMBLE):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(PREAMBLE) - 1 <= cached_tokens(engine) < left - 100


def test_a_state_is_kept_and_computed_while_its_program_waits(backend: EngineBackend, engine: Engine) -> None:
    @function
    def program(s: State) -> int:
        s += PREAMBLE + gen("a", 4) + "what the tool is asked"
        with s.kept():
            deadline = time.monotonic() + 5
            # What is cached is pinned at once, and again with the rest, which is computed first.
            while engine.stats.num_pins == 0 or (matched := engine.explain(s.text())["matched_tokens"]) < asked:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        s += "what it answers" + gen("b", 4)
        return int(matched)

    asked = len(PREAMBLE) + len("what the tool is asked")
    state = program.run(backend=backend, **GREEDY)
    assert state.ret_value >= asked
    deadline = time.monotonic() + 5
    while engine.stats.num_pins:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_seed_repeats_a_run_and_not_its_siblings(backend: EngineBackend) -> None:
    @function
    def program(s: State) -> None:
        s += "Once upon a time"
        forks = s.fork(3)
        forks += gen("x", 8)
        forks.join()

    first, second, other = (program.run(backend=backend, temperature=1.0, ignore_eos=True, seed=seed)["x"] for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        (gen_int("x", 8), int),
        (gen_float("x", 12), float),
        (gen_bool("x"), bool),
        (gen_string("x", 24), str),
        (gen("x", 12, regex="(ab|cd){2,3}"), str),
        (gen("x", 40, json_schema={"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}), str),
        (gen("x", 40, ebnf='root ::= "yes" | "no"'), str),
    ],
)
def test_what_a_grammar_allows_is_what_is_written(backend: EngineBackend, expr: Any, kind: type) -> None:
    @function
    def program(s: State) -> None:
        s += "Value: " + expr + "." + gen("y", 3)

    state = program.run(backend=backend, temperature=1.0, seed=4)
    value = state["x"]
    assert type(value) is kind
    if kind is str and expr.sampling.regex and "ab" in expr.sampling.regex:
        assert re.fullmatch(expr.sampling.regex, value)
    if expr.sampling.json_schema:
        assert json.loads(value)["a"] in (1, "b")
    if expr.sampling.ebnf:
        assert value in ("yes", "no")
