"""Main of a compiling child: specs in, compiled grammars out, until its owner is gone or kills it.

Started by ``pool`` as ``python -m radixrt.grammar.compile.child PARENT_PID``, which makes it nice.  Each task may take only so much
memory more.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

import msgspec

from radixrt.errors import GrammarError
from radixrt.grammar.compile.engines import guarded, prepare
from radixrt.grammar.compile.wire import Begun, Compiled, Pipe, Refused, Task, Tokens
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.processes import be_own, die_with_parent


def main(arguments: list[str]) -> int:
    """Serve until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(arguments[0]))
    be_own()
    pipe = _own_pipe()
    first = pipe.receive()
    if first is None:
        return 0
    tokens = msgspec.msgpack.decode(first, type=Tokens)
    vocabulary = Vocabulary(
        tokens.token_bytes, tokens.end_ids, encode=lambda text: longest_matches(vocabulary, text.encode()), size=tokens.size
    )
    while (data := pipe.receive()) is not None:
        _serve(pipe, msgspec.msgpack.decode(data, type=Task), vocabulary)
    return 0


def longest_matches(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Cut bytes into tokens, the longest that fits each time; what no token starts with is left out.

    Stands in for the tokenizer, which only drafts need, and a child makes none.
    """
    tokens: list[int] = []
    at = 0
    while at < len(text):
        for size in range(min(vocabulary.max_token_bytes, len(text) - at), 0, -1):
            if (token := vocabulary.token_of.get(text[at : at + size])) is not None:
                tokens.append(token)
                break
        else:
            size = 1
        at += size
    return tokens


def _serve(pipe: Pipe, task: Task, vocabulary: Vocabulary) -> None:
    _limit_memory(None)
    try:
        module = guarded(lambda: prepare(task.module, vocabulary))
        pipe.send(Begun())
        _limit_memory(task.max_bytes)
        data = guarded(lambda: module.to_bytes(module.compile(task.spec, vocabulary)))
    except GrammarError as error:
        _limit_memory(None)
        pipe.send(Refused(error.message, error.code, error.keyword, error.pointer))
    else:
        _limit_memory(None)
        pipe.send(Compiled(data))


def _limit_memory(more: int | None) -> None:
    """Let the address space grow by ``more`` bytes, None: as it likes."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = hard
    if more is not None and sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as statm:
            soft = int(statm.read().split()[0]) * resource.getpagesize() + more
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _own_pipe() -> Pipe:
    """Take stdin and stdout for messages; what native code prints goes to stderr."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return Pipe(incoming, outgoing)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
