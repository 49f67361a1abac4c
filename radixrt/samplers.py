"""The sampler chain beyond temperature, top-k, top-p and min-p: what a request may ask for, with llama.cpp's names and defaults.

Values and their ranges only; ``radixrt.runner.chain`` is what they do.  docs/sampling.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from radixrt.errors import InvalidSampling

MAX_BREAKERS = 64
MAX_BREAKER_CHARS = 64


class Sampler(NamedTuple):
    """One link of the chain: the parameters it reads, with their defaults, and who described it."""

    parameters: dict[str, float | int | str]
    source: str


# In the order in which they are applied unless ``samplers`` says otherwise.
SAMPLERS = {
    "penalties": Sampler(
        {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}, "Keskar et al. 2019, CTRL; OpenAI's API"
    ),
    "dry": Sampler(
        {
            "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
            "dry_sequence_breakers": '"\\n", ":", "\\"", "*"',
        },
        "text-generation-webui, pull request 5677 (2024)",
    ),
    "top_n_sigma": Sampler({"top_n_sigma": -1.0}, "Tang et al. 2024, Top-n-sigma: Not All Logits Are You Need"),
    "top_k": Sampler({"top_k": -1}, "Fan et al. 2018, Hierarchical Neural Story Generation"),
    "typ_p": Sampler({"typical_p": 1.0}, "Meister et al. 2022, Locally Typical Sampling"),
    "top_p": Sampler({"top_p": 1.0}, "Holtzman et al. 2019, The Curious Case of Neural Text Degeneration"),
    "min_p": Sampler({"min_p": 0.0}, "Nguyen et al. 2024, Turning Up the Heat: Min-p Sampling"),
    "xtc": Sampler({"xtc_probability": 0.0, "xtc_threshold": 0.1}, "text-generation-webui, pull request 6335 (2024)"),
    "temperature": Sampler(
        {"temperature": 1.0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0}, "llama.cpp, pull request 4972 (2024)"
    ),
}
DEFAULT_ORDER = tuple(SAMPLERS)
# In place of the filters: penalties, dry and temperature come before it.
MIROSTAT = Sampler({"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1}, "Basu et al. 2020, Mirostat, algorithms 1 and 2")
_EDITS = ("penalties", "dry")
_ALIASES = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}
_RANGES = (
    ("dry_multiplier", 0.0, math.inf), ("dry_base", 1.0, math.inf), ("dry_allowed_length", 1, 2**31 - 1),
    ("dry_penalty_last_n", -1, 2**31 - 1), ("xtc_probability", 0.0, 1.0), ("xtc_threshold", 0.0, 1.0), ("typical_p", 0.0, 1.0),
    ("top_n_sigma", -math.inf, math.inf), ("mirostat", 0, 2), ("mirostat_tau", 0.0, 100.0), ("mirostat_eta", 0.0, 1.0),
    ("dynatemp_range", 0.0, math.inf), ("dynatemp_exponent", 0.0, math.inf),
)  # fmt: skip


class ChainParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of the samplers that only the chain has.

    ``dry_multiplier=0``, ``xtc_probability=0``, ``typical_p=1``, ``top_n_sigma<=0``, ``mirostat=0`` and ``dynatemp_range=0`` switch
    each off.  ``dry_penalty_last_n``: tokens that DRY looks back, -1 for all, 0 for none.  ``samplers``: which are applied, in order.
    """

    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    samplers: tuple[str, ...] = DEFAULT_ORDER

    def validate(self) -> None:
        """Raise InvalidSampling, naming the parameter, unless every value is in its range."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                bounds = "finite" if low == -math.inf else f"at least {low:g} and finite" if high == math.inf else f"in [{low:g}, {high:g}]"
                raise InvalidSampling(f"{name} must be {bounds}, got {value}.", param=name)
        name = "dry_sequence_breakers"
        if len(self.dry_sequence_breakers) > MAX_BREAKERS:
            raise InvalidSampling(f"{name} takes at most {MAX_BREAKERS} strings, got {len(self.dry_sequence_breakers)}.", param=name)
        if not all(0 < len(text) <= MAX_BREAKER_CHARS for text in self.dry_sequence_breakers):
            raise InvalidSampling(f"{name} must be strings of 1 to {MAX_BREAKER_CHARS} characters.", param=name)
        if len(set(self.samplers)) < len(self.samplers):
            raise InvalidSampling("samplers names one twice.", param="samplers")
        if unknown := set(self.samplers) - SAMPLERS.keys():
            raise InvalidSampling(f"samplers must be of {', '.join(SAMPLERS)}; got {min(unknown)[:100]!r}.", param="samplers")

    @property
    def order(self) -> tuple[str, ...]:
        """The samplers in the order in which they are applied; mirostat takes the place of every filter."""
        if self.mirostat:
            return (*(name for name in self.samplers if name in _EDITS), "temperature", f"mirostat_{self.mirostat}")
        return self.samplers

    @property
    def repeats(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0 and "dry" in self.samplers


class Breakers(msgspec.Struct, frozen=True):
    """Where DRY's repeats end, in tokens: bit t of ``mask`` (packed, first bit highest) for a token that holds a breaker, and
    breakers that are several tokens."""

    mask: bytes = b""
    sequences: tuple[tuple[int, ...], ...] = ()


NAMES = ChainParams.__struct_fields__
_SWITCHES = ("dry_multiplier", "xtc_probability", "top_n_sigma", "mirostat", "dynatemp_range")  # on above 0


def chain(fields: Mapping[str, Any]) -> ChainParams | None:
    """Return the chain that a body or its sampling parameters ask for, where None stands for a default; None when they ask for none.

    Raises InvalidSampling for wrong types and values out of range.
    """
    given = {name: fields[name] for name in NAMES if fields.get(name) is not None}
    if not given:
        return None
    if isinstance(order := given.get("samplers"), list | tuple):
        given["samplers"] = [_ALIASES.get(name, name) if isinstance(name, str) else name for name in order]
    try:
        params = msgspec.convert(given, ChainParams)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.partition("[")[0].rstrip("`") or "samplers"
        raise InvalidSampling(f"{name}: {reason}.", param=name) from None
    params.validate()
    on = any(getattr(params, name) > 0 for name in _SWITCHES) or params.typical_p < 1
    return params if on or "samplers" in given else None


def table() -> dict[str, Any]:
    """Return the samplers with their parameters, defaults and sources, and the order in which they are applied."""
    links = {**SAMPLERS, "mirostat": MIROSTAT}
    return {"order": DEFAULT_ORDER, "samplers": {name: link._asdict() for name, link in links.items()}}


def lines() -> list[str]:
    """Return the same for a person to read."""
    shown: list[str] = []
    for place, (name, link) in enumerate([*SAMPLERS.items(), ("mirostat", MIROSTAT)], 1):
        shown.append(f"{place if name in SAMPLERS else '-':>2}  {name}: {link.source}")
        shown += [f"      {parameter:<24}{default}" for parameter, default in link.parameters.items()]
    return [*shown, "", "In this order for requests that use the chain (docs/sampling.md); mirostat takes the place of every filter."]
