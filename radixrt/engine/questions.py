"""What the engine front may ask of the core besides computing, and the answers: plain values for the link."""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.errors import InternalError, RadixrtError, RequestError
from radixrt.types import Divergence


class Question(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of the questions."""


class PinPrefix(Question, frozen=True):
    """Keep what is cached of these tokens for ``ttl`` seconds after its last use; answered by Pinned."""

    id: str
    tokens: list[int]
    namespace: tuple[str, ...]
    ttl: float


class Unpin(Question, frozen=True):
    """End a pin; answered by Done, not ok when there is none of that name."""

    id: str


class Explain(Question, frozen=True):
    """Where do these tokens leave what is cached?  Answered by Explained; changes nothing."""

    tokens: list[int]
    namespace: tuple[str, ...]


class ViewTree(Question, frozen=True):
    """Show the tree down to ``depth``, leaving out subtrees under ``min_tokens``, at most ``limit`` nodes; answered by TreeView."""

    namespace: tuple[str, ...] | None
    depth: int
    min_tokens: int
    limit: int


class DropTails(Question, frozen=True):
    """Forget the ends of these sequences, beyond ``keep`` tokens each, where nobody else shares them; answered by Done."""

    tails: list[tuple[list[int], int]]
    namespace: tuple[str, ...]


class ViewRequests(Question, frozen=True):
    """Show who runs and who waits, at most ``limit`` of each; answered by RequestsView."""

    limit: int


class Pause(Question, frozen=True):
    """Compute nothing until Resume; with ``retract`` running requests give their slots up.  Answered by Done."""

    retract: bool


class Resume(Question, frozen=True):
    """Go on after Pause; answered by Done."""


class Pinned(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """``tokens`` are pinned (0: nothing was cached, and nothing is pinned) for the next ``seconds``."""

    tokens: int
    seconds: float


class Explained(msgspec.Struct, frozen=True, tag=True, array_like=True):
    divergence: Divergence


class TreeView(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """``nodes`` are plain facts, parents before children; ``num_nodes`` counts all that would have been shown."""

    nodes: list[dict[str, Any]]
    num_nodes: int


class RequestFacts(msgspec.Struct, frozen=True, array_like=True):
    """One request in the engine core.

    ``cached`` prompt tokens were not computed for it (-1: not known yet), ``computed`` tokens have K/V, ``output`` are generated.
    ``seconds`` since it came; ``waits_for`` is the reason of ``radixrt.schedule.waits``, '' when it runs.
    """

    uid: int
    prompt: int
    cached: int
    computed: int
    output: int
    priority: int
    retractions: int
    seconds: float
    waits_for: str


class RequestsView(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Requests in the order of their steps and of the queue; the counts are of all there are."""

    running: list[RequestFacts]
    waiting: list[RequestFacts]
    num_running: int
    num_waiting: int


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    ok: bool


class Declined(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The question could not be answered: an error, as values."""

    message: str
    status: int
    param: str | None = None
    code: str | None = None

    @classmethod
    def of(cls, error: RadixrtError) -> Declined:
        return cls(error.message, error.status, error.param, error.code)

    def error(self) -> RadixrtError:
        """The exception this stands for."""
        if self.status < 500:
            return RequestError(self.message, param=self.param, code=self.code)
        return InternalError(self.message)


CacheQuestion = PinPrefix | Unpin | Explain | ViewTree | DropTails
AnyQuestion = CacheQuestion | ViewRequests | Pause | Resume
AnyAnswer = Pinned | Explained | TreeView | RequestsView | Done | Declined
