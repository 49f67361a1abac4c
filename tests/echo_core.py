"""An engine core that answers a prompt with the prompt, over and over, and breaks when told to.

The model path of its config says how it behaves as a whole: ``echo``, ``echo/0.01`` (seconds a step takes),
``bad-config``, ``broken``, ``slow-load``.  A prompt that starts with one of the words below breaks at that request.
Run as a script it is a worker process with a quick heartbeat.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from radixrt.config import EngineConfig
from radixrt.engine import worker
from radixrt.engine.questions import AnyAnswer, AnyQuestion, Done, Unpin
from radixrt.errors import ConfigError, RequestError
from radixrt.types import EngineStats, Finish, FinishReason, GenerateRequest, ModelInfo, TokenLogprob, TokenOutput

REFUSE, BREAK, FAIL, HANG, DIE = "!refuse", "!break", "!fail", "!hang", "!die"
CAPACITY = 1000
CONTEXT = 200
VOCABULARY = 259


class EchoCore:
    """Implements ``radixrt.engine.loop.Core``."""

    def __init__(self, pace: float = 0.0, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.info = ModelInfo(
            model_path="echo", architecture="Echo", vocab_size=VOCABULARY, context_length=CONTEXT, capacity_tokens=CAPACITY
        )
        self.pace = pace
        self.closed = False
        self.requests: list[GenerateRequest] = []
        self.aborted: list[int] = []
        self._running: dict[int, tuple[GenerateRequest, list[int]]] = {}
        self._ended: list[TokenOutput] = []
        self._steps = self._generated = self._flushes = 0

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Callable[[int, int, str], None] | None = None) -> EchoCore:
        kind, _, pace = config.model.model_path.partition("/")
        if kind == "bad-config":
            raise ConfigError("no such model")
        if kind == "broken":
            raise OSError("the disk is gone")
        for done in range(1000 if kind == "slow-load" else 2):
            if kind == "slow-load":
                time.sleep(0.01)
            if progress is not None:
                progress(done, 1000, "weights")
        return cls(float(pace or 0), config)

    def add(self, request: GenerateRequest) -> None:
        self.requests.append(request)
        if self._starts(request, REFUSE):
            raise RequestError("refused")
        if self._starts(request, BREAK):
            raise RuntimeError("broken")
        self._running[request.uid] = (request, [])

    def abort(self, uid: int) -> None:
        self.aborted.append(uid)
        if self._running.pop(uid, None) is not None:
            self._ended.append(TokenOutput(uid, [], finish=Finish(FinishReason.ABORT)))

    def flush(self) -> bool:
        self._flushes += not self._running
        return not self._running

    def answer(self, question: AnyQuestion) -> AnyAnswer:
        assert isinstance(question, Unpin)
        if question.id == REFUSE:
            raise RequestError("refused", param="pin_id", code="no")
        if question.id == BREAK:
            raise RuntimeError("broken")
        if question.id == DIE:
            os._exit(7)
        return Done(question.id == "there")

    patience = None

    def prepare(self) -> None:
        pass

    def has_work(self) -> bool:
        return bool(self._running or self._ended)

    def step(self) -> list[TokenOutput]:
        time.sleep(self.pace)
        self._steps += 1
        outputs, self._ended = self._ended, []
        for uid, (request, tokens) in list(self._running.items()):
            if self._starts(request, FAIL):
                raise RuntimeError("the step failed")
            if self._starts(request, HANG):
                time.sleep(3600)
            if self._starts(request, DIE):
                os._exit(7)
            longest = request.sampling.max_new_tokens
            new = [request.prompt[len(tokens) % len(request.prompt)]] if longest else []
            tokens += new
            finish = Finish(FinishReason.LENGTH) if len(tokens) == longest else None
            if finish is not None:
                del self._running[uid]
            logprobs = [TokenLogprob(-1.0, token, [(-1.0, token)]) for token in new] if request.logprobs is not None else None
            outputs.append(TokenOutput(uid, new, finish=finish, logprobs=logprobs))
            self._generated += len(new)
        return outputs

    def stats(self) -> EngineStats:
        locked = sum(len(request.prompt) + len(tokens) for request, tokens in self._running.values())
        return EngineStats(
            capacity_tokens=CAPACITY, free_tokens=CAPACITY - locked, locked_tokens=locked, num_running=len(self._running),
            steps=self._steps, generated_tokens=self._generated, evicted_tokens=self._flushes,
        )

    def close(self) -> None:
        self.closed = True

    @staticmethod
    def _starts(request: GenerateRequest, word: str) -> bool:
        return bytes(token for token in request.prompt if token < 256).startswith(word.encode())


if __name__ == "__main__":
    worker.BEAT_SECONDS = 0.1
    os._exit(worker.main(sys.argv[1:], EchoCore.load))
