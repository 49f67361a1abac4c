"""Programs on a script of answers: what is said, in which order, at the same time as what, and what goes wrong where."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any

import pytest
from radixlang import (
    ProgramError,
    ScriptedBackend,
    State,
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    gen_bool,
    gen_float,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    user,
)

from radixrt import RequestError


def test_text_and_generations_follow_each_other() -> None:
    @function
    def capital(s: State, country: str) -> str:
        s += f"The capital of {country} is" + gen("city", 8, stop=".") + "."
        return f"{s['city'].strip()}!"

    backend = ScriptedBackend({"city": " Paris. It is"})
    state = capital.run("France", backend=backend)
    assert state.text() == "The capital of France is Paris."
    assert state["city"] == " Paris"
    assert state.ret_value == "Paris!"
    assert state.get_meta_info("city")["finish_reason"] == {"type": "stop", "matched": "."}
    (request,) = backend.requests
    assert (request.sampling.max_tokens, request.sampling.stop) == (8, ".")
    assert backend.prompts == ["The capital of France is"]


def test_a_generation_sees_what_came_before_it() -> None:
    @function
    def chain(s: State) -> None:
        s += "a" + gen("x") + "b" + gen("y") + "c" + select("z", ["1", "2"])

    backend = ScriptedBackend({"x": "X", "y": "Y"}, likes=["2"])
    state = chain.run(backend=backend)
    assert backend.prompts == ["a", "aXb", "aXbYc"]
    assert state.text() == "aXbYc2"
    assert [state[name] for name in state.variables] == ["X", "Y", "2"]


def test_reading_a_variable_waits_for_it_only() -> None:
    release = threading.Event()

    class Slow(ScriptedBackend):
        async def generate(self, request: Any) -> Any:
            if request.piece.name == "slow":
                await asyncio.get_running_loop().run_in_executor(None, release.wait)
            return await super().generate(request)

    @function
    def program(s: State) -> Any:
        s += gen("quick") + gen("slow")
        quick = s["quick"]
        release.set()
        return quick, s["slow"]

    assert program.run(backend=Slow({"quick": "q", "slow": "s"})).ret_value == ("q", "s")


def test_generations_of_different_states_run_at_the_same_time_and_take_no_thread_each() -> None:
    met = asyncio.Event()

    class Meeting(ScriptedBackend):
        """Answers nobody before all are there."""

        async def generate(self, request: Any) -> Any:
            self.requests.append(request)
            if len(self.requests) == 1000:
                met.set()
            await asyncio.wait_for(met.wait(), 30)
            return await super().generate(request)

    backend = Meeting({"x": ["x"] * 1000})
    threads = 0

    @function
    def wide(s: State) -> None:
        nonlocal threads
        forks = s.fork(1000)
        forks += gen("x")
        threads = threading.active_count()
        forks.join()
        assert s["x"] == ["x"] * 1000

    before = threading.active_count()
    wide.run(backend=backend)
    assert met.is_set()
    assert threads <= before + 2


@pytest.mark.parametrize(
    ("mode", "text"), [("gather_variable", "one"), ("concatenate", "one<A0><A1><A2>"), ("concate_and_append", "one<A0><A1><A2>")]
)
def test_join(mode: str, text: str) -> None:
    @function
    def program(s: State) -> None:
        s += "one"
        forks = s.fork(3)
        forks += lambda i: f"<A{i}" + gen("v")
        forks += [">", ">", ">"]
        forks.join(mode)
        if mode == "gather_variable":
            assert s["v"] == ["", "", ""]
        s += gen("w")

    backend = ScriptedBackend({"v": ["", "", ""], "w": "end"})
    assert program.run(backend=backend).text() == text + "end"
    assert backend.prompts[-1] == text


def test_messages_can_be_forked_and_concatenated() -> None:
    @function
    def program(s: State) -> None:
        s += system("be brief")
        forks = s.fork(2)
        for i, fork in enumerate(forks):
            fork += user(f"q{i}") + assistant(gen("a"))
        forks.join("concatenate")
        s += user("all?") + assistant(gen("b"))

    state = program.run(backend=ScriptedBackend({"a": ["a0", "a1"], "b": "yes"}))
    assert [message["content"] for message in state.messages()] == ["be brief", "q0", "a0", "q1", "a1", "all?", "yes"]


def test_an_empty_state_can_be_forked() -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks += gen("x")
        forks.join()

    assert program.run(backend=ScriptedBackend({"x": ["a", "b"]}))["x"] == ["a", "b"]


def test_a_failing_branch_fails_only_itself() -> None:
    @function
    def program(s: State) -> Any:
        forks = s.fork(3)
        forks += "say " + gen("x") + "."
        forks.join(skip_failed=True)
        s += "done" + gen("y")
        return forks

    script = {"x": ["a", "b"], "y": "!"}  # nothing is left for one of the three
    state = program.run(backend=ScriptedBackend(script))
    forks = state.ret_value
    assert state.text() == "done!"
    assert state["x"] == ["a", "b"]
    errors = [fork.error() for fork in forks]
    assert [error is None for error in errors] == [True, True, False]
    with pytest.raises(ProgramError):
        forks[2]["x"]
    with pytest.raises(ProgramError):
        forks[2].text()


@pytest.mark.parametrize("skip_failed", [True, False])
def test_a_branch_that_failed_is_left_out_of_the_text_or_fails_it(skip_failed: bool) -> None:
    @function
    def program(s: State) -> None:
        s += "one"
        forks = s.fork(3)
        forks += "<" + gen("x") + ">"
        forks.join("concatenate", skip_failed=skip_failed)
        s += gen("y")

    backend = ScriptedBackend({"x": ["a", "b"], "y": "!"})  # nothing is left for one of the three
    if skip_failed:
        assert program.run(backend=backend).text() == "one<a><b>!"
    else:
        with pytest.raises(ProgramError, match="forks \\+="):
            program.run(backend=backend)


def test_a_join_tells_of_a_branch_that_failed() -> None:
    @function
    def program(s: State) -> None:
        forks = s.fork(2)
        forks += gen("x")
        forks.join()

    state = program.run(backend=ScriptedBackend({"x": ["a"]}))
    with pytest.raises(ProgramError, match="forks \\+= gen"):
        state["x"]


def test_an_error_names_the_line_of_the_program() -> None:
    @function
    def program(s: State) -> None:
        s += "a"
        s += gen("x")  # here
        s += gen("y")

    with pytest.raises(ProgramError) as caught:
        program.run(backend=ScriptedBackend({"x": RequestError("too long")}))
    lines, first = inspect.getsourcelines(program.body)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    assert caught.value.site is not None
    assert (caught.value.site.filename, caught.value.site.line, caught.value.site.function) == (__file__, line, "program")
    assert isinstance(caught.value.__cause__, RequestError)
    assert "too long" in str(caught.value)
    assert 's += gen("x")' in str(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        lambda s: gen("x", regex="a", choices=["b"]),
        lambda s: gen("x", regex="("),
        lambda s: gen("x", stop_regex="("),
        lambda s: gen("x", dtype=list),
        lambda s: gen("x", temprature=1),
        lambda s: select("x", "yes"),
        lambda s: select("x", []),
        lambda s: select("x", ["a"], temperature=1.0),
        lambda s: select("x", ["a"], choices_method="best"),
        lambda s: image("cat.png"),
        lambda s: s.image("cat.png"),
        lambda s: s.fork(0),
        lambda s: s.fork(2).join("sum"),
        lambda s: s["unknown"],
        lambda s: s.__iadd__(object()),
        lambda s: s.__iadd__(user("a" + gen("x"))),
        lambda s: s.__iadd__("text" + user("a")),
        lambda s: s.__iadd__(user("a") + "text"),
        lambda s: s.__iadd__(user("a") + gen("x")),
        lambda s: s.__iadd__(user(system("a"))),
        lambda s: s.__iadd__(assistant_end()),
        lambda s: separate_reasoning(gen("x"), "unknown"),
    ],
)
def test_a_statement_that_makes_no_sense_is_refused_at_its_line(statement: Any) -> None:
    @function
    def program(s: State) -> None:
        statement(s)

    with pytest.raises(ProgramError) as caught:
        program.run(backend=ScriptedBackend({}))
    assert caught.value.site is not None
    assert caught.value.site.filename == __file__


def test_messages_in_both_spellings() -> None:
    @function
    def calls(s: State) -> None:
        s += system("S")
        s += user("U")
        s += assistant("1." + gen("x"))

    @function
    def scopes(s: State) -> None:
        s.system("S")
        with s.user():
            s += "U"
        s += assistant_begin() + "1."
        s += gen("x")
        s += assistant_end()

    states = [program.run(backend=ScriptedBackend({"x": "a"})) for program in (calls, scopes)]
    assert states[0].messages() == states[1].messages()
    assert states[0].messages()[-1] == {"role": "assistant", "content": "1.a"}
    assert states[0].text() == states[1].text() == "system: S\nuser: U\nassistant: 1.a\n"


@pytest.mark.parametrize(
    ("expr", "said", "value"),
    [
        (gen_int("x"), "42 and", 42),
        (gen_float("x"), "-4.25\n", -4.25),
        (gen_bool("x"), "True", True),
        (gen_string("x"), '"a \\"b\\""', 'a "b"'),
        (gen("x", dtype="int"), "7", 7),
        (gen("x", dtype=float), "7", 7.0),
        (gen("x", regex="[ab]+"), "abba", "abba"),
    ],
)
def test_typed_generations(expr: Any, said: str, value: Any) -> None:
    @function
    def program(s: State) -> None:
        s += expr

    found = program.run(backend=ScriptedBackend({"x": said}))["x"]
    assert found == value
    assert type(found) is type(value)


class Model:
    """What pydantic's models have."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"type": "integer"}

    @staticmethod
    def model_validate_json(text: str) -> int:
        return int(text)


