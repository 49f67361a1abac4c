"""Recorded requests as files, read into programs and written from what was served.

Three forms are read, told apart by their keys:

- Mooncake's, one JSON object a line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``, an id for each
  block of 512 prompt tokens; equal ids are equal prefixes.  Two more keys keep what that form loses: ``block_size``, and
  ``output_hash_ids``, which goes on where the last whole block of the prompt ends, so that a later prompt may continue an
  answer.  ``radixrt serve --record-trace`` writes this: no text leaves the server.
- SGLang's agentic trace, one JSON object with ``conversations``: lists of turns, each with the new ``messages``; or one
  conversation a line.  Answers are what the server will say.
- SGLang's token trace, one JSON object a line: ``input_tokens``, ``output_tokens`` or ``num_output_tokens``, ``ts`` (s).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from radixrt.bench.figures import Record
from radixrt.bench.program import Call, Output, Program, Tokens, Workload
from radixrt.bench.workloads import FIRST_TOKEN, LARGE_POOL
from radixrt.engine.trace import TraceRecorder
from radixrt.errors import ConfigError

MOONCAKE_BLOCK = 512
AGENTIC_OUTPUT = 220  # tokens an answer, where a trace does not say: the mean of OpenHands traces
# Text without a tokenizer: a word of up to five letters with the space before it, or any other character.
_PIECE = re.compile(r" ?[^\W\d_]{1,5}| ?\d{1,3}|\s+|[^\w\s]|_")
_EXACT = re.compile(r"t(\d+)")


def read(path: Path, *, vocab_size: int = 32_000, pool: int = LARGE_POOL, slowdown: float = 1.0) -> Workload:
    """Read a trace of any of the forms; times are stretched by ``slowdown``.  Raises ConfigError for a file that is none."""
    try:
        text = path.read_text("utf-8")
        conversations, lines = _split(text)
        programs = [_conversation(turns, vocab_size) for turns in conversations] or list(_requests(lines, vocab_size, slowdown))
    except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {type(error).__name__}: {error}") from error
    if not programs:
        raise ConfigError(f"the trace {path} has no requests")
    return Workload(path.stem, tuple(programs), pool)


def write_mooncake(path: Path, records: Sequence[Record], *, block_size: int = 16) -> None:
    """Write what was served as a Mooncake trace, in the order of arrival."""
    with TraceRecorder(path, block_size=block_size, key=b"") as recorder:
        for record in sorted(records, key=lambda record: record.due):
            recorder.add(record.due, record.tokens[: record.num_prompt], record.tokens[record.num_prompt :], record.namespace)


def write_agentic(path: Path, workload: Workload) -> None:
    """Write programs whose every call goes on from the one before as an agentic trace.  Tokens become words ``t123``.

    Raises ConfigError for a program that is no conversation.
    """
    conversations = []
    for program in workload.programs:
        turns: list[dict[str, Any]] = []
        length = 0
        for index, call in enumerate(program.calls):
            history = (*program.calls[index - 1].prompt, Output(index - 1)) if index else ()
            if call.prompt[: len(history)] != history:
                raise ConfigError(f"workload {workload.name} is no conversation: call {index} does not go on from the one before")
            new = [part for part in call.prompt[len(history) :] if not isinstance(part, Output)]
            length += sum(map(len, new))
            messages = [{"role": "user", "content": " ".join(f"t{token}" for part in new for token in part)}]
            turns.append({"messages": messages, "prompt_tokens": length})
            length += call.num_output
        conversations.append(turns)
    path.write_text(json.dumps({"metadata": {"source": workload.name}, "conversations": conversations}) + "\n", "utf-8")


def _split(text: str) -> tuple[list[Any], list[Any]]:
    """The conversations of an agentic trace, or else the objects of a trace of one a line."""
    if text.lstrip().startswith("{") and '"conversations"' in text[:100_000]:
        return json.loads(text)["conversations"], []
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    if lines and isinstance(lines[0], list):
        return lines, []
    return [], lines


def _conversation(turns: list[Any], vocab_size: int) -> Program:
    parts: tuple[Tokens[int] | Output, ...] = ()
    calls: list[Call] = []
    for turn in turns:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in turn["messages"])
        words = [message["content"].split(" ") for message in turn["messages"]]
        exact = [_EXACT.fullmatch(word) for content in words for word in content]
        tokens = array("i", (int(match[1]) for match in exact if match)) if all(exact) else _tokenize(text, vocab_size)
        parts = (*parts, tokens)
        calls.append(Call(parts, int(turn.get("output_tokens", AGENTIC_OUTPUT))))
        parts = (*parts, Output(len(calls) - 1))
    return Program(tuple(calls))


def _requests(lines: Iterable[Any], vocab_size: int, slowdown: float) -> Iterator[Program]:
    blocks = functools.cache(functools.partial(_block, vocab_size=vocab_size))
    timed = [(float(line.get("ts", 0.0)) if "input_tokens" in line else line["timestamp"] / 1000, line) for line in lines]
    timed.sort(key=lambda pair: pair[0])
    for at, line in timed:
        if "input_tokens" in line:
            prompt, output = array("i", line["input_tokens"]), array("i", line.get("output_tokens", ()))
            count = int(line.get("num_output_tokens", len(output)))
        else:
            count = int(line["output_length"])
            prompt, output = _from_blocks(line, blocks)
        if prompt:
            yield Program((Call((prompt,), count, output=output or None),), (at - timed[0][0]) * slowdown)


def _from_blocks(line: dict[str, Any], blocks: Callable[[int, int], Tokens[int]]) -> tuple[Tokens[int], Tokens[int]]:
    """Prompt and output of a request that a trace gives as ids of blocks."""
    size, length = int(line.get("block_size", MOONCAKE_BLOCK)), int(line["input_length"])
    ids, rest = line["hash_ids"], line.get("output_hash_ids")
    tokens: Tokens[int] = array("i")
    for block in ids if rest is None else [*ids[: length // size], *rest]:
        tokens.extend(blocks(block, size))
    return tokens[:length], tokens[length : length + int(line["output_length"])] if rest is not None else array("i")


def _block(block: int, size: int, *, vocab_size: int) -> Tokens[int]:
    rng = np.random.Generator(np.random.PCG64([block, size]))
    return array("i", rng.integers(FIRST_TOKEN, vocab_size, size, dtype=np.int32).tobytes())


def _tokenize(text: str, vocab_size: int) -> Tokens[int]:
    """Stand in for a tokenizer: equal text gives equal tokens, about as many as a real one would."""
    digests = (hashlib.blake2b(piece.encode(), digest_size=8).digest() for piece in _PIECE.findall(text))
    return array("i", (FIRST_TOKEN + int.from_bytes(digest, "little") % (vocab_size - FIRST_TOKEN) for digest in digests))
