"""From tokens to events: how an answer ends, what is shown, what is counted, and that one event alone has the finish."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.engine.output import OutputProcessor
from radixrt.text.tokenizer import load_tokenizer
from radixrt.types import Finish, FinishReason, RequestOutput, SamplingParams, TokenLogprob, TokenOutput

EOS = 256
LENGTH = Finish(FinishReason.LENGTH)
AT_EOS = Finish(FinishReason.STOP, matched=EOS)


def run(
    outputs: list[TokenOutput], *, want_logprobs: bool = False, num_prompt: int = 3, **sampling: Any
) -> tuple[list[RequestOutput], list[bool]]:
    """Feed the outputs of one request; return its events and, for each output, whether the core must abort."""
    processor = OutputProcessor(load_tokenizer(None))
    processor.add(1, rid="r", index=2, num_prompt=num_prompt, sampling=SamplingParams(**sampling), want_logprobs=want_logprobs)
    pairs = [processor.push(output) for output in outputs]
    events = [event for event, _ in pairs if event is not None]
    assert sum(event.finish is not None for event in events) == (len(processor) == 0)
    return events, [abort for _, abort in pairs]


def one_by_one(text: bytes, finish: Finish | None = None, *more: int) -> list[TokenOutput]:
    tokens = [*text, *more]
    return [TokenOutput(1, [token], finish if i == len(tokens) - 1 else None) for i, token in enumerate(tokens)]


def at_once(text: bytes, finish: Finish | None = None, *more: int) -> list[TokenOutput]:
    return [TokenOutput(1, [*text, *more], finish)]


def text_of(events: list[RequestOutput]) -> str:
    return "".join(event.text_delta for event in events)


def tokens_of(events: list[RequestOutput]) -> list[int]:
    return [token for event in events for token in event.token_ids_delta]


@pytest.mark.parametrize("cut", [one_by_one, at_once])
@pytest.mark.parametrize(
    ("tokens", "sampling", "text", "finish"),
    [
        ((b"hello", LENGTH), {}, "hello", LENGTH),
        ((b"hello", AT_EOS, EOS), {}, "hello", AT_EOS),
        ((b"hello", AT_EOS, EOS), {"skip_special_tokens": False}, "hello", AT_EOS),
        ((b"hello", AT_EOS, EOS), {"skip_special_tokens": False, "no_stop_trim": True}, "hello<|endoftext|>", AT_EOS),
        ((b"hello", AT_EOS, EOS), {"no_stop_trim": True}, "hello", AT_EOS),
        ((b"hell", LENGTH, EOS), {"ignore_eos": True, "skip_special_tokens": False}, "hell<|endoftext|>", LENGTH),
        ((b"hi!", Finish(FinishReason.STOP, matched=33)), {"stop_token_ids": (33,)}, "hi", Finish(FinishReason.STOP, matched=33)),
        ((b"hi!", Finish(FinishReason.STOP, matched=33)), {"stop_token_ids": (33,), "no_stop_trim": True}, "hi!",
         Finish(FinishReason.STOP, matched=33)),
        # A stop string is held back until it cannot be one any more.
        ((b"hell", LENGTH), {"stop": ("lls",)}, "hell", LENGTH),
        ((b"hell", AT_EOS, EOS), {"stop": ("lls",)}, "hell", AT_EOS),
        ((b"hi\n!", Finish(FinishReason.STOP, matched=33)), {"stop": ("\n?",), "stop_token_ids": (33,)}, "hi\n",
         Finish(FinishReason.STOP, matched=33)),
        ((b"hell", Finish(FinishReason.ABORT, message="gone")), {"stop": ("lls",)}, "hell", Finish(FinishReason.ABORT, message="gone")),
        # Stop string and another end at the same token: the string wins.
        ((b"hello", LENGTH), {"stop": ("lo",)}, "hel", Finish(FinishReason.STOP, matched="lo")),
        ((b"hi!", Finish(FinishReason.STOP, matched=33)), {"stop": ("i!",), "stop_token_ids": (33,)}, "h",
         Finish(FinishReason.STOP, matched="i!")),
        ((b"hi", AT_EOS, EOS), {"stop": ("<|endoftext|>",), "skip_special_tokens": False}, "hi",
         Finish(FinishReason.STOP, matched="<|endoftext|>")),
        ((b"hello", LENGTH), {"stop": ("lo",), "no_stop_trim": True}, "hello", Finish(FinishReason.STOP, matched="lo")),
        # Half a character at the end, or as the stop token itself.
        ((b"hi\xf0", Finish(FinishReason.STOP, matched=0xF0)), {"stop_token_ids": (0xF0,)}, "hi", Finish(FinishReason.STOP, matched=0xF0)),
        (
            (b"a\xf0!", Finish(FinishReason.STOP, matched=33)),
            {"stop": ("!",), "stop_token_ids": (33,)},
            "a\ufffd",
            Finish(FinishReason.STOP, matched="!"),
        ),
        ((b"a\xf0\x9f", LENGTH), {}, "a\ufffd", LENGTH),
        ((b"a\xf0\x9f", AT_EOS, EOS), {}, "a\ufffd", AT_EOS),
        ((b"a\xf0\x9f", LENGTH), {"stop": ("a\ufffd",)}, "", Finish(FinishReason.STOP, matched="a\ufffd")),
        ((b"a\xf0\x9f", AT_EOS, EOS), {"stop": ("\ufffd",)}, "a", Finish(FinishReason.STOP, matched="\ufffd")),
    ],
)  # fmt: skip
def test_how_an_answer_ends(cut: Any, tokens: tuple[Any, ...], sampling: dict[str, Any], text: str, finish: Finish) -> None:
    outputs = cut(*tokens)
    events, aborts = run(outputs, **sampling)
    assert text_of(events) == text
    assert events[-1].finish == finish
    assert tokens_of(events) == [token for output in outputs for token in output.tokens]
    assert events[-1].usage.completion_tokens == sum(len(output.tokens) for output in outputs)
    assert not any(aborts)  # the core ended these itself


@pytest.mark.parametrize("cut", [one_by_one, at_once])
def test_stop_string_cuts_the_answer_at_the_token_that_completes_it(cut: Any) -> None:
    events, aborts = run(cut(b"hello world", LENGTH), stop=("lo w",))
    assert text_of(events) == "hel"
    assert tokens_of(events) == list(b"hello w")
    assert events[-1].usage.completion_tokens == 7
    assert events[-1].finish == Finish(FinishReason.STOP, matched="lo w")
    assert sum(aborts) == (1 if cut is one_by_one else 0)


def test_core_must_abort_when_only_the_text_shows_the_end() -> None:
    processor = OutputProcessor(load_tokenizer(None))
    processor.add(1, rid="r", index=0, num_prompt=1, sampling=SamplingParams(stop=("b",)), want_logprobs=False)
    assert processor.push(TokenOutput(1, [97]))[1] is False
    event, abort = processor.push(TokenOutput(1, [98, 99]))
    assert abort
    assert event is not None
    assert event.token_ids_delta == [98]
    assert processor.push(TokenOutput(1, [100])) == (None, False)
    assert processor.push(TokenOutput(1, [], Finish(FinishReason.ABORT))) == (None, False)


def test_event_names_its_request_and_counts() -> None:
    outputs = [TokenOutput(1, [97], cached_tokens=2, num_retractions=0), TokenOutput(1, [98], LENGTH, num_retractions=1)]
    events, _ = run(outputs, num_prompt=5)
    assert [(event.rid, event.index, event.text_delta) for event in events] == [("r", 2, "a"), ("r", 2, "b")]
    assert [event.usage.cached_tokens for event in events] == [2, 2]
    assert [event.usage.completion_tokens for event in events] == [1, 2]
    assert events[-1].usage.prompt_tokens == 5
    assert [event.num_retractions for event in events] == [0, 1]


def test_tokens_of_held_back_text_come_with_the_text() -> None:
    events, _ = run(one_by_one("aé🫠".encode(), LENGTH))
    assert [event.text_delta for event in events] == ["a", "é", "🫠"]
    assert [event.token_ids_delta for event in events] == [list(char.encode()) for char in "aé🫠"]


def test_answer_without_tokens_still_ends() -> None:
    events, _ = run([TokenOutput(1, [], LENGTH)])
    assert [(event.text_delta, event.finish) for event in events] == [("", LENGTH)]


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_logprobs_align_with_tokens(cut: int) -> None:
    entries = [TokenLogprob(-float(i), token) for i, token in enumerate("aé🫠b".encode())]
    parts = [entries[i : i + cut] for i in range(0, len(entries), cut)]
    outputs = [TokenOutput(1, [entry.token for entry in part], logprobs=part) for part in parts]
    events, _ = run([*outputs, TokenOutput(1, [], LENGTH)], want_logprobs=True)
    for event in events:
        assert event.logprobs_delta is not None
        assert [entry.token for entry in event.logprobs_delta] == event.token_ids_delta
    assert [entry for event in events for entry in event.logprobs_delta or []] == entries


def test_logprobs_are_cut_with_the_tokens_at_a_stop() -> None:
    entries = [TokenLogprob(-1.0, token) for token in b"abcd"]
    events, _ = run([TokenOutput(1, list(b"abcd"), LENGTH, logprobs=entries)], want_logprobs=True, stop=("bc",))
    assert events[-1].logprobs_delta == entries[:3]


def test_no_logprobs_unless_wanted() -> None:
    events, _ = run([TokenOutput(1, [97], LENGTH, logprobs=[TokenLogprob(-1.0, 97)])])
    assert events[0].logprobs_delta is None
    assert events[0].prompt_logprobs is None


def test_prompt_logprobs_are_gathered_for_the_last_event() -> None:
    first, second = [TokenLogprob(None, 1)], [TokenLogprob(-1.0, 2), TokenLogprob(-2.0, 3)]
    outputs = [
        TokenOutput(1, [], prompt_logprobs=first),
        TokenOutput(1, [97], prompt_logprobs=second, logprobs=[TokenLogprob(-1.0, 97)]),
        TokenOutput(1, [98], LENGTH, logprobs=[TokenLogprob(-1.0, 98)]),
    ]
    events, _ = run(outputs, want_logprobs=True)
    assert [event.prompt_logprobs for event in events] == [None, first + second]
    assert outputs[0].prompt_logprobs == [TokenLogprob(None, 1)]


def test_answers_do_not_mix() -> None:
    processor = OutputProcessor(load_tokenizer(None))
    for uid in (1, 2):
        processor.add(uid, rid=f"r{uid}", index=0, num_prompt=1, sampling=SamplingParams(), want_logprobs=False)
    half = "é".encode()
    assert processor.push(TokenOutput(1, [half[0]]))[0] is None
    event, _ = processor.push(TokenOutput(2, [half[1]]))
    assert event is not None
    assert (event.rid, event.text_delta) == ("r2", "\ufffd")
    event, _ = processor.push(TokenOutput(1, [half[1]]))
    assert event is not None
    assert (event.rid, event.text_delta) == ("r1", "é")


def test_dropped_and_unknown_answers_are_ignored() -> None:
    processor = OutputProcessor(load_tokenizer(None))
    assert processor.push(TokenOutput(7, [97])) == (None, False)
    processor.add(1, rid="r", index=0, num_prompt=1, sampling=SamplingParams(), want_logprobs=False)
    processor.drop(1)
    processor.drop(1)
    assert processor.push(TokenOutput(1, [97], LENGTH)) == (None, False)
    assert len(processor) == 0
