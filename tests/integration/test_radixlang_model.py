"""Programs on the default model: the seams between pieces do not change how a text is cut into tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from radixlang import EngineBackend, State, assistant, function, gen, select, system, user
from radixlang.backends.tokens import _stable

from radixrt import Engine

pytestmark = pytest.mark.model
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module")
def backend() -> Iterator[EngineBackend]:
    with Engine(max_total_tokens=8_000) as engine:
        yield EngineBackend(engine)


WORDS = ("the", "Capital", "of", "3.14", "1,000", "don't", "(a)", "naïve", "日本", "🙂", ":", "Q:", "end.", "\n", "\n\n", "\t", "  ")


def test_a_text_may_be_cut_where_it_is_called_stable(backend: EngineBackend) -> None:
    encode = backend.engine.encode
    rng = random.Random(0)
    cuts = 0
    for _ in range(300):
        text = " ".join(rng.choices(WORDS, k=8))
        more = rng.choice(WORDS) + rng.choice(["", " "]) + rng.choice(WORDS)
        cut = _stable(text)
        cuts += cut > 0
        whole = text + more
        assert encode(text[:cut]) + encode(whole[cut:]) == encode(whole)
    assert cuts > 200


def test_forks_say_what_the_same_requests_say_one_by_one(backend: EngineBackend) -> None:
    countries = ["France", "Japan", "Egypt", "Peru"]
    shared = "Here are some facts about countries, their capitals and what they are known for.\nThe capital of"

    @function
    def program(s: State) -> None:
        s += shared
        forks = s.fork(len(countries))
        forks += [f" {country} is" + gen("city", 6) for country in countries]
        forks.join()

    cities = program.run(backend=backend, **GREEDY)["city"]
    alone = [backend.engine.generate(f"{shared} {country} is", {"max_new_tokens": 6, **GREEDY})["text"] for country in countries]
    assert cities == alone


def test_a_conversation_finds_its_own_words_in_the_cache(backend: EngineBackend) -> None:
    @function
    def program(s: State) -> None:
        s += system("You are brief.")
        for i in range(3):
            s += user(f"Tell me one more thing about tea, please, number {i}.") + assistant(gen(f"a{i}", 16))

    state = program.run(backend=backend, **GREEDY)
    messages = state.messages()
    for i in range(1, 3):
        meta = state.get_meta_info(f"a{i}")
        assert meta["prompt_tokens"] - meta["cached_tokens"] < 30
        answer = backend.engine.chat(messages[: 2 * i + 2], {"max_new_tokens": 16, **GREEDY})
        assert answer["text"] == state[f"a{i}"]


@pytest.mark.parametrize("space", ["", " "])
def test_a_choice_is_the_same_whichever_side_of_the_seam_has_the_space(backend: EngineBackend, space: str) -> None:
    choices = ["Paris", "a banana"] if space else [" Paris", " a banana"]

    @function
    def program(s: State) -> None:
        s += "The capital of France is" + space + select("city", choices)

    state = program.run(backend=backend)
    assert state["city"].strip() == "Paris"
    scores = state.get_meta_info("city")["choices"]
    assert backend.engine.decode(scores[0]["tokens"]) == " Paris"

