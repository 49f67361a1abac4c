"""How a model's layers reach K/V: the seam (``base``) and its backends, imported when chosen."""

from __future__ import annotations

import importlib

from radixrt.attention.base import AttentionBackend
from radixrt.config import nearest
from radixrt.errors import ConfigError

BACKENDS = {
    "native": ("radixrt.attention.native", "NativeAttention"),
    "torch_sdpa": ("radixrt.attention.torch_sdpa", "TorchSdpa"),
}


def select_backend(name: str) -> AttentionBackend:
    """Return a new backend by name; raise ConfigError with the nearest name when there is none."""
    if name not in BACKENDS:
        raise ConfigError(f"attention backend {name!r} is not one of {', '.join(BACKENDS)}{nearest(name, BACKENDS)}")
    module, kind = BACKENDS[name]
    backend: AttentionBackend = getattr(importlib.import_module(module), kind)()
    return backend