def test_a_model_makes_an_instance_of_what_was_said() -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", json_schema=Model)

    backend = ScriptedBackend({"x": "5"})
    assert program.run(backend=backend)["x"] == 5
    assert backend.requests[0].sampling.json_schema == '{"type":"integer"}'


def test_a_value_that_is_none_of_its_type_fails_its_reader() -> None:
    @function
    def program(s: State) -> None:
        s += gen("x", json_schema=Model)

    state = program.run(backend=ScriptedBackend({"x": "many"}))
    with pytest.raises(ProgramError, match="gen\\("):
        state["x"]


def test_several_answers_are_a_list_and_the_state_goes_on_with_the_first() -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x", n=3) + "b" + gen("y")

    state = program.run(backend=ScriptedBackend({"x": ["1", "2", "3"], "y": "!"}))
    assert state["x"] == ["1", "2", "3"]
    assert state.text() == "a1b!"
    assert len(state.get_meta_info("x")) == 3


def test_copies_scopes_and_variables() -> None:
    @function
    def program(s: State) -> None:
        s += "a"
        with s.var_scope("scope"):
            s += "b" + gen("x") + "c"
        other = s.copy()
        other += "only there"
        s.set_var("mine", 5)
        s["too"] = "x"
        s += "d"

    state = program.run(backend=ScriptedBackend({"x": "X"}))
    assert state["scope"] == "bXc"
    assert (state.get_var("mine"), state["too"], "mine" in state, "other" in state) == (5, "x", True, False)
    assert state.text() == "abXcd"


