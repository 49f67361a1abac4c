"""Reads safetensors files, one or many shards.

Headers are untrusted: each is checked against the length of its file before the library maps it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from radixrt.errors import ConfigError
from radixrt.weights.source import StoredTensor

MAX_HEADER_BYTES = 100 << 20
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class SafetensorsFiles:
    """The tensors of all shards of one model."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.stored: dict[str, StoredTensor] = {}
        self._names: dict[Path, list[str]] = {}
        for path in paths:
            entries = read_header(path)
            twice = entries.keys() & self.stored.keys()
            if twice:
                raise ConfigError(f"{path} repeats tensor {min(twice)} of another file")
            self.stored.update(entries)
            self._names[path] = list(entries)

    def read(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor in its stored type, mapped from the file."""
        for path, names in self._names.items():
            try:
                with safe_open(path, framework="pt") as shard:
                    for name in names:
                        yield name, shard.get_tensor(name)
            except SafetensorError as error:
                raise ConfigError(f"{path} is not a usable safetensors file: {error}") from error


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return shape and size of every tensor; raise ConfigError unless the header describes the file exactly."""

    def malformed(reason: str) -> ConfigError:
        return ConfigError(f"{path} is not a usable safetensors file: {reason}")

    try:
        length = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise malformed("it is shorter than its length field")
            (size,) = struct.unpack("<Q", prefix)
            if size > min(MAX_HEADER_BYTES, length - 8):
                raise malformed(f"its header claims {size} bytes")
            header = json.loads(file.read(size))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise malformed("its header is not JSON") from error
    if not isinstance(header, dict):
        raise malformed("its header is not an object")
    entries, spans = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            kind = entry["dtype"]
            width, shape, (start, end) = _BYTES[kind], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError) as error:
            raise malformed(f"tensor {name} has an unknown type or no shape or place") from error
        numbers = (*shape, start, end)
        if not all(type(number) is int and number >= 0 for number in numbers) or end - start != prod(shape) * width:
            raise malformed(f"tensor {name} of shape {list(shape)} does not fill bytes {start}..{end}")
        entries[name] = StoredTensor(shape, end - start, kind.lower())
        spans.append((start, end))
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise malformed("its tensors overlap or leave gaps")
        position = end
    if 8 + size + position != length:
        raise malformed(f"it is {length} bytes long, its header describes {8 + size + position} (truncated?)")
    return entries
