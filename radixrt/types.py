"""The values that travel between the layers: requests, sampling parameters and outputs.

Frozen msgspec structs, so that the same objects cross the process link as msgpack.  Knows neither torch nor HTTP.
Token ids are ints in ``[0, vocab_size)``; a position is an index into prompt + output.
"""

from __future__ import annotations

import enum
import math
import re
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from radixrt.errors import InvalidSampling, RequestError
from radixrt.samplers import Breakers, ChainParams

MAX_TOP_LOGPROBS = 20
GREEDY_TEMPERATURE = 1e-6


GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "ebnf", "gbnf", "structural_tag", "tool_calls"]


class Dormancy(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a constraint sleeps, and anything may be generated.

    ``inside``: from the beginning, until the text ``until`` or all of the ids ``until_tokens`` were generated.  ``begin_token``:
    an id that puts the answer inside when it comes first (-1: none).  ``trigger``: after that, until this text was generated;
    the constraint holds from there, and free text follows again, or with ``once`` the end.
    """

    inside: bool = False
    begin_token: int = -1
    until: str = ""
    until_tokens: tuple[int, ...] = ()
    trigger: str = ""
    once: bool = False


PauseMode = Literal["abort", "retract", "in_place"]


class GrammarOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a constraint is read, as far as its own text leaves that open.

    ``whitespace`` of JSON: ``fixed`` is one space after each comma and colon, as most JSON that models have read is written,
    ``compact`` none, ``flexible`` runs of at most ``max_whitespace`` characters wherever JSON may have it.  ``truncate``: what
    happens when the tokens run out; ``close`` ends the text in time by a shortest way, and is refused where no text fits; ``fit``
    does so where one fits, and cuts it off where none does; ``hard`` always cuts it off.  ``backend`` is the engine to compile
    with.  ``strict`` is OpenAI's: kept for the record, since every constraint is enforced.  ``dormancy``: where the constraint
    does not hold.
    """

    whitespace: Literal["flexible", "compact", "fixed"] = "fixed"
    max_whitespace: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
    truncate: Literal["close", "fit", "hard"] = "close"
    backend: Literal["auto", "fsm", "xgrammar", "llguidance"] = "auto"
    strict: bool = True
    dormancy: Dormancy | None = None


class GrammarSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint on what is generated, in one spelling for all the ways to ask for it.

    ``text`` is the schema as compact JSON, the regular expression, the choices as a JSON list of strings, or the grammar.
    ``param`` is the request field it came in, which errors name.
    """

    kind: GrammarKind
    text: str
    options: GrammarOptions = GrammarOptions()
    param: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one request are chosen; SGLang's names and defaults.

    ``max_new_tokens=None`` means up to the context, 0 computes the prompt only.  ``top_k=-1`` and ``top_p=1`` switch
    those filters off.  Penalties count generated tokens only.  Noise is a function of ``(seed, position)``; without a
    seed the engine picks one.  ``ignore_eos`` ignores the end-of-sequence tokens and ``stop_token_ids``.  ``grammar`` constrains the text.
    With a ``chain``, all of these go through it in its order; without one, temperature comes before the filters.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    n: int = 1
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    grammar: GrammarSpec | None = None
    chain: ChainParams | None = None

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidSampling, naming the parameter, unless every value is in its published range."""
        for name, low, high, low_open in _FLOAT_RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and (low < value if low_open else low <= value) and value <= high):
                bounds = "a non-negative finite number" if high == math.inf else f"in {'(' if low_open else '['}{low:g}, {high:g}]"
                raise InvalidSampling(f"{name} must be {bounds}, got {value}.", param=name)
        if self.top_k != -1 and self.top_k < 1:
            raise InvalidSampling(f"top_k must be -1 (disable) or at least 1, got {self.top_k}.", param="top_k")
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise InvalidSampling(f"max_new_tokens must be at least 0, got {self.max_new_tokens}.", param="max_new_tokens")
        longest = math.inf if self.max_new_tokens is None else self.max_new_tokens
        if not 0 <= self.min_new_tokens <= longest:
            raise InvalidSampling(
                f"min_new_tokens must be in [0, max_new_tokens({longest})], got {self.min_new_tokens}.", param="min_new_tokens"
            )
        if self.n < 1:
            raise InvalidSampling(f"n must be at least 1, got {self.n}.", param="n")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InvalidSampling("seed must be a 64-bit integer.", param="seed")
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidSampling(f"stop_token_ids must be in [0, {vocab_size - 1}], got {token}.", param="stop_token_ids")
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size:
                raise InvalidSampling(f"logit_bias keys must be in [0, {vocab_size - 1}], got {token}.", param="logit_bias")
            if not -100.0 <= bias <= 100.0:
                raise InvalidSampling(f"logit_bias values must be in [-100, 100], got {bias}.", param="logit_bias")
        if self.chain is not None:
            self.chain.validate()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether tokens of the output are made less (or more) likely."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)


