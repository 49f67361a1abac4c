"""Programs on radixrt, embedded or over HTTP: states become token ids, so that what a model wrote is found in the cache
token by token as it wrote it, and nothing is tokenized twice.

``Transport`` is what differs between the two.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from radixlang.backends.base import Program, Request
from radixlang.piece import Answer, Piece, messages_of, text_of
from radixlang.select import Score
from radixrt import Overloaded, RequestError

logger = logging.getLogger(__name__)

PIN_SECONDS = 3600.0
# A pinned prefix shorter than this is not worth a request of its own.
MIN_PINNED_TOKENS = 16
# Requests that are open at once; engines queue some thousands and refuse more.
MAX_OPEN = 1024
# Requests of one program that go through its session; an engine takes no more than 4,096.
MAX_TURNS = 4000
Native = dict[str, Any]
OnText = Callable[[Native], bool]


class Transport(Protocol):
    """The calls of radixrt that programs need.  Token ids in and out."""

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    async def encode_chat(self, messages: Sequence[dict[str, str]], *, unfinished: bool) -> list[int]:
        """Render a conversation; ``unfinished`` ends inside the last message, else behind the start of an answer."""
        ...

    async def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    async def generate(self, tokens: Sequence[int], params: Native, *, on_answer: OnText | None = None, **options: Any) -> list[Native]:
        """Return answers in the native form.  ``on_answer`` is shown an answer as it grows, and ends it by returning True."""
        ...

    async def start_token(self) -> int:
        """A token that texts begin with, for a prompt of nothing."""
        ...

    async def pin(self, tokens: Sequence[int], ttl: float) -> str: ...

    async def unpin(self, pin: str) -> None: ...

    async def open_session(self) -> str: ...

    async def close_session(self, session: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """Tokens of all text up to a place but ``rest``, which will be tokenized together with what follows.

    ``ids`` come behind those of ``before``; all of them are ``length``.  ``turn``: a request of the program's session, and how
    many of the leading tokens are the leading tokens of its prompt and output.
    """

    before: Known | None
    ids: Sequence[int]
    length: int
    rest: str = ""
    turn: tuple[str, int] | None = None

    def tokens(self) -> list[int]:
        chain = []
        at: Known | None = self
        while at is not None:
            chain.append(at.ids)
            at = at.before
        return [token for ids in reversed(chain) for token in ids]


_NOTHING = Known(None, (), 0)


@dataclass(slots=True)
class _Session:
    id: str
    num_turns: int = 0


class TokenBackend:
    """A backend on a radixrt engine."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._slots = asyncio.Semaphore(MAX_OPEN)

    async def generate(self, request: Request) -> list[Answer]:
        sampling = request.sampling
        known = await self._prompt(request.before)
        tokens = known.tokens()
        stop = None if sampling.stop_regex is None else re.compile(sampling.stop_regex)
        on_answer = None
        if stop is not None or request.on_text is not None:
            on_answer = _Listener(stop, request.on_text).hear
        options: dict[str, Any] = {}
        if sampling.logprobs or sampling.top_logprobs:
            options = {"return_logprob": True, "top_logprobs_num": sampling.top_logprobs or 0, "return_text_in_logprobs": True}
        session = await self._session(request.program) if (sampling.n or 1) == 1 and stop is None else None
        if session is not None:
            tokens, options["session_params"] = await self._turn(session, known, tokens)
        async with self._slots:
            natives = await self._transport.generate(tokens, sampling.native(), on_answer=on_answer, **options)
        return [await self._answer(known, native, stop, in_session=session is not None) for native in natives]

    async def _session(self, program: Program) -> _Session | None:
        """The session of an ephemeral program, whose requests leave nothing behind; None for none."""
        while program.parent is not None:
            program = program.parent
        if not program.ephemeral:
            return None
        if program.state is None:
            program.state = asyncio.ensure_future(self._open())
        session: _Session | None = await asyncio.shield(program.state)
        if session is not None:
            session.num_turns += 1
        return session if session is not None and session.num_turns <= MAX_TURNS else None

    async def _open(self) -> _Session | None:
        try:
            return _Session(await self._transport.open_session())
        except Overloaded as error:
            logger.info("a program has no session: %s", error)
            return None

    async def _turn(self, session: _Session, known: Known, tokens: list[int]) -> tuple[list[int], Native]:
        """What of a prompt is to be sent, and how it goes on from an earlier request."""
        if known.turn is None:
            # What was cached before the session began stays when it ends.
            await self._transport.generate(tokens, {"max_new_tokens": 0})
            return tokens, {"id": session.id}
        rid, kept = known.turn
        return tokens[kept:], {"id": session.id, "rid": rid, "offset": kept}

    async def _answer(self, known: Known, native: Native, stop: re.Pattern[str] | None, *, in_session: bool) -> Answer:
        text, ids, meta = native["text"], native["output_ids"], dict(native["meta_info"])
        found = stop.search(text) if stop is not None else None
        if stop is not None and found is not None:
            text = text[: found.start()]
            meta["finish_reason"] = {"type": "stop", "matched": found[0]}
            # The engine has gone on until it heard of the match; what it wrote meanwhile is no part of the answer.
            meta["completion_tokens"] = used = await self._used(stop, ids)
            ids = ids[:used]
        kept, rest = await self._kept(text, ids, meta)
        length = known.length + len(kept)
        return Answer(text, ids, meta, Known(known, kept, length, rest, (meta["id"], length) if in_session and length else None))

    async def _used(self, stop: re.Pattern[str], ids: list[int]) -> int:
        """How many leading tokens it takes for a match; all of them hold one."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if stop.search(await self._transport.decode(ids[:middle], skip_special_tokens=True)):
                high = middle
            else:
                low = middle + 1
        return low

    async def _kept(self, text: str, ids: list[int], meta: Native) -> tuple[list[int], str]:
        """The leading tokens whose text is part of the answer's, and what they leave of it."""
        reason = meta.get("finish_reason") or {}
        if isinstance(reason.get("matched"), int):
            return ids[:-1], ""  # a token that ends texts is no part of one
        if reason.get("type") == "length":
            return ids, ""
        for end in range(len(ids), -1, -1):
            shown = await self._transport.decode(ids[:end], skip_special_tokens=True)
            if text.startswith(shown):
                while end and await self._transport.decode(ids[: end - 1], skip_special_tokens=True) == shown:
                    end -= 1  # a control token at the end is no part of the text
                return ids[:end], text[len(shown) :]
        raise AssertionError("no tokens are no text")

    async def score(self, before: Piece | None, choices: Sequence[str], program: Program, *, unconditional: bool) -> list[Score]:
        known = await self._prompt(before)
        prompt = known.tokens()
        if before is None or not (before.chat or text_of(before)):
            rows = [(await self._encoded(known, choice)).tokens() for choice in choices]
        else:
            rows = [(await self._extended(before, choice)).tokens() for choice in choices]
        seam = min(_common(prompt, row) for row in rows)
        seam = max(1, min(seam, *(len(row) - 1 for row in rows)))
        scored = [self._logprobs(row, seam) for row in rows]
        if unconditional:
            start = await self._transport.start_token()
            scored += [self._logprobs([start, *row[seam:]], 1) for row in rows]
        logprobs = await asyncio.gather(*scored)
        alone = logprobs[len(rows) :] or [()] * len(rows)
        return [
            Score(choice, tuple(row[seam:]), tuple(given), tuple(free))
            for choice, row, given, free in zip(choices, rows, logprobs, alone, strict=False)
        ]

    async def _logprobs(self, tokens: list[int], start: int) -> Sequence[float]:
        async with self._slots:
            (native,) = await self._transport.generate(tokens, {"max_new_tokens": 0}, return_logprob=True, logprob_start_len=start)
        return [logprob for logprob, *_ in native["meta_info"]["input_token_logprobs"]]

    async def pin(self, before: Piece | None, others: Sequence[Piece | None]) -> Any:
        rows = [(await self._prompt(piece)).tokens() for piece in (before, *others)]
        length = min(_common(rows[0], row) for row in rows)
        if length < MIN_PINNED_TOKENS:
            return None
        try:
            return await self._transport.pin(rows[0][:length], PIN_SECONDS)
        except RequestError as error:
            logger.info("the constant prefix is not pinned: %s", error)
            return None

    async def unpin(self, pin: Any) -> None:
        await self._transport.unpin(pin)

    async def end(self, program: Program) -> None:
        if program.state is not None and (session := await program.state) is not None:
            await self._transport.close_session(session.id)

    async def prompt_tokens(self, before: Piece | None) -> list[tuple[int, str]]:
        """Return the tokens behind which a piece was written, with the text of each."""
        return await self.spelled((await self._prompt(before)).tokens())

    async def spelled(self, tokens: Sequence[int]) -> list[tuple[int, str]]:
        """Return tokens with the text of each."""
        texts = await asyncio.gather(*(self._transport.decode([token], skip_special_tokens=False) for token in tokens))
        return list(zip(tokens, texts, strict=True))

    # From pieces to tokens

    async def _prompt(self, last: Piece | None) -> Known:
        """The tokens of the settled text up to ``last``; where there is none, one that texts begin with."""
        known = await self._extended(last, "")
        return known if known.length else Known(None, [await self._transport.start_token()], 1)

    async def _extended(self, last: Piece | None, more: str) -> Known:
        """The tokens of the settled text up to ``last`` and of ``more``; nothing is left as rest."""
        if last is not None and last.chat:
            return await self._chat(last, more)
        base, text = await self._base(last)
        if not text + more:
            return base
        return await self._encoded(base, text + more)

    async def _base(self, last: Piece | None) -> tuple[Known, str]:
        """The nearest tokens known, and the text behind them.  Where states part, what they share is tokenized once."""
        unknown: list[Piece] = []
        at = last
        while at is not None and at.state is None:
            unknown.append(at)
            at = at.before
        base = _NOTHING if at is None else at.state
        text: str = base.rest
        for piece in reversed(unknown):
            text += piece.text
            if piece.shared and (end := _stable(text)):
                base = await self._encoded(base, text[:end])
                text = text[end:]
                piece.state = Known(base.before, base.ids, base.length, text, base.turn)
        return base, text

    async def _encoded(self, base: Known, text: str) -> Known:
        ids = await self._transport.encode(text, add_special_tokens=base.length == 0)
        return Known(base, ids, base.length + len(ids), turn=base.turn)

    async def _chat(self, last: Piece, more: str) -> Known:
        messages = messages_of(last)
        unfinished = last.role is not None and bool(messages[-1]["content"] + more)
        if unfinished:
            messages[-1]["content"] += more
        elif last.role is not None:
            messages.pop()  # the template writes the start of an answer itself
        ids = await self._transport.encode_chat(messages, unfinished=unfinished)
        at: Piece | None = last
        while at is not None and at.state is None:
            at = at.before
        if at is None:
            return Known(None, ids, len(ids))
        written = at.state.tokens()
        seam = await self._seam(written, ids)
        if seam is None:
            return Known(None, ids, len(ids))
        return Known(at.state, ids[seam:], at.state.length + len(ids) - seam, turn=at.state.turn)

    async def _seam(self, written: list[int], ids: list[int]) -> int | None:
        """Where in ``ids`` the text of ``written`` ends; None where that is inside a token or the texts differ."""
        same = _common(written, ids)
        if same == len(written):
            return same
        text = await self._transport.decode(written[same:], skip_special_tokens=False)
        for end in range(same, min(len(ids), same + 2 * (len(written) - same) + 8) + 1):
            if await self._transport.decode(ids[same:end], skip_special_tokens=False) == text:
                return end
        return None


class _Listener:
    """Passes on the text of the first answer as it grows, and ends answers at a pattern."""

    def __init__(self, stop: re.Pattern[str] | None, on_text: Callable[[str], None] | None) -> None:
        self._stop = stop
        self._on_text = on_text
        self._shown = 0

    def hear(self, native: Native) -> bool:
        text = native["text"]
        found = self._stop.search(text) if self._stop is not None else None
        if found is not None:
            text = text[: found.start()]
        if self._on_text is not None and native.get("index", 0) == 0 and len(text) > self._shown:
            self._on_text(text[self._shown :])
            self._shown = len(text)
        return found is not None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


_WORD = re.compile(r"(?<=\S) (?=\S)")


def _stable(text: str) -> int:
    """A place near the end where every tokenizer parts texts whatever follows: before the last word that a single space begins."""
    return max((match.start() for match in _WORD.finditer(text)), default=0)

