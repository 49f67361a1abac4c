"""The answers of the OpenAI routes: objects for whole answers, writers for streams.  Pure.

A stream's chunks are put together from bytes made once, because one is built for every token of every request.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from radixrt.engine.stream import Answer
from radixrt.engine.turn import message_object
from radixrt.server.choices import (
    CallArguments,
    CallBegin,
    Choice,
    Content,
    Ended,
    Piece,
    Reasoning,
    WholeChoice,
    plain_choices,
)
from radixrt.server.sse import event
from radixrt.text.detokenizer import Detokenizer
from radixrt.text.pieces import Message
from radixrt.text.tokenizer import Tokenizer
from radixrt.types import Finish, RequestOutput, TokenLogprob, Usage

# JSON has no -inf; this is what OpenAI sends for a token of no probability.
LEAST_LOGPROB = -9999.0


class TokenNames:
    """How tokens are spelled in logprob reports."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.name = functools.lru_cache(maxsize=1 << 16)(self._name)

    def octets(self, token: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token))

    def _name(self, token: int) -> str:
        """The text of a token; its bytes in hexadecimal where they are no text, so that two tokens never share a name."""
        octets = self._tokenizer.token_bytes(token)
        try:
            return octets.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{octet:02x}" for octet in octets)

    def chat_entries(self, logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        """Entries of ``choices[].logprobs.content``."""
        return [
            self._chat_entry(entry.logprob, entry.token) | {"top_logprobs": [self._chat_entry(value, token) for value, token in entry.top]}
            for entry in logprobs
        ]

    def _chat_entry(self, logprob: float | None, token: int) -> dict[str, Any]:
        # What closes a text was not sampled, and has none.
        return {"token": self.name(token), "logprob": LEAST_LOGPROB if logprob is None else _finite(logprob), "bytes": self.octets(token)}

    def text_offsets(self) -> TextOffsets:
        """Start counting the text of an answer."""
        return TextOffsets(self._tokenizer)

    def completion_lists(self, logprobs: Sequence[TokenLogprob], text_offsets: TextOffsets) -> dict[str, Any]:
        """``choices[].logprobs`` of a text completion, or of the next piece of one."""
        tokens = [self.name(entry.token) for entry in logprobs]
        offsets = [text_offsets.next(entry.token) for entry in logprobs]
        tops: list[dict[str, float | None] | None] = []
        for name, entry in zip(tokens, logprobs, strict=True):
            if entry.logprob is None:
                tops.append(None)
                continue
            top = {self.name(token): _finite(value) for value, token in entry.top}
            top.setdefault(name, _finite(entry.logprob))
            tops.append(top)
        values = [_finite(entry.logprob) for entry in logprobs]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


class TextOffsets:
    """Where in the decoded text of one answer each of its tokens starts; a token inside a character, where that starts."""

    __slots__ = ("_detokenizer", "_num_chars", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        self._num_chars = 0

    def next(self, token: int) -> int:
        """Take the next token and return its offset."""
        octets = self._tokenizer.token_bytes(token)
        if octets and octets[0] & 0xC0 != 0x80:
            # Not the continuation of a character, so what was left of one has become U+FFFD.
            self._num_chars += len(self._detokenizer.flush())
        offset = self._num_chars
        self._num_chars += len(self._detokenizer.push(token))
        return offset


def _finite(logprob: float | None) -> float | None:
    return logprob if logprob is None or logprob >= LEAST_LOGPROB else LEAST_LOGPROB


def usage_object(usages: Iterable[tuple[int, int, Usage]], reports: Iterable[dict[str, Any] | None] = ()) -> dict[str, Any]:
    """Sum usages of (prompt, choice, usage): completions add up, a prompt counts once, as its first choice saw it.

    ``reports`` of the cache, where any were asked for, are listed beside them; one alone stands for itself.
    """
    prompt = completion = cached = 0
    for _, index, usage in usages:
        completion += usage.completion_tokens
        if index == 0:
            prompt += usage.prompt_tokens
            cached += usage.cached_tokens
    total: dict[str, Any] = {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    given = [report for report in reports if report is not None]
    if given:
        total["radixrt"] = given if len(given) > 1 else given[0]
    return total


def answers_usage(answers: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    usages = ((p, i, answer.usage) for p, choices in enumerate(answers) for i, answer in enumerate(choices))
    return usage_object(usages, (answer.report for choices in answers for answer in choices))


def ending(finish: Finish) -> dict[str, Any]:
    """How a choice ended: ``finish_reason``, SGLang's ``matched_stop``, and whether a grammar closed it in time."""
    how = {"finish_reason": finish.reason.value, "matched_stop": finish.matched}
    return {**how, "closed": True} if finish.closed else how


def chat_completion(
    id: str, created: int, model: str, answers: Sequence[Answer], names: TokenNames, readers: Sequence[Choice]
) -> dict[str, Any]:
    """The object of a whole chat answer; ``readers`` read the choices."""
    choices = []
    for index, (answer, reader) in enumerate(zip(answers, readers, strict=True)):
        whole = reader.collect(answer)
        logprobs = None if answer.logprobs is None else {"content": names.chat_entries(answer.logprobs), "refusal": None}
        end = {**ending(answer.finish), "finish_reason": whole.finish_reason}
        choices.append({"index": index, "message": chat_message(whole), "logprobs": logprobs, **end})
    return {
        "id": id, "object": "chat.completion", "created": created, "model": model, "choices": choices,
        "usage": answers_usage([answers]),
    }


def chat_message(whole: WholeChoice) -> dict[str, Any]:
    """The message of a whole answer."""
    return {**message_object(Message(whole.content, whole.reasoning, whole.calls)), "refusal": None}


def text_completion(
    id: str, created: int, model: str, answers: Sequence[Sequence[Answer]], names: TokenNames, echoes: Sequence[str] | None
) -> dict[str, Any]:
    """The object of a whole text completion; ``echoes`` are the prompts' texts when they are to be repeated."""
    choices: list[dict[str, Any]] = []
    for prompt, group in enumerate(answers):
        for answer in group:
            text, logprobs = answer.text, None
            reported = list(answer.logprobs or ())
            if echoes is not None:
                text = echoes[prompt] + text
                reported = [*(answer.prompt_logprobs or ()), *reported]
            if answer.logprobs is not None or answer.prompt_logprobs is not None:
                logprobs = names.completion_lists(reported, names.text_offsets())
            choices.append({"index": len(choices), "text": text, "logprobs": logprobs, **ending(answer.finish)})
    return {
        "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices,
        "usage": answers_usage(answers),
    }


class _ChunkWriter:
    """What the two stream forms share: the head of a chunk, and the usage: in a chunk at the end, and that of its choice
    so far in every chunk where ``continuous_usage`` says how long the prompts are."""

    def __init__(
        self, object: str, id: str, created: int, model: str, *, num_choices: int, include_usage: bool,
        continuous_usage: Sequence[int] | None,
    ) -> None:
        self._envelope = {"id": id, "object": object, "created": created, "model": model}
        self._head = b"data: " + orjson.dumps(self._envelope)[:-1] + b',"choices":[{"index":'
        self._num_choices = num_choices
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._usages: dict[tuple[int, int], Usage] = {}
        self._reports: dict[tuple[int, int], dict[str, Any] | None] = {}

    def size(self, prompt: int, output: RequestOutput) -> int:
        return len(output.logprobs_delta or ())

    def _note(self, prompt: int, output: RequestOutput) -> int:
        self._usages[prompt, output.index] = output.usage
        if output.report is not None:
            self._reports[prompt, output.index] = output.report
        return prompt * self._num_choices + output.index

    def _close(self, prompt: int, usage: Usage | None = None) -> bytes:
        """What ends a chunk of a choice: its list, and what it has used so far where that is asked for; None: no token yet."""
        if self._continuous_usage is None:
            return b"]}\n\n"
        usage = usage or Usage(prompt_tokens=self._continuous_usage[prompt])
        return b'],"usage":' + orjson.dumps(usage_object([(0, 0, usage)])) + b"}\n\n"

    def end(self) -> bytes:
        if not self._include_usage:
            return b""
        usages = ((prompt, index, usage) for (prompt, index), usage in self._usages.items())
        usage = usage_object(usages, (self._reports[key] for key in sorted(self._reports)))
        return event({**self._envelope, "choices": [], "usage": usage})


class ChatWriter(_ChunkWriter):
    """Chunks of ``chat.completion.chunk``: the role first, text as it comes, and how each choice ended."""

    def __init__(
        self, id: str, created: int, model: str, names: TokenNames, *, num_choices: int, include_usage: bool,
        continuous_usage: Sequence[int] | None = None, choices: Sequence[Choice] | None = None,
    ) -> None:
        super().__init__(
            "chat.completion.chunk", id, created, model, num_choices=num_choices, include_usage=include_usage,
            continuous_usage=continuous_usage,
        )
        self._names = names
        self._choices = choices or plain_choices(num_choices)

    def start(self) -> bytes:
        role = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' + self._close(0)
        return b"".join(self._head + b"%d" % index + role for index in range(self._num_choices))

    def push(self, prompt: int, output: RequestOutput) -> bytes:
        head = self._head + b"%d" % self._note(prompt, output)
        pieces = self._choices[output.index].push(output)
        # What nearly every token is, without looking at what else it could be.
        if len(pieces) == 1 and type(pieces[0]) is Content and not output.logprobs_delta:
            text, tail = orjson.dumps(pieces[0].text), b'},"logprobs":null,"finish_reason":null}'
            return b"".join((head, b',"delta":{"content":', text, tail, self._close(prompt, output.usage)))
        ended = pieces.pop() if pieces and isinstance(pieces[-1], Ended) else None
        logprobs = b"null"
        if output.logprobs_delta:
            logprobs = orjson.dumps({"content": self._names.chat_entries(output.logprobs_delta), "refusal": None})
            if not pieces:
                pieces.append(Content(""))
        close, chunks = self._close(prompt, output.usage), []
        for piece in pieces:
            chunks += [head, b',"delta":', _delta(piece), b',"logprobs":', logprobs, b',"finish_reason":null}', close]
            logprobs = b"null"
        if isinstance(ended, Ended):
            tail = orjson.dumps({**ending(ended.finish), "finish_reason": ended.finish_reason})
            chunks += [head, b',"delta":{},"logprobs":null,', tail[1:], close]
        return b"".join(chunks)


def _delta(piece: Piece | Ended) -> bytes:
    match piece:
        case Content(text):
            return b'{"content":' + orjson.dumps(text) + b"}"
        case Reasoning(text):
            return b'{"reasoning_content":' + orjson.dumps(text) + b"}"
        case CallBegin(index, id, name):
            function = {"name": name, "arguments": ""}
            return orjson.dumps({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        case CallArguments(index, text):
            return orjson.dumps({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    raise AssertionError("only the last piece ends an answer")


class CompletionWriter(_ChunkWriter):
    """Chunks of a streamed ``text_completion``; the prompt's text first when it is to be repeated."""

    def __init__(
        self, id: str, created: int, model: str, names: TokenNames, *, num_choices: int, include_usage: bool,
        continuous_usage: Sequence[int] | None = None, echoes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            "text_completion", id, created, model, num_choices=num_choices, include_usage=include_usage, continuous_usage=continuous_usage
        )
        self._names = names
        self._echoes = echoes
        self._offsets: dict[int, TextOffsets] = {}

    def start(self) -> bytes:
        chunks = []
        for prompt, echo in enumerate(self._echoes or ()):
            tail = b',"text":' + orjson.dumps(echo) + b',"logprobs":null,"finish_reason":null}' + self._close(prompt)
            chunks += [self._head + b"%d" % (prompt * self._num_choices + index) + tail for index in range(self._num_choices)]
        return b"".join(chunks)

    def push(self, prompt: int, output: RequestOutput) -> bytes:
        choice = self._note(prompt, output)
        if not output.text_delta and not output.logprobs_delta and output.finish is None:
            return b""
        logprobs = b"null"
        if output.logprobs_delta:
            offsets = self._offsets.get(choice)
            if offsets is None:
                offsets = self._offsets[choice] = self._names.text_offsets()
            logprobs = orjson.dumps(self._names.completion_lists(output.logprobs_delta, offsets))
        tail = b'"finish_reason":null}' if output.finish is None else orjson.dumps(ending(output.finish))[1:]
        return b"".join((
            self._head, b"%d" % choice, b',"text":', orjson.dumps(output.text_delta), b',"logprobs":', logprobs, b",", tail,
            self._close(prompt, output.usage),
        ))