_FLOAT_RANGES = (
    ("temperature", 0.0, math.inf, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 1.0, False),
    ("frequency_penalty", -2.0, 2.0, False),
    ("presence_penalty", -2.0, 2.0, False),
    # Below this float32 logits overflow, and long before it the penalty has become the only thing that counts.
    ("repetition_penalty", 1e-3, 2.0, False),
)


class LogprobOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to report about probabilities; logprobs are of the model's own distribution (temperature 1, no penalties).

    ``start_len``: first prompt position to report, -1 for outputs only.  ``top``: alternatives a position.
    ``token_ids``: ids whose logprob is reported at each position.
    """

    start_len: int = -1
    top: int = 0
    token_ids: tuple[int, ...] = ()

    def validate(self, vocab_size: int, num_prompt: int) -> None:
        if not 0 <= self.top <= MAX_TOP_LOGPROBS:
            raise InvalidSampling(f"top logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {self.top}.", param="top_logprobs")
        if not -1 <= self.start_len <= num_prompt:
            message = f"logprob_start_len must be in [-1, {num_prompt}], got {self.start_len}."
            raise RequestError(message, param="logprob_start_len", code="invalid_value")
        for token in self.token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidSampling(f"token_ids_logprob must be in [0, {vocab_size - 1}], got {token}.", param="token_ids_logprob")


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logprob of one token, with the alternatives asked for as ``(logprob, token id)``, most likely first.

    ``logprob`` is None for the first token of a prompt, which nothing predicts.
    """

    logprob: float | None
    token: int
    top: list[tuple[float, int]] = []
    given: list[tuple[float, int]] = []


class Namespace(NamedTuple):
    """What a cache entry belongs to besides its tokens: requests share entries only when all three parts agree."""

    adapter: str = ""
    cache_salt: str = ""
    extra_key: str = ""


SHARED = Namespace()  # of requests that name none


class Divergence(msgspec.Struct, frozen=True, array_like=True):
    """Where a prompt leaves what is cached: its first ``matched`` tokens are; ``cached_next`` is how the nearest cached
    sequence goes on from there, empty when none does."""

    matched: int
    cached_next: list[int] = []


