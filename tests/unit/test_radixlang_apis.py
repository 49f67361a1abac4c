"""Programs at other providers, which are played by functions: what is sent, and how few requests speculation needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from radixlang import AnthropicBackend, OpenAIBackend, ProgramError, State, assistant, function, gen, select, system, user

from radixrt import Overloaded, RequestError, UnknownModel

Answerer = Callable[[dict[str, Any]], str]


class Provider:
    """Answers OpenAI's and Anthropic's routes with what a function of the body says, cut at stop strings and at ``max_tokens`` words."""

    def __init__(self, answer: Answerer, *, refusals: int = 0, status: int = 429) -> None:
        self.answer = answer
        self.refusals = refusals
        self.status = status
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.transport = httpx.MockTransport(self.reply)

    def reply(self, request: httpx.Request) -> httpx.Response:
        if self.refusals:
            self.refusals -= 1
            return httpx.Response(self.status, json={"error": {"message": "no", "param": "p", "code": "c"}}, headers={"retry-after": "0"})
        body = json.loads(request.content)
        self.bodies.append(body)
        self.paths.append(request.url.path)
        text = self.answer(body)
        stops = [at for stop in body.get("stop") or body.get("stop_sequences") or () if (at := text.find(stop)) >= 0]
        text = text[: min(stops, default=len(text))]
        if body.get("stream"):
            lines = [f"data: {json.dumps(event)}" for event in self.events(request, text)]
            return httpx.Response(200, text="\n\n".join([*lines, "data: [DONE]", ""]))
        return httpx.Response(200, json=self.whole(request, body, text))

    def whole(self, request: httpx.Request, body: dict[str, Any], text: str) -> dict[str, Any]:
        if request.url.path.endswith("/messages"):
            usage = {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 2}
            return {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage}
        part = {"message": {"content": text}} if "messages" in body else {"text": text}
        choices = [{"index": i, "finish_reason": "stop", **part} for i in range(body.get("n", 1))]
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        return {"choices": choices, "usage": usage}

    def events(self, request: httpx.Request, text: str) -> list[dict[str, Any]]:
        if request.url.path.endswith("/messages"):
            deltas: list[dict[str, Any]] = [{"type": "content_block_delta", "delta": {"text": char}} for char in text]
            return [*deltas, {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": len(text)}}]
        return [{"choices": [{"delta": {"content": char}}]} for char in text] + [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]


def openai(provider: Provider, **options: Any) -> OpenAIBackend:
    return OpenAIBackend("m", base_url="http://provider/v1", api_key="k", transport=provider.transport, **options)


CHARACTER = "Name: Ann\nBirthday: May 1\nJob: cook\nHouse: none\n"


def character(s: State, spec: bool = True) -> None:
    s += "Name:" + gen("name", stop="\n") + "\nBirthday:" + gen("birthday", stop="\n")
    s += "\nJob:" + gen("job", stop="\n") + "\n"


def continued(body: dict[str, Any]) -> str:
    return CHARACTER.removeprefix(body["prompt"])


def test_a_speculated_program_needs_one_request() -> None:
    provider = Provider(continued)
    plain = function(character).run(backend=openai(provider))
    assert len(provider.bodies) == 3
    assert [body["stop"] for body in provider.bodies] == [["\n"]] * 3
    fast = Provider(continued)
    state = function(num_api_spec_tokens=64)(character).run(backend=openai(fast), max_tokens=8)
    assert [body["max_tokens"] for body in fast.bodies] == [72]
    assert "stop" not in fast.bodies[0]
    assert state.text() == plain.text()
    assert (state["name"], state["birthday"], state["job"]) == (" Ann", " May 1", " cook")
    assert state.get_meta_info("job")["speculated"]


def test_speculation_that_misses_asks_again() -> None:
    provider = Provider(lambda body: " Ann\nAge: 4\n" if body["prompt"].endswith("Name:") else continued(body))
    state = function(num_api_spec_tokens=64)(character).run(backend=openai(provider))
    assert state.text() == CHARACTER[: CHARACTER.index("House")]
    assert [body["prompt"].rpartition("\n")[2] for body in provider.bodies] == ["Name:", "Birthday:"]


@function(num_api_spec_tokens=64)
def chat_character(s: State) -> None:
    s += system("Play.") + user("Describe her.")
    s += assistant("Name:" + gen("name", stop="\n") + "\nBirthday:" + gen("birthday", stop="\n") + "\nJob:" + gen("job", stop="\n"))
    s += user("Thanks. Bye?") + assistant(gen("bye"))


@pytest.mark.parametrize("misses", [0, 1, 2])
def test_a_speculated_message_is_asked_for_whole_until_it_has_its_form(misses: int) -> None:
    whole = iter(["Well, Ann."] * misses + [CHARACTER, "Bye"])
    provider = Provider(lambda body: next(whole))
    state = chat_character.run(backend=openai(provider))
    assert (state["name"], state["birthday"], state["job"], state["bye"]) == (" Ann", " May 1", " cook", "Bye")
    assert len(provider.bodies) == misses + 2
    assert provider.bodies[0]["messages"] == [{"role": "system", "content": "Play."}, {"role": "user", "content": "Describe her."}]
    assert provider.bodies[-1]["messages"][2] == {"role": "assistant", "content": "Name: Ann\nBirthday: May 1\nJob: cook"}


def test_a_message_that_never_has_its_form_fails() -> None:
    provider = Provider(lambda body: "Well.")
    with pytest.raises(ProgramError, match="3 tries"):
        chat_character.run(backend=openai(provider))
    assert len(provider.bodies) == 3


def test_a_variable_read_inside_its_message_is_there() -> None:
    @function(num_api_spec_tokens=16)
    def program(s: State) -> None:
        s += user("q")
        with s.assistant():
            s += gen("x", stop=".")
            assert s["x"] == "yes"

    program.run(backend=openai(Provider(lambda body: "yes. no")))


@function
def chat(s: State, n: int = 1) -> None:
    s += system("S") + user("U") + assistant(gen("a", 5, temperature=0.5, stop=["."], n=n)) + user("V")
    with s.assistant():
        s += gen("b")


def test_a_chat_over_openais_route() -> None:
    provider = Provider(lambda body: f"{len(body['messages'])} messages. And more")
    state = chat.run(n=2, backend=openai(provider))
    assert state["a"] == ["2 messages", "2 messages"]
    assert state["b"] == "4 messages. And more"
    first = provider.bodies[0]
    assert (first["model"], first["max_tokens"], first["temperature"], first["stop"], first["n"]) == ("m", 5, 0.5, ["."], 2)
    assert provider.paths == ["/v1/chat/completions"] * 2
    usage = state.usage()
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.hit_rate) == (20, 8, 4, 0.4)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_stream_says_what_the_whole_answer_says(kind: str) -> None:
    provider = Provider(lambda body: "some text. more")
    backend: Any = openai(provider)
    if kind == "anthropic":
        backend = AnthropicBackend("m", base_url="http://provider/v1", api_key="k", transport=provider.transport)

    @function
    def program(s: State) -> None:
        s += user("U") + assistant(gen("a", stop="."))

    state = program.run(backend=backend, stream=True)
    pieces = list(state.text_iter("a"))
    assert len(pieces) > 1
    assert "".join(pieces) == state["a"] == program.run(backend=backend)["a"]


def test_a_message_that_was_begun_needs_a_server_that_goes_on_with_it() -> None:
    @function
    def program(s: State) -> None:
        s += user("U") + assistant("1." + gen("a"))

    with pytest.raises(ProgramError, match="num_api_spec_tokens"):
        program.run(backend=openai(Provider(lambda body: "x")))
    provider = Provider(lambda body: "x")
    assert program.run(backend=openai(provider, extended=True)).messages()[-1]["content"] == "1.x"
    assert provider.bodies[0]["continue_final_message"] is True
    assert provider.bodies[0]["messages"][-1] == {"role": "assistant", "content": "1."}


def test_a_chat_over_anthropics_route() -> None:
    @function
    def program(s: State) -> None:
        s += system("S") + user("U") + assistant("1." + gen("a", 5, stop=".", n=2))

    provider = Provider(lambda body: " x. y")
    state = program.run(backend=AnthropicBackend("m", base_url="http://provider/v1", api_key="k", transport=provider.transport))
    assert state["a"] == [" x", " x"]
    assert provider.paths == ["/v1/messages"] * 2
    assert provider.bodies[0] == {
        "model": "m", "max_tokens": 5, "stop_sequences": ["."], "system": "S",
        "messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "1."}],
    }  # fmt: skip
    assert (state.usage().prompt_tokens, state.usage().cached_tokens) == (10, 7)


@pytest.mark.parametrize(
    ("expr", "told"),
    [
        (gen("x", top_k=3), "top_k"),
        (gen("x", regex="a"), "regex"),
        (select("x", ["a", "b"]), "logprobs"),
    ],
)
def test_what_an_api_cannot_do_is_refused(expr: Any, told: str) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + expr

    with pytest.raises(ProgramError, match=told):
        program.run(backend=openai(Provider(lambda body: "x")))


@pytest.mark.parametrize(
    ("refusals", "status", "error"), [(3, 429, None), (5, 429, Overloaded), (1, 400, RequestError), (1, 404, UnknownModel)]
)
def test_refusals_of_a_server(refusals: int, status: int, error: type[Exception] | None) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x")

    backend = openai(Provider(lambda body: "x", refusals=refusals, status=status))
    if error is None:
        assert program.run(backend=backend)["x"] == "x"
        return
    with pytest.raises(ProgramError) as caught:
        program.run(backend=backend)
    assert isinstance(caught.value.__cause__, error)