def test_programs_within_programs() -> None:
    @function
    def ask(s: State, what: str) -> str:
        s += f"{what}? " + gen(what)
        return str(s[what])

    @function
    def outer(s: State) -> str:
        answer = ask(s, "one")
        s += ", " + ask(what="two") + "; " + ask.bind(what="three")()
        return answer

    state = outer.run(backend=ScriptedBackend({"one": "1", "two": "2", "three": "3"}))
    assert state.text() == "one? 1, two? 2; three? 3"
    assert state.ret_value == "1"


def test_reasoning_is_kept_apart_from_what_it_leads_to() -> None:
    @function
    def program(s: State) -> None:
        s += separate_reasoning(gen("x"), "qwen3")

    state = program.run(backend=ScriptedBackend({"x": "<think>hm, 2</think>\n\n2"}))
    assert (state["x"], state["x_reasoning_content"]) == ("2", "hm, 2")
    state = program.run(backend=ScriptedBackend({"x": "2"}))
    assert (state["x"], state["x_reasoning_content"]) == ("2", "")


def test_seeds_of_a_run_differ_between_siblings_and_not_between_runs() -> None:
    @function
    def program(s: State) -> None:
        s += gen("x") + gen("x")
        s.fork(2).__iadd__(gen("x"))
        s += gen("own", seed=9)

    def seeds(seed: int) -> list[Any]:
        backend = ScriptedBackend(lambda request: "t")
        state = program.run(backend=backend, seed=seed)
        state.sync()
        deadline = time.monotonic() + 5
        while len(backend.requests) < 5 and time.monotonic() < deadline:
            time.sleep(0.001)
        return sorted(request.sampling.seed for request in backend.requests)

    assert len(set(seeds(1))) == 5
    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)
    assert 9 in seeds(1)


def test_defaults_of_a_run_reach_its_generations_unless_they_say_otherwise() -> None:
    @function
    def program(s: State, stop: str) -> None:
        s += stop + gen("x") + gen("x", temperature=0.5)

    backend = ScriptedBackend({"x": ["a", "b"]})
    state = program.run(stop="!", backend=backend, temperature=0.0, max_new_tokens=7)
    assert state.text() == "!ab"  # the program's own parameter is no default
    assert [request.sampling.temperature for request in backend.requests] == [0.0, 0.5]
    assert [request.sampling.max_tokens for request in backend.requests] == [7, 7]
    with pytest.raises(TypeError):
        program.run(stop="!", backend=backend, temprature=0.0)


