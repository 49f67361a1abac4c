"""The sampler chain: filters in the order that a request asks for, over the rows that ask for one.

Logits are float64 in the order of ids, -inf where a sampler has dropped a token; every sampler leaves at least one.  Sums
over a row are cumulative, so that they do not depend on how many rows there are.  Sources: ``radixrt.samplers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from radixrt.batch import ChainGroup, LogitEdits

GREEDY_TEMPERATURE = 1e-6
HOTTEST = 1e30
# Most tokens that are ranked before all of the vocabulary is.
SHORT_LIST = 1024
# Most likely tokens from which mirostat 1 estimates the exponent of Zipf's law.
ZIPF_TOKENS = 100

Values = Mapping[str, Tensor]


def choose(logits: Tensor, groups: Sequence[ChainGroup], tokens: Tensor) -> Tensor | None:
    """Choose the tokens of all groups, in place: tokens [S] int64, where -1 stays.

    logits [S, V] float32 after mask and bias.  Returns mirostat's state after each token, [S] float64 (NaN where there is none),
    or None when no group has any.
    """
    states: Tensor | None = None
    for group in groups:
        x = logits[group.rows].double()
        mirostat = _MIROSTATS.get(group.order[-1]) if group.order else None
        for name in group.order:
            if name in _EDITS:
                x = _EDITS[name](x, group)
            elif name in _FILTERS:
                x = _FILTERS[name](x, group.values, group.chance)
        if mirostat is None:
            drawn = draw(x, group.uniform)
        else:
            drawn, mu = _in_turns(x, group, mirostat)
            states = torch.full(tokens.shape, math.nan, dtype=torch.float64, device=tokens.device) if states is None else states
            states[group.rows] = mu
        tokens[group.rows] = torch.where(tokens[group.rows] < 0, -1, drawn)
    return states


def draw(x: Tensor, uniform: Tensor) -> Tensor:
    """Return, for each row of logits [R, V], the first id whose cumulative probability exceeds the uniform number."""
    cumulative = x.softmax(dim=-1).cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=x.shape[1] - 1)


def _in_turns(x: Tensor, group: ChainGroup, truncate: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Draw the positions of a request one after the other, since what one finds is what the next one aims by.

    Returns tokens [C] and states after them [C].
    """
    drawn = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    after = group.mu.clone()
    for turn, places in enumerate(group.turns):
        mu = after[places - 1] if turn else group.mu[places]
        left = truncate(x[places], mu)
        drawn[places] = draw(left, group.uniform[places])
        surprise = -left.log_softmax(dim=-1).gather(1, drawn[places, None]).squeeze(1) / math.log(2)
        # Where logits were not finite there is no surprise either, and the request ends.
        error = (surprise - group.values["mirostat_tau"][places]).nan_to_num(0.0, 0.0, 0.0)
        after[places] = mu - group.values["mirostat_eta"][places] * error
    return drawn, after


def _penalties(x: Tensor, group: ChainGroup) -> Tensor:
    x = _added(x, group.penalties)
    if (edits := group.repetition) is not None:
        seen = x[edits.rows, edits.tokens]
        x[edits.rows, edits.tokens] = torch.where(seen > 0, seen / edits.values, seen * edits.values)
    return x


def _dry(x: Tensor, group: ChainGroup) -> Tensor:
    return _added(x, group.repeats)


def _added(x: Tensor, edits: LogitEdits | None) -> Tensor:
    if edits is not None:
        x[edits.rows, edits.tokens] += edits.values
    return x


def _top_n_sigma(x: Tensor, values: Values, _: Tensor) -> Tensor:
    """Keep logits within n standard deviations of the largest."""
    n = values["top_n_sigma"]
    if not bool((n > 0).any()):
        return x
    valid = x > -torch.inf
    count = valid.sum(dim=-1, keepdim=True)
    mean = _sum(x.where(valid, 0.0)) / count
    deviation = (_sum((x - mean).square().where(valid, 0.0)) / count).sqrt()
    bound = x.amax(dim=-1, keepdim=True) - n[:, None] * deviation
    return _kept(x, (x >= bound) | (n <= 0)[:, None])


def _top_k(x: Tensor, values: Values, _: Tensor) -> Tensor:
    return _largest(x, values["top_k"])


def _typical(x: Tensor, values: Values, _: Tensor) -> Tensor:
    """Keep tokens whose surprise is nearest to the entropy, until they hold more than typical_p."""
    typical_p = values["typical_p"][:, None]
    if not bool((typical_p < 1).any()):
        return x
    logprobs = x.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropy = -_sum((probs * logprobs).where(probs > 0, 0.0))
    distance = (-logprobs - entropy).abs()
    order = distance.argsort(dim=-1, stable=True)
    ranked = probs.gather(1, order)
    keep = torch.zeros_like(x, dtype=torch.bool).scatter(1, order, ranked.cumsum(dim=-1) - ranked <= typical_p)
    return _kept(x, keep | (typical_p >= 1))


def _top_p(x: Tensor, values: Values, _: Tensor) -> Tensor:
    """Keep the most likely tokens, until they hold top_p."""
    top_p = values["top_p"]
    if not bool((top_p < 1).any()):
        return x
    probs = x.softmax(dim=-1)
    ranked = _ranked(probs, SHORT_LIST)
    if ranked.shape[1] < x.shape[1] and not bool(((ranked.sum(dim=-1) > top_p) | (top_p >= 1)).all()):
        ranked = _ranked(probs, x.shape[1])
    count = (ranked.cumsum(dim=-1) - ranked < top_p[:, None]).sum(dim=-1)
    return _largest(x, count.where(top_p < 1, x.shape[1]).clamp(min=1))