class CacheReport(msgspec.Struct, frozen=True, array_like=True):
    """What the cache did for one answer.

    ``matched`` prompt tokens were found in the cache, ``computed`` tokens of it went through the model (again after a
    retraction).  ``waited``: seconds in the queue by reason.  ``divergence``: as it was when the request was admitted first.
    """

    matched: int = 0
    computed: int = 0
    waited: dict[str, float] = {}
    divergence: Divergence | None = None


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to generate, as the engine core takes it: tokens only, one answer (``sampling.n`` is 1 here).

    ``uid`` is made by the engine front, unique for ever.  ``namespace`` separates cache entries: nothing is shared
    between requests whose namespaces differ.  ``priority`` counts under priority scheduling; ``routing_key`` under the
    policy of that name.  ``breakers`` are those of ``sampling.chain``.  ``embed``: the answer is the mean of the hidden states of
    the prompt but for its last token, which is not computed; nothing may be generated then.
    """

    uid: int
    prompt: list[int]
    sampling: SamplingParams
    namespace: tuple[str, ...] = ()
    logprobs: LogprobOptions | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    routing_key: str = ""
    want_report: bool = False
    breakers: Breakers | None = None
    embed: bool = False

    def checked(self) -> GenerateRequest:
        """Return an equal request whose fields have exactly the declared types.

        Constructors check nothing, and what a caller of the embedded engine passes may be anything.  Raises RequestError.
        """
        try:
            return _decode_request(_encode_request(self))
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at ")
            found = re.search(r"\$\.(?:sampling\.(?:chain\.)?|logprobs\.)?(\w+)", path)
            param = found[1] if found else "request"
            raise RequestError(f"{param}: {reason}.", param=param, code="invalid_type") from None
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise RequestError(f"A value of the request cannot be represented: {error}.", code="invalid_value") from None


_encode_request = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(GenerateRequest).decode


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended.  ``matched`` is the stop token id or stop string; ``status`` an HTTP status for aborts.

    ``closed``: the tokens ran out, and the text is complete under its grammar all the same; ``whole``: nothing was put in
    for that.  ``code`` and ``param``: of an error, as in ``radixrt.errors``.
    """

    reason: FinishReason
    matched: int | str | None = None
    message: str | None = None
    status: int | None = None
    closed: bool = False
    whole: bool = False
    code: str | None = None
    param: str | None = None


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step confirmed of one request.  ``finish`` is set exactly once, in the last output of a request.

    ``logprobs`` has one entry a token when asked for; ``prompt_logprobs`` the next run of prompt positions.
    ``cached_tokens``: prompt tokens found in the cache at first admission.  ``report``: with the last output, when asked for.
    ``queued``: seconds that the request had waited when it was admitted first.  ``embedding``: with the last output.
    """

    uid: int
    tokens: list[int]
    finish: Finish | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    report: CacheReport | None = None
    queued: float = 0.0
    embedding: list[float] | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request; ``cached_tokens`` of the prompt came from the cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event of one answer, in text and tokens.

    ``text_delta``/``token_ids_delta``/``logprobs_delta`` are what is new since the last event; joining them over the
    stream gives the whole answer.  ``prompt_logprobs`` is complete, and present on the last event only; so are ``report``,
    a CacheReport as plain values, and ``embedding``.
    """

    rid: str
    index: int
    text_delta: str
    token_ids_delta: list[int]
    usage: Usage
    finish: Finish | None = None
    logprobs_delta: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    num_retractions: int = 0
    report: dict[str, Any] | None = None
    embedding: list[float] | None = None


class GrammarStats(msgspec.Struct, frozen=True, kw_only=True):
    """What constraints have cost and saved; counters only grow but for ``cached_bytes`` and ``pending``.

    ``wait_seconds``: what requests waited for grammars.  ``masked_rows``: sampled positions under a grammar, whose masks took
    ``mask_seconds``.  Drafts are those of grammars and of drafters.  ``closed``: texts ended in time for their budget.
    """

    compiled: int = 0
    compile_seconds: float = 0.0
    wait_seconds: float = 0.0
    refused: int = 0
    timed_out: int = 0
    cache_hits: int = 0
    cached_bytes: int = 0
    pending: int = 0
    masked_rows: int = 0
    mask_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    closed: int = 0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the engine core after a step; tokens are KV slots, counters only grow.

    free_tokens + cached_tokens + locked_tokens == capacity_tokens, where cached ones are evictable and locked ones are
    held by running requests (their shared prefixes included).  ``reuse_counts`` is the histogram of
    ``radixrt.cache.reuse``, ``reuse_seconds`` its sum; ``wait_seconds`` sums what finished requests waited, by reason.
    """

    capacity_tokens: int = 0
    free_tokens: int = 0
    cached_tokens: int = 0
    locked_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_retracted: int = 0
    num_preempted: int = 0
    num_timed_out: int = 0
    steps: int = 0
    failed_steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    tree_nodes: int = 0
    num_pins: int = 0
    pinned_tokens: int = 0
    reuse_counts: list[int] = []
    reuse_seconds: float = 0.0
    wait_seconds: dict[str, float] = {}
    finished: int = 0
    aborted: int = 0
    grammar: GrammarStats = GrammarStats()


class KVEventsAddress(msgspec.Struct, frozen=True):
    """Where KV events can be had; ``replay_endpoint`` is None where missed ones cannot be asked for."""

    publisher: str
    endpoint: str
    replay_endpoint: str | None
    topic: str
    block_size: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine front needs to know of the loaded model and the resolved engine."""

    model_path: str
    architecture: str
    vocab_size: int
    context_length: int
    capacity_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    attention_backend: str = ""
    load_seconds: float = 0.0
    kv_events: KVEventsAddress | None = None
