"""The embedded engine on the toy model: forms of calls and answers, every way to call it, and every way to end it."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from echo_core import FAIL, EchoCore

from radixrt import ConfigError, Engine, EngineConfig, EngineStopped, InvalidSampling, PromptTooLong, RequestError, SamplingParams
from radixrt.engine.client import ThreadClient
from radixrt.errors import GrammarError
from radixrt.text.toy_tokenizer import ToyTokenizer

GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(model_path="toy", max_total_tokens=9000, random_seed=1) as engine:
        yield engine
        wait_idle(engine)
        stats = engine.stats
        assert stats.free_tokens + stats.cached_tokens == stats.capacity_tokens


def wait_idle(engine: Engine) -> None:
    deadline = time.monotonic() + 5
    while engine._engine.num_open or not engine.flush_cache():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_answer_has_sglangs_shape(engine: Engine) -> None:
    answer = engine.generate("hello", GREEDY, rid="mine")
    assert set(answer) == {"text", "output_ids", "meta_info"}
    meta = answer["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 12)
    assert 0 <= meta["cached_tokens"] <= 4
    assert meta["e2e_latency"] > 0
    assert engine.decode(answer["output_ids"]) == answer["text"]


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.generate("hi", SamplingParams(max_new_tokens=2.5)),
        lambda engine: engine.generate("hi", GREEDY, cache_salt=[5]),
        lambda engine: engine.generate("hi", GREEDY, return_logprob=True, top_logprobs_num=2.0),
        lambda engine: engine.generate(5),
        lambda engine: engine.generate([5]),
        lambda engine: engine.chat("hi"),
        lambda engine: engine.chat([5]),
    ],
)
def test_a_wrong_type_costs_its_caller_an_error_and_nobody_else_anything(engine: Engine, call: Callable[[Engine], Any]) -> None:
    stream = engine.generate("neighbour", GREEDY, stream=True)
    next(stream)
    for _ in range(4):
        with pytest.raises(RequestError):
            call(engine)
    assert list(stream)[-1]["meta_info"]["completion_tokens"] == 12


FORKED = """
import gc, os, sys
from radixrt import Engine, EngineStopped
engine = Engine(model_path="toy", max_total_tokens=100)
child = os.fork()
if child == 0:
    try:
        engine.generate("a")
    except EngineStopped:
        engine.close()
        del engine
        gc.collect()
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert engine.generate("a", {"max_new_tokens": 3, "ignore_eos": True})["meta_info"]["completion_tokens"] == 3
"""


def test_a_forked_child_is_told_and_can_leave() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


def test_text_and_ids_and_params_in_either_form_give_the_same(engine: Engine) -> None:
    expected = engine.generate("hello", GREEDY)["output_ids"]
    assert engine.generate(input_ids=engine.encode("hello"), sampling_params=SamplingParams(**GREEDY))["output_ids"] == expected
    batch = engine.generate(["hello", "other"], GREEDY)
    assert batch[0]["output_ids"] == expected
    pair = engine.generate(input_ids=[engine.encode("hello"), [1]], sampling_params=[GREEDY, {"max_new_tokens": 1}])
    assert pair[0]["output_ids"] == expected
    assert len(pair[1]["output_ids"]) == 1
    assert engine.generate(["hello"], GREEDY)[0]["output_ids"] == expected


def test_several_answers_come_as_a_flat_list(engine: Engine) -> None:
    sampling = {"max_new_tokens": 5, "n": 2, "seed": 5, "ignore_eos": True}
    answers = engine.generate(["a", "b"], sampling)
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1] * 4
    assert engine.generate("a", sampling | {"n": 1})["output_ids"] == answers[0]["output_ids"]
    assert engine.generate("a", sampling | {"n": 1, "seed": 6})["output_ids"] == answers[1]["output_ids"]


def test_a_stream_grows_to_the_same_answer(engine: Engine) -> None:
    whole = engine.generate("hello", GREEDY)
    parts = list(engine.generate("hello", GREEDY, stream=True))
    assert len(parts) > 1
    for part, longer in itertools.pairwise(parts):
        assert longer["text"].startswith(part["text"])
        assert part["meta_info"]["finish_reason"] is None
    assert (parts[-1]["text"], parts[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert "index" not in parts[-1]


def test_a_stream_of_several_answers_numbers_them(engine: Engine) -> None:
    last: dict[int, dict[str, Any]] = {}
    for part in engine.generate(["hello", "other"], GREEDY | {"n": 2}, stream=True):
        last[part["index"]] = part
    whole = engine.generate(["hello", "other"], GREEDY | {"n": 2})
    assert [last[i]["output_ids"] for i in range(4)] == [answer["output_ids"] for answer in whole]


def test_logprobs_come_in_sglangs_form(engine: Engine) -> None:
    meta = engine.generate(
        "hey", GREEDY | {"max_new_tokens": 2}, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, token_ids_logprob=[7],
        return_text_in_logprobs=True, cache_salt="fresh",
    )["meta_info"]  # fmt: skip
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[104, "h"], [101, "e"], [121, "y"]]
    assert meta["input_token_logprobs"][0][0] is None
    assert meta["input_top_logprobs"][0] is None
    assert len(meta["output_token_logprobs"]) == meta["output_token_logprobs_length"] == 2
    assert [len(top) for top in meta["output_top_logprobs"]] == [2, 2]
    assert meta["output_top_logprobs"][0][0][:2] == meta["output_token_logprobs"][0][:2]
    assert [entry[1] for entries in meta["output_token_ids_logprobs"] for entry in entries] == [7, 7]
    assert "input_token_logprobs" not in engine.generate("hey", GREEDY)["meta_info"]


def test_the_cache_is_shared_within_a_salt_only(engine: Engine) -> None:
    prompt = "a preamble that is long enough to be seen"

    def cached(**options: Any) -> int:
        return engine.generate(prompt, GREEDY, **options)["meta_info"]["cached_tokens"]

    wait_idle(engine)
    assert cached() == 0
    assert cached() == len(prompt) - 1
    assert cached(cache_salt="s") == 0
    assert cached(extra_key="s") == 0
    assert cached(cache_salt="s") == len(prompt) - 1


def test_a_chat_goes_through_the_template(engine: Engine) -> None:
    answer = engine.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert answer["meta_info"]["prompt_tokens"] > 2
    *_, last = engine.chat([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], GREEDY, stream=True)
    assert last["output_ids"] == answer["output_ids"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"prompt": "a", "sampling_params": {"temperatur": 1}}, InvalidSampling, "did you mean 'temperature'"),
        ({"prompt": "a", "sampling_params": {"temperature": "hot"}}, InvalidSampling, "temperature"),
        ({"prompt": "a", "sampling_params": {"n": True}}, InvalidSampling, "n: "),
        ({"prompt": "a", "sampling_params": {"json_schema": "{"}}, GrammarError, "not valid JSON"),
        ({"prompt": "a", "sampling_params": 3}, RequestError, "sampling_params"),
        ({"prompt": "a", "sampling_params": [{}, {}]}, RequestError, "list of 1"),
        ({"prompt": ["a", "b"], "rid": "one"}, RequestError, "rid must be a list of 2"),
        ({"prompt": ["a", "b"], "rid": ["x", "x"]}, RequestError, "rid"),
        ({}, RequestError, "either a prompt or input_ids"),
        ({"prompt": "a", "input_ids": [1]}, RequestError, "either a prompt or input_ids"),
        ({"input_ids": []}, RequestError, "empty"),
        ({"input_ids": [300]}, RequestError, "Token ids"),
        ({"prompt": "a" * 8200}, PromptTooLong, "maximum context length"),
        ({"prompt": ["a", ""], "sampling_params": ENDLESS}, RequestError, "empty"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_bad_calls_raise_and_leave_nothing_running(
    engine: Engine, call: dict[str, Any], error: type[Exception], message: str, stream: bool
) -> None:
    with pytest.raises(error, match=message):
        list(engine.generate(**call, stream=stream))
    wait_idle(engine)


def test_null_parameters_and_sglangs_names_mean_the_same(engine: Engine) -> None:
    plain = engine.generate("a", {"sampling_seed": 4, "max_new_tokens": 6, "top_k": None, "stop": "zzz", "regex": None})
    assert engine.generate("a", {"seed": 4, "max_new_tokens": 6, "stop": ["zzz"]})["output_ids"] == plain["output_ids"]


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_leaving_an_iterator_aborts_its_request(engine: Engine, taken: int) -> None:
    iterator = engine.generate("a", ENDLESS, stream=True)
    for _ in range(taken):
        next(iterator)
    iterator.close()
    wait_idle(engine)


def test_abort_returns_what_there_is(engine: Engine) -> None:
    results: list[dict[str, Any]] = []
    before = engine.stats.generated_tokens
    caller = threading.Thread(target=lambda: results.append(engine.generate("a", ENDLESS, rid="long")))
    caller.start()
    while engine.stats.generated_tokens < before + 3:
        time.sleep(0.005)
    assert not engine.abort("lon")
    assert engine.abort("long")
    caller.join(5)
    assert results[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(results[0]["output_ids"]) >= 3


def test_many_threads_share_one_engine(engine: Engine) -> None:
    prompts = [f"prompt {i}" for i in range(8)]
    alone = [engine.generate(prompt, GREEDY)["text"] for prompt in prompts]
    together: dict[int, str] = {}

    def call(i: int) -> None:
        together[i] = engine.generate(prompts[i], GREEDY)["text"]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [together[i] for i in range(8)] == alone


def test_it_works_on_any_event_loop_and_as_blocking_calls_inside_one(engine: Engine) -> None:
    async def main() -> None:
        expected = engine.generate("hello", GREEDY)["text"]  # a notebook's way: blocking, while a loop runs
        answers = await asyncio.gather(*(engine.async_generate("hello", GREEDY) for _ in range(3)))
        assert [answer["text"] for answer in answers] == [expected] * 3
        async for part in await engine.async_generate("hello", GREEDY, stream=True):
            last = part
        assert last["text"] == expected

    for _ in range(2):
        asyncio.run(main())


def test_cancelling_a_coroutine_aborts_its_request(engine: Engine) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await engine.async_generate("a", ENDLESS)
        stream = await engine.async_generate("a", ENDLESS, stream=True)
        await anext(stream)
        await stream.aclose()

    asyncio.run(main())
    wait_idle(engine)


def test_it_has_no_children(engine: Engine) -> None:
    engine.generate("a", GREEDY)
    workers = [child for child in psutil.Process().children() if "radixrt.engine.worker" in child.cmdline()]
    assert workers == [], "servers that other tests keep running have a worker of their own, below them"


def test_it_tells_how_it_is_configured(engine: Engine) -> None:
    told = engine.get_server_info()
    assert told["status"] == "ready"
    assert told["model"]["model_path"] == told["model_info"]["model_path"] == "toy"
    assert told["stats"]["capacity_tokens"] == 9000


def test_wrong_options_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_total_tokens'"):
        Engine(model_path="toy", max_total_token=5)
    with pytest.raises(ConfigError):
        Engine(model_path="/nowhere/at/all.gguf")
    with pytest.raises(TypeError):
        Engine(EngineConfig(), model_path="toy")


def echo_engine(model: str = "echo/0.01") -> Engine:
    return Engine(EngineConfig.of(model_path=model), client=ThreadClient(EchoCore.load), tokenizer=ToyTokenizer())


def test_closing_ends_calls_in_progress_and_later_ones_are_refused() -> None:
    engine = echo_engine()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            engine.generate("abc", {"max_new_tokens": None})
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    while engine._engine.num_open == 0:
        time.sleep(0.005)
    engine.close()
    caller.join(5)
    assert [type(error) for error in errors] == [EngineStopped]
    for late in (lambda: engine.generate("a"), lambda: next(engine.generate("a", stream=True)), engine.flush_cache):
        with pytest.raises(EngineStopped):
            late()
    engine.close()
    engine.shutdown()


def test_a_core_that_fails_stops_the_engine() -> None:
    with echo_engine() as engine:
        with pytest.raises(EngineStopped):
            engine.generate(FAIL)
        with pytest.raises(EngineStopped):
            engine.generate("abc")


def test_a_model_that_cannot_be_loaded_is_a_config_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match="no such model"):
        echo_engine("bad-config")
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_forgotten_engine_is_closed() -> None:
    engine = echo_engine()
    inner, thread = engine._engine, engine._thread._thread
    del engine
    thread.join(5)
    assert inner.status == "stopped"


SCRIPTS = {
    "ends without closing": "engine.generate('a', {'max_new_tokens': 4})",
    "ends in the middle of a stream": "it = engine.generate('a', {'max_new_tokens': None}, stream=True); next(it)",
    "ends while another thread waits": (
        "import threading, time\n"
        "import radixrt\n"
        "def call():\n"
        "    try: engine.generate('a', {'max_new_tokens': None})\n"
        "    except radixrt.EngineStopped: pass\n"
        "threading.Thread(target=call, daemon=True).start(); time.sleep(0.1)"
    ),
    "is interrupted while it waits": (
        "import os, signal, threading\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try: engine.generate(['a'] * 3, {'max_new_tokens': None})\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "import time\n"
        "time.sleep(0.5)\n"
        "assert not engine._engine.num_open"
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_without_a_main_guard(name: str) -> None:
    script = (
        "from radixrt import Engine, EngineConfig\n"
        "from radixrt.engine.client import ThreadClient\n"
        "from radixrt.text.toy_tokenizer import ToyTokenizer\n"
        "from echo_core import EchoCore\n"
        "engine = Engine(EngineConfig.of(model_path='echo/0.02'), client=ThreadClient(EchoCore.load), tokenizer=ToyTokenizer())\n"
        f"{SCRIPTS[name]}\n"
        "print('done')\n"
    )
    paths = ":".join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "done"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "interrupted" in ended.stdout or "interrupted" not in name


def test_a_chat_with_tools_has_messages(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    options: dict[str, Any] = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    messages = [{"role": "user", "content": "hi"}]
    whole = engine.chat(messages, {"max_new_tokens": 200, "temperature": 0}, **options)
    assert whole["message"]["content"] is None
    (call,) = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "f"
    assert isinstance(json.loads(call["function"]["arguments"])["n"], int)
    *_, last = engine.chat(messages, {"max_new_tokens": 200, "temperature": 0}, stream=True, **options)
    assert last["message"]["tool_calls"][0]["function"] == call["function"]
    plain = engine.chat(messages, {"max_new_tokens": 4, "temperature": 0})
    assert plain["message"] == {"role": "assistant", "content": plain["text"]}
    with pytest.raises(RequestError):
        engine.chat(messages, tools=tools, tool_choice={"type": "function", "function": {"name": "g"}})
