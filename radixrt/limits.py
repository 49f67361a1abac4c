"""What one HTTP request may ask for, how long it may take to arrive and to be taken, and how many of one key may be open at once;
checked before any work is done for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

from radixrt import options
from radixrt.errors import ConfigError

limit = partial(options.option, group="limits")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits before work, each a flag of the server."""

    max_head_bytes: int = limit(64 << 10, "largest request head taken", metavar="BYTES")
    head_timeout: float = limit(10.0, "time that the head of a request may take to arrive", metavar="SECONDS")
    keep_alive_timeout: int = limit(30, "time that a connection may stay open between two requests", metavar="SECONDS")
    stall_timeout: float = limit(30.0, "time after which a client is cut off that takes nothing of its answer", metavar="SECONDS")
    max_streams_per_key: int | None = limit(
        None, "most requests of one API key answered at once, one more gets a 429; without keys, of all clients; default: no limit"
    )
    max_body_bytes: int = limit(8 << 20, "largest request body taken", metavar="BYTES")
    body_timeout: float = limit(30.0, "time that the body of a request may take to arrive", metavar="SECONDS")
    max_prompts: int = limit(64, "most prompts in a body")
    max_choices: int = limit(16, "most answers to a prompt (n)")
    max_messages: int = limit(1024, "most messages in a body, and parts of messages")
    max_stops: int = limit(16, "most stop strings")
    max_stop_chars: int = limit(256, "longest stop string", metavar="CHARS")
    max_stop_tokens: int = limit(256, "most stop token ids")
    max_logit_bias: int = limit(1024, "most entries of logit_bias")
    max_tools: int = limit(128, "most tools in a body")
    max_tools_bytes: int = limit(256 << 10, "largest tools of a body, as JSON", metavar="BYTES")
    max_top_logprobs: int = limit(20, "most alternatives reported of a position, up to 20")
    max_logprob_ids: int = limit(128, "most ids of token_ids_logprob")
    # A million are some 50 MB of JSON.
    max_logprob_entries: int = limit(1_000_000, "most logprobs that a body may ask for over all positions, alternatives and answers")

    def check(self) -> None:
        """Raise ConfigError for a limit that lets nothing through."""
        for field in fields(Limits):
            value = getattr(self, field.name)
            if value is None:
                continue
            if not (math.isfinite(value) and (value > 0 if field.type == "float" else value >= 1)):
                least = "above 0 seconds" if field.type == "float" else "at least 1"
                raise ConfigError(f"--{field.name.replace('_', '-')} must be {least}, got {value}")


DEFAULTS = Limits()
