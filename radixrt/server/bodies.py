"""Reading request bodies: counted bytes, one strict JSON parser, typed structs.

Every limit on the shape of a request is one of ``radixrt.limits``.  What gets past this module has the right types; the
ranges of sampling parameters are checked by ``SamplingParams`` itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import orjson
from starlette.requests import ClientDisconnect, Request

from radixrt.errors import InvalidSampling, RequestError
from radixrt.limits import DEFAULTS, Limits
from radixrt.server.auth import REQUEST_ID
from radixrt.server.problems import Refusal, excerpt
from radixrt.types import Namespace

MAX_NAMESPACE_CHARS = 128
OWN_FIELDS = ("rid", "priority", "cache_salt", "extra_key", "session_params", "routing_key", "return_cache_report")

Body = TypeVar("Body")

_VALIDATION = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<where>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


async def read_json(request: Request, limits: Limits = DEFAULTS) -> dict[str, Any]:
    """Read and parse a JSON object.

    Raises Refusal 413 as soon as more than the limit is announced or has come, 408 when the client stalls, and
    RequestError for what is not a JSON object: NaN, lone surrogates and nesting beyond 1,024 levels included.
    """
    max_bytes = limits.max_body_bytes
    too_large = Refusal(413, f"The body is larger than {max_bytes} bytes.", code="body_too_large")
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    parts = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for part in request.stream():
                parts += part
                if len(parts) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, "The body did not arrive in time.", code="body_timeout") from None
    except ClientDisconnect:
        raise Refusal(400, "The client closed the connection before the body was complete.", code="disconnected") from None
    try:
        value = orjson.loads(parts)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not valid JSON: {excerpt(error)}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    return value


def typed(value: dict[str, Any], kind: type[Body]) -> Body:
    """Convert a parsed object to its struct; nothing is coerced but ints to floats.

    Raises RequestError that names the field.
    """
    try:
        return msgspec.convert(value, kind, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        missing = _MISSING.match(str(error))
        if missing:
            raise RequestError(f"{missing[1]} is required.", param=missing[1], code="missing_parameter") from None
        found = _VALIDATION.fullmatch(str(error))
        where = (found["where"] or None) if found else None
        what = found["what"] if found else "Invalid value"
        what = what.replace(" | null", "")
        raise RequestError(f"{where}: {what}." if where else f"{what}.", param=where, code="invalid_type") from None


def refuse(body: Mapping[str, Any], unsupported: Mapping[str, str], *, prefix: str = "") -> None:
    """Raise RequestError when a field that would change the answer, and that this server does not honour, is set.

    ``unsupported`` maps field names to what they ask for.  Empty values (null, false, 0, "", [], {}) ask for nothing.
    """
    for name, what in unsupported.items():
        if body.get(name):
            raise RequestError(f"{prefix}{name} ({what}) is not supported yet.", param=prefix + name, code="unsupported_parameter")


def check_rid(rid: str | None) -> str | None:
    """Return a well-formed request id; '' counts as none."""
    if not rid:
        return None
    if not REQUEST_ID.fullmatch(rid):
        raise RequestError("rid must be 1 to 128 characters of [A-Za-z0-9._:-].", param="rid", code="invalid_value")
    return rid


def check_choices(n: int | None, limits: Limits = DEFAULTS) -> int:
    """Return the number of choices, in [1, max_choices]."""
    if n is None:
        return 1
    if not 1 <= n <= limits.max_choices:
        raise InvalidSampling(f"n must be in [1, {limits.max_choices}], got {n}.", param="n")
    return n


def check_stops(stop: str | Sequence[str] | None, name: str = "stop", limits: Limits = DEFAULTS) -> tuple[str, ...]:
    """Return the stop strings; empty ones are dropped, since every text contains them."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > limits.max_stops:
        raise InvalidSampling(f"{name} takes at most {limits.max_stops} strings, got {len(stops)}.", param=name)
    if any(len(item) > limits.max_stop_chars for item in stops):
        raise InvalidSampling(f"{name} strings may have at most {limits.max_stop_chars} characters.", param=name)
    return tuple(item for item in stops if item)


