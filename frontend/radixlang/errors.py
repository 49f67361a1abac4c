"""Errors of programs, which name the line of the program they come from."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass

from radixrt import RadixrtError


@dataclass(frozen=True, slots=True)
class Site:
    """A line of a program."""

    filename: str
    line: int
    function: str

    @classmethod
    def here(cls) -> Site:
        """The innermost line on the stack that is not radixlang's own."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("radixlang", "contextlib"):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def __str__(self) -> str:
        source = linecache.getline(self.filename, self.line).strip()
        where = f'File "{self.filename}", line {self.line}, in {self.function}'
        return f"{where}\n    {source}" if source else where


class ProgramError(RadixrtError):
    """What a statement of a program led to; ``site`` is that statement, ``__cause__`` the error below it."""

    status = 400

    def __init__(self, message: str, site: Site | None = None) -> None:
        super().__init__(f"{message}\n  {site}" if site is not None else message)
        self.reason = message
        self.site = site if site is not None else Site.here()

    @classmethod
    def of(cls, error: BaseException, site: Site) -> ProgramError:
        """Wrap an error that a statement led to; one that names its statement already stays as it is."""
        if isinstance(error, ProgramError):
            return error
        wrapped = cls(f"{type(error).__name__}: {error}", site)
        wrapped.__cause__ = error
        return wrapped


def refuse(message: str) -> ProgramError:
    """Return an error about the statement of the program that is being executed."""
    return ProgramError(message, Site.here())
