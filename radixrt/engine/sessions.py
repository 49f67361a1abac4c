"""Sessions: requests that continue from what earlier requests said, named by request id, so that clients send only what is new.

A session is a tree of turns.  A turn keeps the tokens it added and the turn it continues; whole histories are put
together when they are needed.  Pure: no clock, no engine.  What only a session used of the cache is told when it is closed.
"""

from __future__ import annotations

import heapq
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from radixrt.errors import Overloaded, RequestError
from radixrt.types import Namespace

MAX_SESSIONS = 4096
MAX_TURNS = 4096  # of one session
MAX_TOKENS = 1 << 24  # of all sessions together
MAX_ID_CHARS = 128
MAX_SIBLINGS = 32  # that a turn is compared with when its session ends


class SessionParams(msgspec.Struct, frozen=True, kw_only=True):
    """How a request continues a session; SGLang's ``session_params``.

    ``rid``: the request it continues, None to begin anew.  ``offset``: how much of that request's prompt and output is
    kept, counted as Python slices count; None or 0 for all.  ``replace``: forget what already continued from ``rid`` (from
    None: everything), ending it where it runs.  ``drop_previous_output``: keep the prompt of ``rid``, not its output.
    """

    id: str
    rid: str | None = None
    offset: int | None = None
    replace: bool = False
    drop_previous_output: bool = False