def check_stop_tokens(tokens: Sequence[int] | None, limits: Limits = DEFAULTS) -> tuple[int, ...]:
    if tokens is not None and len(tokens) > limits.max_stop_tokens:
        raise InvalidSampling(f"stop_token_ids takes at most {limits.max_stop_tokens} ids, got {len(tokens)}.", param="stop_token_ids")
    return tuple(tokens or ())


def check_logit_bias(bias: dict[int, float] | None, limits: Limits = DEFAULTS) -> dict[int, float]:
    if bias is not None and len(bias) > limits.max_logit_bias:
        raise InvalidSampling(f"logit_bias takes at most {limits.max_logit_bias} entries, got {len(bias)}.", param="logit_bias")
    return bias or {}


def check_top_logprobs(count: int | None, name: str, limits: Limits = DEFAULTS) -> int:
    """Return how many alternatives of a position are reported, in [0, max_top_logprobs]."""
    if count is not None and not 0 <= count <= limits.max_top_logprobs:
        raise InvalidSampling(f"{name} must be in [0, {limits.max_top_logprobs}], got {count}.", param=name)
    return count or 0


def own_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body that ask for what no dialect has a name for; every generation route takes them."""
    return {name: raw[name] for name in OWN_FIELDS if raw.get(name) is not None}


def namespace(cache_salt: str | None, extra_key: str | None) -> Namespace:
    """Return the cache namespace of a request."""
    for name, value in (("cache_salt", cache_salt), ("extra_key", extra_key)):
        if value is not None and len(value) > MAX_NAMESPACE_CHARS:
            raise RequestError(f"{name} may have at most {MAX_NAMESPACE_CHARS} characters.", param=name, code="invalid_value")
    return Namespace(cache_salt=cache_salt or "", extra_key=extra_key or "")


def check_routing_key(key: str | None) -> str:
    """Return the key, '' for none."""
    if key is not None and len(key) > MAX_NAMESPACE_CHARS:
        raise RequestError(f"routing_key may have at most {MAX_NAMESPACE_CHARS} characters.", param="routing_key", code="invalid_value")
    return key or ""


def check_messages(messages: Sequence[Mapping[str, Any]], limits: Limits = DEFAULTS) -> None:
    """Raise RequestError for more messages, or more parts of messages in all, than are taken."""
    contents = (message.get("content") for message in messages)
    parts = sum(len(content) for content in contents if isinstance(content, list))
    for count, most, what in ((len(messages), limits.max_messages, "entries"), (parts, limits.max_messages, "parts of contents")):
        if count > most:
            raise RequestError(f"messages takes at most {most} {what}, got {count}.", param="messages", code="invalid_value")


def prompts(value: object, param: str, check_fits: Callable[[int, str], None], limits: Limits = DEFAULTS) -> list[str | list[int]]:
    """Return the prompts of a field that takes a string, token ids, or a list of either.

    ``check_fits`` is told the length of each prompt of ids before any of its ids is looked at.
    Raises RequestError for anything else and for more than max_prompts.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise RequestError(f"{param} must be a string, token ids, or a list of either.", param=param, code="invalid_type")
    if not value:
        raise RequestError(f"{param} must not be empty.", param=param, code="invalid_value")
    items = [value] if type(value[0]) is int else value
    if len(items) > limits.max_prompts:
        raise RequestError(f"{param} takes at most {limits.max_prompts} prompts, got {len(items)}.", param=param, code="invalid_value")
    if all(isinstance(item, str) for item in items):
        return items
    for item in items:
        if isinstance(item, list):
            check_fits(len(item), param)
    if not all(isinstance(item, list) and all(type(token) is int for token in item) for item in items):
        raise RequestError(f"{param} must hold only strings or only lists of token ids.", param=param, code="invalid_type")
    return items