def _min_p(x: Tensor, values: Values, _: Tensor) -> Tensor:
    """Keep tokens that are at least min_p times as likely as the likeliest."""
    min_p = values["min_p"]
    if not bool((min_p > 0).any()):
        return x
    return _kept(x, x - x.amax(dim=-1, keepdim=True) >= min_p.log()[:, None])


def _xtc(x: Tensor, values: Values, chance: Tensor) -> Tensor:
    """Exclude top choices: of several tokens above the threshold only the least likely stays (of equals, the last)."""
    acts = (chance < values["xtc_probability"]) & (values["xtc_threshold"] <= 0.5)
    if not bool(acts.any()):
        return x
    probs = x.softmax(dim=-1)
    above = (probs >= values["xtc_threshold"][:, None]) & (x > -torch.inf)
    least = probs.where(above, torch.inf).amin(dim=-1, keepdim=True)
    ids = torch.arange(x.shape[1], device=x.device)
    stays = ids.where(above & (probs == least), -1).amax(dim=-1, keepdim=True)
    return _kept(x, ~above | (ids == stays) | ~acts[:, None])


def _temperature(x: Tensor, values: Values, _: Tensor) -> Tensor:
    """Divide by the temperature, which with a dynatemp_range grows with the entropy; near 0 only the best is kept."""
    temperature, spread = values["temperature"], values["dynatemp_range"]
    if bool((spread > 0).any()):
        logprobs = x.log_softmax(dim=-1)
        probs = logprobs.exp()
        entropy = -_sum((probs * logprobs).where(probs > 0, 0.0)).squeeze(1)
        count = (x > -torch.inf).sum(dim=-1)
        coldest = (temperature - spread).clamp(min=0.0)
        share = (entropy / count.double().log()).clamp(0.0, 1.0) ** values["dynatemp_exponent"]
        moved = coldest + (temperature + spread - coldest) * share
        temperature = moved.where((spread > 0) & (count > 1), temperature)
    cold = temperature < GREEDY_TEMPERATURE
    if bool(cold.any()):
        x = _largest(x, torch.where(cold, 1, x.shape[1]))
    # From the largest, so that no quotient overflows.
    return (x - x.amax(dim=-1, keepdim=True)) / temperature.where(~cold, 1.0).clamp(max=HOTTEST)[:, None]


def _mirostat_1(x: Tensor, mu: Tensor) -> Tensor:
    """Keep as many tokens as have a surprise of mu on average if they follow Zipf's law."""
    vocab_size = x.shape[1]
    ranked = _ranked(x.log_softmax(dim=-1), ZIPF_TOKENS)[:, :ZIPF_TOKENS]
    rank = torch.arange(1, ranked.shape[1], dtype=torch.float64, device=x.device)
    ratio = ((rank + 1) / rank).log().expand(len(x), -1)
    pairs = ranked[:, 1:] > -torch.inf
    ratio = ratio.where(pairs, 0.0)
    exponent = (ratio * (ranked[:, :-1] - ranked[:, 1:]).where(pairs, 0.0)).cumsum(dim=-1)[:, -1:]
    exponent = (exponent / ratio.square().cumsum(dim=-1)[:, -1:]).squeeze(1)
    excess = exponent - 1
    scale = torch.where(excess.abs() < 1e-9, 1 / math.log(vocab_size), excess / (1 - float(vocab_size) ** -excess))
    count = (scale * 2.0**mu) ** (1 / exponent)
    return _largest(x, count.nan_to_num(1.0, vocab_size).clamp(1, vocab_size).long())


def _mirostat_2(x: Tensor, mu: Tensor) -> Tensor:
    """Keep tokens whose surprise is at most mu, and the best."""
    surprise = -x.log_softmax(dim=-1) / math.log(2)
    best = _largest(x, torch.ones(len(x), dtype=torch.int64, device=x.device)) > -torch.inf
    return _kept(x, (surprise <= mu[:, None]) | best)


def _kept(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~keep, -torch.inf)


def _sum(x: Tensor) -> Tensor:
    return x.cumsum(dim=-1)[:, -1:]


def _ranked(x: Tensor, width: int) -> Tensor:
    """Return at least the ``width`` largest of each row, largest first."""
    if width <= SHORT_LIST and width < x.shape[1]:
        return x.topk(width, dim=-1).values
    return x.sort(dim=-1, descending=True).values


def _largest(x: Tensor, count: Tensor) -> Tensor:
    """Keep the ``count`` [R] largest of each row, of equals those with the lowest ids."""
    size = x.shape[1]
    wide = count >= size
    if bool(wide.all()):
        return x
    places = count.where(~wide, 1).clamp(1, size) - 1
    bound = _ranked(x, int(places.max()) + 1).gather(1, places[:, None])
    above, equal = x > bound, x == bound
    room = places[:, None] + 1 - above.sum(dim=-1, keepdim=True)
    return _kept(x, above | (equal & (equal.cumsum(dim=-1) <= room)) | wide[:, None])


_EDITS: dict[str, Callable[[Tensor, ChainGroup], Tensor]] = {"penalties": _penalties, "dry": _dry}
_FILTERS: dict[str, Callable[[Tensor, Values, Tensor], Tensor]] = {
    "top_n_sigma": _top_n_sigma, "top_k": _top_k, "typ_p": _typical, "top_p": _top_p, "min_p": _min_p, "xtc": _xtc,
    "temperature": _temperature,
}
_MIROSTATS = {"mirostat_1": _mirostat_1, "mirostat_2": _mirostat_2}