@dataclass(eq=False, slots=True)
class Turn:
    """One request of a session: the first ``kept`` tokens of its parent's history, then ``added``, then ``output``."""

    rid: str
    session: Session
    parent: Turn | None
    kept: int
    added: array[int]
    namespace: Namespace
    output: array[int] = field(default_factory=lambda: array("i"))
    cached: int = 0
    running: bool = True
    children: list[Turn] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Tokens that it remembers itself."""
        return len(self.added) + len(self.output)

    @property
    def num_prompt(self) -> int:
        return self.kept + len(self.added)

    def prompt(self) -> array[int]:
        """All tokens before the output."""
        chain: list[Turn] = [self]
        while (parent := chain[-1].parent) is not None:
            chain.append(parent)
        tokens = array("i")
        for turn in reversed(chain):
            del tokens[turn.kept :]
            tokens.extend(turn.added)
            if turn is not self:
                tokens.extend(turn.output)
        return tokens


@dataclass(eq=False, slots=True)
class Session:
    id: str
    timeout: float | None
    used: float
    turns: dict[str, Turn] = field(default_factory=dict)
    closed: bool = False

    @property
    def running(self) -> bool:
        return any(turn.running for turn in self.turns.values())


# A namespace, and sequences of it with how many of their leading tokens were not the session's own.
Tails = list[tuple[Namespace, list[int], int]]


class Sessions:
    """All sessions of an engine.  Times are in seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_tokens(self) -> int:
        """Tokens that are remembered."""
        return self._num_tokens

    def open(self, id: str | None = None, *, timeout: float | None = None, now: float) -> str:
        """Open a session, which ends by itself after ``timeout`` seconds without a request, and return its id.

        Raises RequestError for an id that is open, Overloaded when there are too many.
        """
        if id is not None and not 1 <= len(id) <= MAX_ID_CHARS:
            raise RequestError(f"session_id must have 1 to {MAX_ID_CHARS} characters.", param="session_id", code="invalid_value")
        if timeout is not None and not timeout > 0:
            raise RequestError("timeout must be above 0 seconds.", param="timeout", code="invalid_value")
        if id in self._sessions:
            raise RequestError("A session with this id is open.", param="session_id", code="duplicate_session")
        if len(self._sessions) >= MAX_SESSIONS:
            raise Overloaded(f"{MAX_SESSIONS} sessions are open; close some.")
        id = id or uuid.uuid4().hex
        self._sessions[id] = Session(id, timeout, now)
        return id

    def prompt(self, params: SessionParams, tokens: Sequence[int], *, bos: int | None) -> list[int]:
        """Return the whole prompt of a request that adds ``tokens``, changing nothing.

        A beginning-of-sequence token is dropped from what continues a history.  Raises RequestError for a session or
        request that is not there, and for a request that still runs unless it is replaced.
        """
        parent, kept = self._resolve(params)
        if parent is None:
            return list(tokens)
        history = parent.prompt() + parent.output
        return history[:kept].tolist() + list(_continuing(tokens, bos))

    def add(
        self, params: SessionParams, rid: str, tokens: Sequence[int], *, bos: int | None, namespace: Namespace, now: float
    ) -> tuple[Turn, list[str]]:
        """Take a request in, and return its turn and the requests that are to be ended because it replaces them.

        Raises as ``prompt``, RequestError for a ``rid`` the session has, and Overloaded when there is no room for more.
        """
        parent, kept = self._resolve(params)
        session = self._sessions[params.id]
        replaced = _following(session, parent) if params.replace else []
        added = array("i", tokens if parent is None else _continuing(tokens, bos))
        if rid in session.turns and session.turns[rid] not in replaced:
            raise RequestError("The session has a request of this rid.", param="rid", code="duplicate_rid")
        num_tokens = self._num_tokens + len(added) - sum(turn.size for turn in replaced)
        if len(session.turns) - len(replaced) >= MAX_TURNS or num_tokens > MAX_TOKENS:
            raise Overloaded("Sessions hold too much; close some, or replace what came before.")
        ended = [turn.rid for turn in replaced if turn.running]
        for turn in replaced:
            turn.running = False
            del session.turns[turn.rid]
        if parent is not None and params.replace:
            parent.children.clear()
            if parent.running:
                parent.running = False
                ended.append(parent.rid)
        turn = session.turns[rid] = Turn(rid, session, parent, kept, added, namespace)
        if parent is not None:
            parent.children.append(turn)
        self._num_tokens = num_tokens
        session.used = now
        return turn, ended

    def push(self, turn: Turn, tokens: Sequence[int], cached: int) -> None:
        """Take in output of a turn, and how much of its prompt was cached."""
        if turn.running:
            turn.output.extend(tokens)
            turn.cached = cached
            self._num_tokens += len(tokens)

    def finish(self, turn: Turn, now: float, *, failed: bool = False) -> Tails:
        """Take in that a turn has ended; returns what its session leaves in the cache if it was closed meanwhile.

        A turn that failed is forgotten, so that it can be asked for again under the same rid.
        """
        session = turn.session
        turn.running = False
        session.used = now
        if failed and not session.closed and session.turns.get(turn.rid) is turn and not turn.children:
            del session.turns[turn.rid]
            self._num_tokens -= turn.size
            if turn.parent is not None:
                turn.parent.children.remove(turn)
        return self._tails(session) if session.closed and not session.running else []

    def close(self, id: str) -> Tails:
        """End a session: its requests that run go on, no more are taken.  Returns what it alone left in the cache.

        Raises RequestError when there is none of that id.
        """
        session = self._find(id)
        session.closed = True
        del self._sessions[id]
        self._num_tokens -= sum(turn.size for turn in session.turns.values())
        return [] if session.running else self._tails(session)

    def reap(self, now: float) -> Tails:
        """Close the sessions whose time is up and that run nothing."""
        late = [
            id for id, session in self._sessions.items()
            if session.timeout is not None and now - session.used >= session.timeout and not session.running
        ]  # fmt: skip
        return [tail for id in late for tail in self.close(id)]

    def _find(self, id: str) -> Session:
        session = self._sessions.get(id)
        if session is None:
            raise RequestError("There is no open session of this id.", param="session_params", code="unknown_session")
        return session

    def _resolve(self, params: SessionParams) -> tuple[Turn | None, int]:
        """The turn that is continued, and how many tokens of its history are kept."""
        session = self._find(params.id)
        if params.rid is None:
            return None, 0
        parent = session.turns.get(params.rid)
        if parent is None:
            raise RequestError("The session has no request of this rid.", param="session_params", code="unknown_rid")
        if parent.running and not params.replace:
            raise RequestError("The request that is to be continued has not finished.", param="session_params", code="rid_running")
        length = parent.num_prompt + (0 if params.drop_previous_output else len(parent.output))
        return parent, len(range(length)[: params.offset]) if params.offset else length

    def _tails(self, session: Session) -> Tails:
        tails: Tails = []
        for leaf in session.turns.values():
            if leaf.children:
                continue
            keep = 0
            at: Turn | None = leaf
            while at is not None:
                # More cached than the history it continues: that was somebody else's, and so is all before it.
                cached = _cached_by_others(at)
                if cached > at.kept:
                    keep = max(keep, cached)
                at = at.parent
            tails.append((leaf.namespace, (leaf.prompt() + leaf.output).tolist(), keep))
        return tails


def _following(session: Session, parent: Turn | None) -> list[Turn]:
    """All that continues from a turn, directly or not; without one, everything."""
    if parent is None:
        return list(session.turns.values())
    found = list(parent.children)
    for turn in found:
        found.extend(turn.children)
    return found


def _cached_by_others(turn: Turn) -> int:
    """How much of a turn's prompt was cached by others than its siblings, which start with the same tokens where they branch."""
    cached = turn.cached
    if turn.parent is None or cached <= turn.kept:
        return cached
    for sibling in heapq.nsmallest(MAX_SIBLINGS, turn.parent.children, key=lambda child: child.cached):
        if sibling.kept == turn.kept and sibling.cached < cached:
            pairs = zip(turn.added, sibling.added + sibling.output, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            # The sibling found less of the same tokens, so it was the one that computed the rest.
            if cached <= turn.kept + same:
                cached = sibling.cached
    return cached


def _continuing(tokens: Sequence[int], bos: int | None) -> Sequence[int]:
    return tokens[1:] if bos is not None and len(tokens) and tokens[0] == bos else tokens
