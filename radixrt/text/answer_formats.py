"""How the loaded model writes its answers, and with that the parser of one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixrt.text.answer_parser import AnswerParser, Reader
from radixrt.text.reasoning import ReasoningFormat
from radixrt.text.source import Source, Tools, new_call_id
from radixrt.text.tokenizer import Tokenizer
from radixrt.text.tools.formats import CALL_FORMATS, JSON_LIST, CallFormat, Frame, are_special, select_calls, select_reasoning
from radixrt.types import Dormancy

# How much of a prompt's end can say whether the answer begins inside reasoning, in tokens.
PROMPT_TAIL = 32


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """calls: the family whose calls are read, None for none.  harmony: reasoning and content come on channels."""

    tokenizer: Tokenizer
    calls: CallFormat | None
    reasoning: ReasoningFormat | None
    harmony: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, tool_call_parser: str, reasoning_parser: str, *, knows_tools: bool) -> AnswerFormats:
        """Select by name, or by the chat template for ``auto``.  Raises ConfigError for an unknown name."""
        template = tokenizer.chat_template
        calls = select_calls(tool_call_parser, template, knows_tools=knows_tools)
        reasoning = select_reasoning(reasoning_parser, template)
        harmony = calls is CALL_FORMATS["gpt-oss"] or reasoning_parser == "gpt-oss"
        return cls(tokenizer, calls, None if harmony else reasoning, harmony)

    def starts_inside(self, prompt: list[int]) -> bool:
        """Whether the answer to a prompt begins inside its reasoning."""
        if self.reasoning is None:
            return False
        return self.reasoning.starts_inside(self.tokenizer.decode(prompt[-PROMPT_TAIL:], skip_special_tokens=False))

    def dormancy(self, *, inside: bool) -> Dormancy | None:
        """When a constraint on an answer sleeps; ``inside``: the answer begins inside reasoning.  None for never."""
        special = self.tokenizer.special_tokens
        if self.harmony:
            channel = self.tokenizer.encode("final", add_special_tokens=False)
            ids = [special.get("<|channel|>"), *channel, special.get("<|message|>")]
            return Dormancy(inside=True, until_tokens=tuple(token for token in ids if token is not None))
        if self.reasoning is None:
            return None
        begin = self.tokenizer.encode(self.reasoning.begin, add_special_tokens=False)
        end = special.get(self.reasoning.end)
        return Dormancy(
            inside=inside, begin_token=begin[0] if len(begin) == 1 else -1,
            until=self.reasoning.end if end is None else "", until_tokens=() if end is None else (end,),
        )

    def frame(self) -> Frame:
        """How calls are written where they are forced."""
        frame = self.calls.frame if self.calls else None
        if frame is None or any(spelling in text for spelling in self.tokenizer.special_tokens for text in _texts(frame)):
            return JSON_LIST
        return frame

    def reads_control_tokens(self, *, tools: bool, reasoning: bool) -> bool:
        """Whether the parser must see control tokens."""
        if self.harmony:
            return True
        markers: tuple[str, ...] = self.calls.markers if self.calls and tools else ()
        if self.reasoning and reasoning:
            markers += (self.reasoning.begin, self.reasoning.end)
        return are_special(markers, self.tokenizer.special_tokens)

    def parser(
        self,
        tools: Tools,
        *,
        forced: bool = False,
        max_calls: int | None = None,
        inside: bool = False,
        separate_reasoning: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> AnswerParser | None:
        """The parser of one answer; None when all of its text is content.

        tools: what may be called.  forced: the answer is calls in the form of ``frame``.  inside: it begins inside reasoning.
        """
        stages: list[tuple[Reader, Source]] = []
        if self.harmony:
            native = {} if forced else tools
            stages.append((CALL_FORMATS["gpt-oss"].read, Source(native, max_calls=max_calls, trim=bool(native), new_id=new_id)))
        elif self.reasoning is not None and separate_reasoning:
            stages.append((self.reasoning.reader(inside=inside), Source()))
        if tools and self.calls is not None and (forced or not self.harmony):
            read = CALL_FORMATS["json"].read if forced and self.frame() is JSON_LIST else self.calls.read
            stages.append((read, Source(tools, max_calls=max_calls, trim=True, new_id=new_id)))
        return AnswerParser(stages) if stages else None


def _texts(frame: Frame) -> tuple[str, ...]:
    return (frame.prefix, frame.begin, frame.middle, frame.end, frame.separator, frame.suffix, frame.trigger)
