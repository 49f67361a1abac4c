"""The text side of an answer: tokens from the engine core become text, stop strings end it, usage is counted.

Owns the text state of each open request and nothing else: no I/O, no clock, no knowledge of who is listening.
"""

from __future__ import annotations

from radixrt.text.detokenizer import Detokenizer
from radixrt.text.stop import StopMatcher
from radixrt.text.tokenizer import Tokenizer
from radixrt.types import Finish, FinishReason, RequestOutput, SamplingParams, TokenLogprob, TokenOutput, Usage


class OutputProcessor:
    """Folds the TokenOutputs of each request into the events its client sees; exactly one of them has a ``finish``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._answers: dict[int, _Answer] = {}

    def add(self, uid: int, *, rid: str, index: int, num_prompt: int, sampling: SamplingParams, want_logprobs: bool) -> None:
        """Open an answer; ``rid`` and ``index`` are echoed in its events."""
        assert uid not in self._answers, f"uid {uid} is already open"
        self._answers[uid] = _Answer(self._tokenizer, rid, index, num_prompt, sampling, want_logprobs=want_logprobs)

    def push(self, output: TokenOutput) -> tuple[RequestOutput | None, bool]:
        """Return the event to send, if there is one, and whether the core must abort the request.

        There is no event while all new text is held back: its tokens come with the text.  The core must abort when a
        stop string ended the answer, which the core does not see.  An unknown uid is a late output of an answer that
        is over, and is ignored.
        """
        answer = self._answers.get(output.uid)
        if answer is None:
            return None, False
        event = answer.push(output)
        if event is not None and event.finish is not None:
            del self._answers[output.uid]
            return event, output.finish is None
        return event, False

    def drop(self, uid: int) -> None:
        """Forget an answer nobody waits for any more."""
        self._answers.pop(uid, None)

    def __len__(self) -> int:
        return len(self._answers)


class _Answer:
    """The state of one answer: what was shown, what is held back, what has been counted."""

    __slots__ = (
        "_cached_tokens",
        "_detokenizer",
        "_index",
        "_logprobs",
        "_no_stop_trim",
        "_num_prompt",
        "_num_tokens",
        "_prompt_logprobs",
        "_rid",
        "_stop",
        "_tokens",
    )

    def __init__(
        self, tokenizer: Tokenizer, rid: str, index: int, num_prompt: int, sampling: SamplingParams, *, want_logprobs: bool
    ) -> None:
        self._rid = rid
        self._index = index
        self._num_prompt = num_prompt
        self._no_stop_trim = sampling.no_stop_trim
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )
        self._stop = StopMatcher(sampling.stop, no_stop_trim=sampling.no_stop_trim)
        self._tokens: list[int] = []  # not yet in an event
        self._logprobs: list[TokenLogprob] | None = [] if want_logprobs else None
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._num_tokens = 0
        self._cached_tokens = 0

    def push(self, output: TokenOutput) -> RequestOutput | None:
        self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or []) + output.prompt_logprobs
        text, num_used, finish = self._read(output)
        self._num_tokens += num_used
        self._tokens += output.tokens[:num_used]
        if self._logprobs is not None and num_used:
            logprobs = output.logprobs or []
            assert len(logprobs) == len(output.tokens), "one logprob entry a token"
            self._logprobs += logprobs[:num_used]
        if not text and finish is None:
            return None
        event = RequestOutput(
            rid=self._rid,
            index=self._index,
            text_delta=text,
            token_ids_delta=self._tokens,
            usage=Usage(prompt_tokens=self._num_prompt, completion_tokens=self._num_tokens, cached_tokens=self._cached_tokens),
            finish=finish,
            logprobs_delta=self._logprobs,
            prompt_logprobs=None if finish is None else self._prompt_logprobs,
            num_retractions=output.num_retractions,
            embedding=output.embedding,
        )
        self._tokens = []
        self._logprobs = None if self._logprobs is None else []
        return event

    def _read(self, output: TokenOutput) -> tuple[str, int, Finish | None]:
        """Return the text to show, how many of the tokens belong to the answer, and its end if this is it.

        A stop string wins over whatever else ends the answer at the same token, and cuts off the tokens after it.
        """
        finish = output.finish
        if finish is None and len(output.tokens) == 1:
            text, matched = self._stop.push(self._detokenizer.push(output.tokens[0]))
            return text, 1, None if matched is None else Finish(FinishReason.STOP, matched=matched)
        hidden = len(output.tokens) - 1 if self._ends_in_stop_token(output) else -1
        shown: list[str] = []
        for i, token in enumerate(output.tokens):
            text, matched = self._read_hidden(token) if i == hidden else self._stop.push(self._detokenizer.push(token))
            shown.append(text)
            if matched is not None:
                return "".join(shown), i + 1, Finish(FinishReason.STOP, matched=matched)
        if finish is not None:
            text, matched = self._stop.push(self._detokenizer.flush())
            shown.append(text)
            if matched is not None:
                finish = Finish(FinishReason.STOP, matched=matched)
            else:
                shown.append(self._stop.flush())
        return "".join(shown), len(output.tokens), finish

    def _ends_in_stop_token(self, output: TokenOutput) -> bool:
        """Tell whether the last token is the stop token that ended the answer, whose text is not to be shown."""
        finish = output.finish
        if finish is None or finish.reason is not FinishReason.STOP or self._no_stop_trim:
            return False
        return bool(output.tokens) and finish.matched == output.tokens[-1]

    def _read_hidden(self, token: int) -> tuple[str, str | None]:
        """Read a token that can complete a stop string but is not shown otherwise; it completes no character."""
        before, matched = self._stop.push(self._detokenizer.flush())
        if matched is not None:
            return before, matched
        held = self._stop.held
        text, matched = self._stop.push(self._detokenizer.push(token))
        if matched is not None:
            return before + text, matched
        self._detokenizer.flush()
        self._stop.flush()
        return before + held, None
