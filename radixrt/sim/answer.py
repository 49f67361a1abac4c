"""A request as whoever sent it sees it: what it asked for, what it was given, and what it must still be given."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.sim.grammar import Choices
from radixrt.sim.model import Text, stored_value
from radixrt.types import Finish, FinishReason, LogprobOptions, TokenLogprob, TokenOutput


@dataclass(slots=True)
class Answer:
    """``text`` grows by what was given; ``end`` is why it must end, as soon as it is complete.

    Its grammar, if it has one, takes ``compile_seconds`` to compile, and may be ``refused`` then.
    """

    uid: int
    text: Text
    num_prompt: int
    max_length: int
    stop_ids: frozenset[int]
    choices: Choices | None
    logprobs: LogprobOptions | None
    arrived: float
    faults_before: int
    compile_seconds: float = 0.0
    refused: bool = False
    end: Finish | None = None
    finish: Finish | None = None
    is_cancelled: bool = False
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.max_length == self.num_prompt:
            self.end = Finish(FinishReason.LENGTH)

    def take(self, output: TokenOutput) -> None:
        """Take in an output; raises AssertionError unless it goes on with the one right text."""
        assert self.finish is None, "nothing comes after the end"
        logprobs = iter(output.logprobs or ())
        for token in output.tokens:
            assert self.end is None, "no token comes after the last"
            at = len(self.text.tokens) - self.num_prompt
            right = self.text.next_token(None if self.choices is None else self.choices.allowed.get(at))
            assert token == right, f"request {self.uid} was given {token} as output {at}, not {right}"
            if self.logprobs is not None:
                assert next(logprobs) == TokenLogprob(self.text.model.score(self.text.context, token), token), "a token has its logprob"
            self.text.push(token)
            self.end = self._end(token)
        assert next(logprobs, None) is None, "logprobs are of tokens"
        self.prompt_logprobs += output.prompt_logprobs or ()
        assert output.cached_tokens < self.num_prompt, "the last token of a prompt is computed"
        self.finish = output.finish
        assert self.finish is not None or self.end is None or not output.tokens, "a complete text ends at once"

    def check_complete(self) -> None:
        """Raise AssertionError unless it ended for the right reason, with every prompt position asked for scored."""
        assert self.finish == self.end, f"request {self.uid} ended with {self.finish}, not {self.end}"
        if self.logprobs is None or self.logprobs.start_len < 0:
            assert not self.prompt_logprobs
            return
        model, context = self.text.model, 0
        right = []
        for position, token in enumerate(self.text.tokens[: self.num_prompt]):
            if position >= self.logprobs.start_len:
                right.append(TokenLogprob(model.score(context, token) if position else None, token))
            context = model.extend(context, position, stored_value(token, self.text.namespace))
        assert self.prompt_logprobs == right, "prompt positions are scored in order"

    def _end(self, token: int) -> Finish | None:
        if token in self.stop_ids:
            return Finish(FinishReason.STOP, matched=token)
        if self.choices is not None and len(self.text.tokens) - self.num_prompt >= self.choices.length:
            return Finish(FinishReason.STOP)
        return Finish(FinishReason.LENGTH) if len(self.text.tokens) >= self.max_length else None
