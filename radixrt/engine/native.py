"""SGLang's native form of requests and answers: sampling parameters as a dict in, ``{"text", "output_ids", "meta_info"}`` out.

Shared by the embedded engine and the server's ``/generate``.  Pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from radixrt import samplers
from radixrt.config import nearest
from radixrt.engine.stream import Answer
from radixrt.errors import GrammarError, InvalidSampling
from radixrt.grammar import spellings
from radixrt.types import Finish, FinishReason, GrammarSpec, LogprobOptions, RequestOutput, SamplingParams, TokenLogprob, Usage

# Names of SGLang for what radixrt names otherwise.
_ALIASES = {"sampling_seed": "seed"}
# Parameters that would change the answer if they were honoured; refused until they are.
_UNSUPPORTED = ("stop_regex", "custom_params")
_CONSTRAINTS = frozenset({*spellings.FIELDS, spellings.OPTIONS})

Entry = list[Any]
TokenText = Callable[[int], str]


def parse_sampling(params: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
    """Return sampling parameters given as a dict of SGLang's names, where None stands for the default.

    Raises InvalidSampling for unknown names, with the nearest known one, and for wrong types; ranges are checked later.
    """
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return params
    if not isinstance(params, Mapping):
        raise InvalidSampling("sampling_params must be a dict or SamplingParams.", param="sampling_params")
    known = [name for name in SamplingParams.__struct_fields__ if name != "chain"]
    values: dict[str, Any] = {}
    if (chain := samplers.chain(params)) is not None:
        values["chain"] = chain
    if (spec := _grammar(params)) is not None:
        values["grammar"] = spec
    for given, value in params.items():
        name = _ALIASES.get(given, given)
        if given in _CONSTRAINTS or given in samplers.NAMES:
            continue
        if given in _UNSUPPORTED:
            if value is not None:
                raise InvalidSampling(f"{given} is not supported yet.", param=given)
        elif name not in known:
            hint = nearest(str(given), [*known, *_ALIASES, *_CONSTRAINTS, *samplers.NAMES])
            raise InvalidSampling(f"unknown sampling parameter {str(given)[:100]!r}{hint}.", param="sampling_params")
        elif value is not None or name == "max_new_tokens":
            values[name] = value
    for name in ("stop", "stop_token_ids"):
        if isinstance(values.get(name), str | int):
            values[name] = [values[name]]
    try:
        return msgspec.convert(values, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.partition("[")[0].rstrip("`") or "sampling_params"
        raise InvalidSampling(f"{name}: {reason}.", param=name) from None


def _grammar(params: Mapping[str, Any]) -> GrammarSpec | None:
    """The constraint among sampling parameters; ``grammar`` may also be one that is read already."""
    given = params.get("grammar")
    if isinstance(given, GrammarSpec):
        params = {name: value for name, value in params.items() if name != "grammar"}
        if spellings.constraint(params) is not None:
            raise GrammarError("A request has at most one constraint.", param="grammar")
        return given
    return spellings.constraint(params)


class Collected:
    """One answer so far."""

    __slots__ = (
        "finish",
        "index",
        "logprobs",
        "num_retractions",
        "prompt_logprobs",
        "report",
        "rid",
        "started",
        "text",
        "token_ids",
        "usage",
    )

    def __init__(self, rid: str, index: int = 0, *, started: float | None = None) -> None:
        self.rid = rid
        self.index = index
        self.started = time.monotonic() if started is None else started
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.usage = Usage()
        self.finish: Finish | None = None
        self.num_retractions = 0
        self.report: dict[str, Any] | None = None

    def push(self, event: RequestOutput) -> None:
        """Take in the next event of the answer."""
        self.text += event.text_delta
        self.token_ids += event.token_ids_delta
        self.logprobs += event.logprobs_delta or ()
        self.prompt_logprobs += event.prompt_logprobs or ()
        self.usage = event.usage
        self.finish = event.finish
        self.num_retractions = event.num_retractions
        self.report = event.report

    @classmethod
    def of(cls, answer: Answer, rid: str, *, started: float) -> Collected:
        """Take a whole answer."""
        collected = cls(rid, answer.index, started=started)
        collected.text = answer.text
        collected.token_ids = answer.token_ids
        collected.logprobs = answer.logprobs or []
        collected.prompt_logprobs = answer.prompt_logprobs or []
        collected.usage = answer.usage
        collected.finish = answer.finish
        collected.num_retractions = answer.num_retractions
        collected.report = answer.report
        return collected


def native_answer(collected: Collected, *, logprobs: LogprobOptions | None = None, token_text: TokenText | None = None) -> dict[str, Any]:
    """Return an answer, or what there is of it, in SGLang's shape; the dict shares nothing with ``collected``.

    logprobs: what was asked for.  token_text: fills the text of logprob entries, None leaves it null.
    """
    return {
        "text": collected.text,
        "output_ids": list(collected.token_ids),
        "meta_info": meta_info(collected, logprobs=logprobs, token_text=token_text),
    }


def meta_info(collected: Collected, *, logprobs: LogprobOptions | None = None, token_text: TokenText | None = None) -> dict[str, Any]:
    """Return SGLang's ``meta_info`` of an answer."""
    usage, finish = collected.usage, collected.finish
    meta: dict[str, Any] = {
        "id": collected.rid,
        "finish_reason": None if finish is None else finish_reason(finish, usage.completion_tokens),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "num_retractions": collected.num_retractions,
        "weight_version": "default",
    }
    if collected.report is not None:
        meta["cache_report"] = collected.report
    if finish is not None:
        meta["e2e_latency"] = time.monotonic() - collected.started
    if logprobs is None:
        return meta
    for side, entries in (("input", collected.prompt_logprobs), ("output", collected.logprobs)):
        meta[f"{side}_token_logprobs"] = [_entry(entry.logprob, entry.token, token_text) for entry in entries]
        meta[f"{side}_token_logprobs_length"] = len(entries)
        if logprobs.top:
            meta[f"{side}_top_logprobs"] = [_entries(entry, entry.top, token_text) for entry in entries]
        if logprobs.token_ids:
            meta[f"{side}_token_ids_logprobs"] = [_entries(entry, entry.given, token_text) for entry in entries]
    return meta


def finish_reason(finish: Finish, completion_tokens: int) -> dict[str, Any]:
    """Return SGLang's dict of why an answer ended."""
    if finish.reason is FinishReason.STOP:
        return {"type": "stop", "matched": finish.matched}
    if finish.reason is FinishReason.LENGTH:
        return {"type": "length", "length": completion_tokens, **({"closed": True} if finish.closed else {})}
    return {"type": "abort", "message": finish.message or "aborted", "status_code": finish.status, "err_type": None}


def _entry(logprob: float | None, token: int, token_text: TokenText | None) -> Entry:
    return [logprob, token, None if token_text is None else token_text(token)]


def _entries(position: TokenLogprob, values: Sequence[tuple[float, int]], token_text: TokenText | None) -> list[Entry] | None:
    """The alternatives of one position; null where nothing predicts it."""
    if position.logprob is None:
        return None
    return [_entry(logprob, token, token_text) for logprob, token in values]