@function
def streamed(s: State) -> None:
    s += "a " + gen("x") + " b " + gen("y")


STREAMED = {"x": "one two", "y": "three four"}


def test_a_stream_by_variable_and_as_a_whole() -> None:
    state = streamed.run(backend=ScriptedBackend(STREAMED), stream=True)
    assert list(state.text_iter("y")) == ["three", " four"]
    assert list(state.text_iter("x")) == ["one", " two"]
    assert "".join(state.text_iter()) == state.text() == "a one two b three four"
    with pytest.raises(ProgramError):
        list(state.text_iter("z"))


def test_an_asynchronous_stream() -> None:
    async def read() -> list[str]:
        state = await streamed.arun(backend=ScriptedBackend(STREAMED), stream=True)
        whole = [text async for text in state.text_async_iter()]
        assert [text async for text in state.text_async_iter("x")] == ["one", " two"]
        return whole

    assert "".join(asyncio.run(read())) == "a one two b three four"


def test_a_stream_that_fails_raises_at_its_reader() -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x")
        raise ZeroDivisionError

    state = program.run(backend=ScriptedBackend({}), stream=True)
    with pytest.raises((ProgramError, ZeroDivisionError)):
        list(state.text_iter())


def test_a_batch_keeps_its_order_and_its_failures_apart() -> None:
    @function
    def program(s: State, i: int) -> float:
        s += f"{i}" + gen("x")
        return 1 / (i - 1)

    backend = ScriptedBackend(lambda request: f"<{request.sampling.temperature}>", delay=0.01)
    states = program.run_batch([{"i": i} for i in range(4)], backend=backend, temperature=0.5, num_threads=2)
    assert [type(state.error()) for state in states] == [type(None), ZeroDivisionError, type(None), type(None)]
    assert [state.text() for state in states if state.error() is None] == ["0<0.5>", "2<0.5>", "3<0.5>"]
    assert backend.peak <= 2
    with pytest.raises(ZeroDivisionError):
        states[1].text()


def test_a_batch_as_a_generator_gives_what_is_there() -> None:
    @function
    def program(s: State, i: int) -> None:
        s += f"{i}" + gen("x")

    backend = ScriptedBackend(lambda request: "x", delay=0.01)
    results = program.run_batch([{"i": i} for i in range(6)], backend=backend, num_threads=1, generator_style=True)
    assert next(results).text() == "0x"
    assert len(backend.requests) < 6
    assert [state.text() for state in results] == [f"{i}x" for i in range(1, 6)]


def test_an_async_program_with_tools_runs_on_any_loop_and_on_none() -> None:
    async def tool(text: str) -> str:
        await asyncio.sleep(0.001)
        return text.upper()

    @function
    async def agent(s: State, question: str) -> str:
        s += question + gen("call")
        found = await tool(await s.get("call"))
        s += f"={found};" + gen("end")
        with pytest.raises(ProgramError, match="await"):
            s["end"]
        return found

    script = {"call": "abc", "end": "."}
    state = agent.run("?", backend=ScriptedBackend(script))
    assert (state.text(), state.ret_value) == ("?abc=ABC;.", "ABC")
    assert asyncio.run(agent.arun("?", backend=ScriptedBackend(script))).text() == state.text()
    states = agent.run_batch([{"question": "?"}] * 3, backend=ScriptedBackend(lambda request: "abc"))
    assert {other.text() for other in states} == {"?abc=ABC;abc"}


def test_a_backend_is_told_of_programs_their_parents_and_their_ends() -> None:
    @function
    def child(s: State) -> None:
        s += gen("x")

    @function
    def parent(s: State) -> Any:
        s += gen("x")
        return child.run(parent=s)

    backend = ScriptedBackend(lambda request: "x")
    parent.run(backend=backend)
    programs = [request.program for request in backend.requests]
    assert sorted(program.name for program in programs) == ["child", "parent"]
    by_name = {program.name: program for program in programs}
    assert by_name["child"].parent is by_name["parent"]
    deadline = time.monotonic() + 5
    while len(backend.ended) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [program.name for program in backend.ended] == ["child", "parent"]


def test_a_program_runs_where_a_loop_is_running_as_in_a_notebook() -> None:
    @function
    def program(s: State) -> str:
        s += "a" + gen("x")
        return str(s["x"])

    async def cell() -> list[State]:
        backend = ScriptedBackend(lambda request: "x")
        batch: list[State] = program.run_batch([{}, {}], backend=backend)
        return [program.run(backend=backend), *batch]

    assert [state.ret_value for state in asyncio.run(cell())] == ["x"] * 3
