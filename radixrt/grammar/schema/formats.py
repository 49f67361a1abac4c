"""The formats that are enforced, as patterns where those of the engine let through what a validator refuses.

Every text of a pattern is valid: the Gregorian calendar from the year 1, as ISO 8601 and RFC 3339 have it; a leap second only in
the last minute of a day at UTC, as elsewhere hours would have to be added up; names of hosts (RFC 1123) without punycode, which
would have to be decoded; addresses of e-mail that keep to the limits of RFC 5321, section 4.5.3.1, by having fewer parts.
"""

from __future__ import annotations

from typing import Any

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAYS = "(?:0[1-9]|1[0-9]|2[0-8])"
_LATE_DAYS = "(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
_DATE = f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAYS}|{_LATE_DAYS})|{_LEAP_YEAR}-02-29)"

_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]+)?"
_TIME = f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[zZ]|[+\\-]{_HOUR}:[0-5][0-9])|23:59:60{_FRACTION}(?:[zZ]|[+\\-]00:00))"

_LETTER = "[a-zA-Z0-9]"
_INNER = "[a-zA-Z0-9-]"


def _label(most: int) -> str:
    """A name between dots, of so many characters at most, without a hyphen in both its third and fourth place."""
    long = f"{_LETTER}{_INNER}(?:{_LETTER}{_INNER}|-{_LETTER}){_INNER}{{0,{most - 5}}}{_LETTER}"
    return f"(?:{_LETTER}(?:{_INNER}{{0,2}}{_LETTER})?|{long})"


_HOST = f"{_label(63)}(?:\\.{_label(63)})*"
_DOMAIN = f"{_label(32)}(?:\\.{_label(32)}){{0,4}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = f"{_ATOM}(?:\\.?{_ATOM}){{0,31}}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_OCTET}(?:\\.{_OCTET}){{3}}"


def _units(letters: str) -> str:
    """Counts of units of time, some in a row, the largest first."""
    return "|".join("[0-9]+" + "(?:[0-9]+".join(letters[at:]) + ")?" * (len(letters) - at - 1) for at in range(len(letters)))


_SPAN = f"T(?:{_units('HMS')})"

FORMATS: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}[tT]{_TIME}$"},
    "email": {"pattern": f"^{_LOCAL}@(?:{_DOMAIN}|\\[{_IPV4}\\])$"},
    "hostname": {"pattern": f"^{_HOST}$", "maxLength": 253},
    "ipv4": {"pattern": f"^{_IPV4}$"},
    "uuid": {"pattern": "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
    "duration": {"pattern": f"^P(?:(?:{_units('YMD')})(?:{_SPAN})?|{_SPAN}|[0-9]+W)$"},
    **{name: {"format": name} for name in ("ipv6", "uri")},
}
"""Formats by name, each as keywords that the engine enforces; others are annotations, as the standard has it."""
