"""Programs over HTTP say what they say on the embedded engine, through each of the routes they can take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from radixlang import EngineBackend, Function, HttpBackend, OpenAIBackend, ProgramError, State, assistant, function, gen, user
from radixlang_programs import GREEDY, PROGRAMS, few_shot_qa

from radixrt import Engine, RequestError


@pytest.fixture(scope="module")
def embedded() -> Iterator[EngineBackend]:
    with Engine(model_path="toy", max_total_tokens=20_000) as engine:
        yield EngineBackend(engine)


@pytest.fixture(scope="module")
def http(server: Any) -> HttpBackend:
    return HttpBackend(server.url)


@pytest.mark.parametrize(("program", "arguments"), PROGRAMS, ids=lambda value: value.__name__ if isinstance(value, Function) else "")
def test_a_program_says_the_same_over_http(
    http: HttpBackend, embedded: EngineBackend, program: Function, arguments: dict[str, Any]
) -> None:
    states = [program.run(backend=backend, **arguments, **GREEDY) for backend in (http, embedded)]
    assert states[0].text() == states[1].text()
    assert states[0].variables == states[1].variables
    assert [states[0][name] for name in states[0].variables] == [states[1][name] for name in states[1].variables]
    usages = [dataclasses.replace(state.usage(), cached_tokens=0) for state in states]
    assert usages[0] == usages[1]


def test_a_batch_over_http_is_pinned_and_unpinned(http: HttpBackend, server: Any) -> None:
    states = few_shot_qa.run_batch([{"question": f"q {i}"} for i in range(5)], backend=http, **GREEDY)
    single = [few_shot_qa.run(question=f"q {i}", backend=server.url, **GREEDY)["answer"] for i in range(5)]
    assert [state["answer"] for state in states] == single
    prefix = len("The following are questions with answers.\n\nQ: What is the capital of France?\nA: Paris\nQ: ")
    assert all(state.usage().cached_tokens >= prefix for state in states)
    assert re.search(r"^radixrt_pins\S* 0\.0$", server.http.get("/metrics").text, re.MULTILINE)


def test_a_stream_over_http(http: HttpBackend) -> None:
    state = few_shot_qa.run("why", backend=http, stream=True, **GREEDY)
    assert "".join(state.text_iter("answer")) == state["answer"] == few_shot_qa.run("why", backend=http, **GREEDY)["answer"]


def test_an_ephemeral_program_leaves_nothing_it_wrote_on_the_server(http: HttpBackend, server: Any) -> None:
    prompt = "An ephemeral program begins with this text. "

    def body(s: State) -> None:
        s += prompt + gen("a", 20) + " and " + gen("b", 20)

    def cached(text: str) -> int:
        return int(server.http.post("/v1/cache/explain", json={"prompt": text}).json()["matched_tokens"])

    state = function(ephemeral=True)(body).run(backend=http, **GREEDY)
    server.wait_for(lambda: cached(state.text()) <= len(prompt), 10)
    left = cached(state.text())
    lasting = function(body).run(backend=http, **GREEDY)
    assert lasting.text() == state.text()
    assert cached(state.text()) > left


def test_the_openai_routes_say_the_same(server: Any, embedded: EngineBackend) -> None:
    backend = OpenAIBackend(base_url=f"{server.url}/v1", extended=True)

    @function
    def program(s: State) -> None:
        s += user("Hi") + assistant("So: " + gen("a", 8)) + user("And?") + assistant(gen("b", 8))

    assert program.run(backend=backend, **GREEDY).messages() == program.run(backend=embedded, **GREEDY).messages()
    assert few_shot_qa.run("why", backend=backend, **GREEDY).text() == few_shot_qa.run("why", backend=embedded, **GREEDY).text()


def test_an_error_of_the_server_is_one_of_the_program(http: HttpBackend) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x", temperature=-1.0)

    with pytest.raises(ProgramError, match="temperature") as caught:
        program.run(backend=http)
    assert isinstance(caught.value.__cause__, RequestError)
    assert caught.value.__cause__.param is not None


def test_a_server_that_is_not_there_is_an_error_too() -> None:
    with pytest.raises(ProgramError, match="EngineStopped"):
        few_shot_qa.run("why", backend=HttpBackend("http://127.0.0.1:9"))
