"""In which order waiting requests are tried.  A policy is one method; ties keep the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from radixrt.cache.prefix_cache import PrefixCache
from radixrt.errors import ConfigError
from radixrt.schedule.request import Request


class SchedulePolicy(Protocol):
    def order(self, waiting: Sequence[Request], cache: PrefixCache) -> Sequence[Request]:
        """Return the waiting requests, first to be admitted first.  ``waiting`` is in order of arrival, and stays as it is."""


class FirstComeFirstServed:
    def order(self, waiting: Sequence[Request], cache: PrefixCache) -> Sequence[Request]:
        return waiting


class LongestPrefixMatch:
    """Longest cached prefix first ("SGLang", section 3): what is in the cache is used before it is evicted."""

    def order(self, waiting: Sequence[Request], cache: PrefixCache) -> Sequence[Request]:
        return sorted(waiting, key=lambda request: -cache.match_length(request.tokens[: request.match_limit], request.namespace))


POLICIES: Mapping[str, Callable[[], SchedulePolicy]] = {"fcfs": FirstComeFirstServed, "lpm": LongestPrefixMatch}


def select(name: str) -> SchedulePolicy:
    """Return the policy of that name, or raise ConfigError naming those there are."""
    if name not in POLICIES:
        raise ConfigError(f"unknown schedule policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name]()
