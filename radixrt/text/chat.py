"""Chat messages to tokens through the model's own template, with the users' text kept apart from the control tokens.

The template is part of the model and writes control tokens; what a client supplies never becomes one, whatever it
spells.  Rendering is sandboxed and bounded in loops and size.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2

from radixrt.errors import ConfigError, RequestError
from radixrt.text.template import MARKERS, compile_template, generate
from radixrt.text.tokenizer import Tokenizer
from radixrt.text.tools.render import as_plain_messages, with_argument_texts, with_ids, with_introduction

logger = logging.getLogger(__name__)

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEMPLATE_KWARGS = frozenset(("enable_thinking", "thinking", "thinking_budget", "preserve_thinking", "reasoning_effort"))
MAX_OUTPUT_LENGTH = 32 << 20
MAX_DEPTH = 64


class ChatTemplate:
    """A compiled chat template and the tokenizer it writes for; safe to use from several threads.

    Args:
        tokenizer: encodes what was rendered, and names the control tokens.
        template: Jinja source; None takes ChatML.
        max_output_length: the most characters a conversation may render to.

    Raises ConfigError when the template does not compile.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None, *, max_output_length: int = MAX_OUTPUT_LENGTH) -> None:
        if template is None:
            logger.warning("the model brings no chat template: using ChatML")
            template = CHATML_TEMPLATE
        self._tokenizer = tokenizer
        self._max_output_length = max_output_length
        self._source = template
        self._has_developer = "developer" in template
        spellings = sorted(tokenizer.special_tokens, key=len, reverse=True)
        # A spelling of one character cannot be broken in two.
        self._spellings = re.compile("|".join(re.escape(spelling) for spelling in spellings if len(spelling) > 1) or r"(?!)")
        try:
            self._template, names = compile_template(template)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template does not compile: {error}") from error
        self.knows_tools = "tools" in names  # else tools are shown as text of ours

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of a conversation.

        ``continue_final_message`` ends the prompt inside the last message, which must be the assistant's, and overrides
        ``add_generation_prompt``.  Raises RequestError for messages the template or radixrt cannot take.
        """
        conversation = self._conversation(messages, continue_final_message=continue_final_message)
        options = dict(template_kwargs or {})
        for name in options:
            if name not in TEMPLATE_KWARGS:
                raise _invalid(f"takes {', '.join(sorted(TEMPLATE_KWARGS))}; {str(name)[:40]!r} is unknown", "chat_template_kwargs")
        if "tool_calls" in self._source:
            conversation = with_ids(self._source, conversation)
        else:
            conversation = as_plain_messages(conversation)
        if tools and not self.knows_tools:
            conversation, tools = with_introduction(conversation, tools), None
        supplied = [conversation, list(tools) if tools else None, options]
        sentinel, end = _unused_markers(supplied, 2)
        if continue_final_message:
            conversation[-1]["content"] += end
        conversation, offered, options = (self._break_spellings(value, sentinel) for value in supplied)
        variables = {
            **options,
            "messages": conversation,
            "tools": offered,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "bos_token": self._tokenizer.bos_token or "",
            "eos_token": self._tokenizer.eos_token or "",
        }
        try:
            rendered = self._render(variables)
        except RequestError:
            if not any(message.get("tool_calls") for message in conversation):
                raise
            # Some templates join the arguments of calls to other text.
            rendered = self._render({**variables, "messages": with_argument_texts(conversation)})
        if continue_final_message:
            rendered, found, _ = rendered.rpartition(end)
            if not found:
                raise RequestError("the chat template does not show the final message, so it cannot be continued.", param="messages")
            rendered = rendered.replace(end, "")
        return self._encode_rendered(rendered, sentinel)

    def _encode_rendered(self, rendered: str, sentinel: str) -> list[int]:
        """Encode the text between two control tokens of the template as plain text wherever it holds a broken spelling."""
        if sentinel not in rendered:
            return self._tokenizer.encode(rendered, add_special_tokens=False)
        tokens: list[int] = []
        done = 0
        for start, stop in self._stretches(rendered):
            if sentinel not in rendered[start:stop]:
                continue
            tokens += self._tokenizer.encode(rendered[done:start], add_special_tokens=False)
            plain = rendered[start:stop].replace(sentinel, "")
            tokens += self._tokenizer.encode(plain, add_special_tokens=False, allow_special=False)
            done = stop
        return tokens + self._tokenizer.encode(rendered[done:], add_special_tokens=False)

    def _stretches(self, rendered: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each run of text that the template's own control tokens delimit."""
        start = 0
        for match in self._spellings.finditer(rendered):
            yield start, match.start()
            start = match.end()
        yield start, len(rendered)

    def _break_spellings(self, value: Any, sentinel: str, depth: int = 0) -> Any:
        """Return a copy of a JSON value with a sentinel inside each spelling of a control token."""
        if isinstance(value, str):
            # Breaking one spelling can leave another that overlapped it.
            while self._spellings.search(value):
                value = self._spellings.sub(lambda match: match[0][0] + sentinel + match[0][1:], value)
            return value
        if depth > MAX_DEPTH:
            raise RequestError("messages and tools are nested too deeply.", param="messages", code="invalid_value")
        if isinstance(value, Mapping):
            return {
                self._break_spellings(key, sentinel, depth + 1): self._break_spellings(item, sentinel, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._break_spellings(item, sentinel, depth + 1) for item in value]
        return value

    def _conversation(self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool) -> list[dict[str, Any]]:
        """Return copies of the messages as templates expect them: contents are strings, call arguments objects."""
        if not messages:
            raise RequestError("messages must not be empty.", param="messages", code="invalid_value")
        conversation = [self._message(message, f"messages[{i}]") for i, message in enumerate(messages)]
        if continue_final_message and conversation[-1]["role"] != "assistant":
            raise RequestError("continue_final_message needs a last message of the assistant.", param="continue_final_message")
        return conversation

    def _message(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise _invalid("must be an object", where)
        role = message.get("role")
        if role not in ROLES:
            raise _invalid(f"must be one of {', '.join(ROLES)}", f"{where}.role")
        calls = message.get("tool_calls")
        result = {**message, "content": _text(message.get("content"), f"{where}.content", optional=role == "assistant" and bool(calls))}
        if role == "developer" and not self._has_developer:
            result["role"] = "system"
        if calls:
            result["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
        return result

    def _render(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        try:
            for piece in generate(self._template, variables):
                size += len(piece)
                if size > self._max_output_length:
                    raise RequestError("the messages are too long.", param="messages", code="context_length_exceeded")
                pieces.append(piece)
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {str(error)[:100]}", param="messages", code="invalid_value"
            ) from error
        return "".join(pieces)


def _text(content: Any, where: str, *, optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if optional:
            return ""
        raise _invalid("is required", where)
    if not isinstance(content, list | tuple):
        raise _invalid("must be a string or a list of text parts", where)
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise _invalid("must be of type 'text': this model takes only text", f"{where}[{i}]")
        if not isinstance(part.get("text"), str):
            raise _invalid("must be a string", f"{where}[{i}].text")
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """Return a call with its arguments parsed: clients send JSON text, templates print JSON values."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _invalid("must name a function", where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise _invalid("must be JSON", f"{where}.function.arguments") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _unused_markers(value: Any, count: int) -> list[str]:
    """Return markers that occur nowhere in a JSON value."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError("messages and tools must be JSON values.", param="messages", code="invalid_value") from error
    unused = [char for char in MARKERS if char not in text]
    if len(unused) < count:
        raise RequestError("the messages use up all Unicode noncharacters.", param="messages", code="invalid_value")
    return unused[:count]


def _invalid(what: str, where: str) -> RequestError:
    return RequestError(f"{where} {what}.", param=where, code="invalid_value")
