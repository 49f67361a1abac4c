"""xgrammar itself, imported when the first grammar needs it, and without packages that it imports and nobody here uses.

Importing it takes 1.5 s of processor time and more, and 4 s without torch: nearly all of that is transformers and torch, for
functions that are not called here.  A process of radixrt's own leaves them out, which takes 0.4 s; others may import them themselves.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from threading import Lock
from types import ModuleType
from typing import Any, cast

from radixrt import processes

UNUSED = ("transformers", "torch")
"""What xgrammar needs for tokenizers of the one, and to mask logits of the other."""

_lock = Lock()
_loaded: list[ModuleType] = []


def library() -> Any:
    """Return the module, which the first call imports."""
    if not _loaded:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not _loaded:
                _loaded.append(_import_alone() if processes.is_own() else importlib.import_module("xgrammar"))
    return _loaded[0]


class _Blank(ModuleType):
    """A module in which every name is a class that does nothing."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **keywords: None})


def _import_alone() -> ModuleType:
    """Import it with blanks for those unused packages that nobody has imported yet; nothing of them stays."""
    blanks = {name: _Blank(name) for name in UNUSED if name not in sys.modules}
    modules = cast(dict[str, ModuleType | None], sys.modules)
    try:
        if "torch" in blanks:
            modules["torch"] = None  # stands for a package that is not there, with which what it is built on gets along
            importlib.import_module("tvm_ffi")
        modules.update(blanks)
        return importlib.import_module("xgrammar")
    finally:
        for name in blanks:
            del modules[name]
