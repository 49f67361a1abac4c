"""The key-value section of a GGUF file: the part that both the tokenizer and the weights are described by.

The file is untrusted: every count, length and type is checked against its size before it is used.  Tensors are not read
here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

from radixrt.errors import ConfigError

MAX_ENTRIES = 1 << 17
_STRING, _ARRAY = 8, 9
_SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


class Malformed(Exception):
    """What is wrong with a header."""


class Cursor:
    """A bounds-checked little-endian reader."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> memoryview:
        start, end = self.position, self.position + size
        if end > len(self.data):
            raise Malformed("it ends inside its header")
        self.position = end
        return self.data[start:end]

    def u32(self) -> int:
        value: int = self._scalar(_U32)
        return value

    def u64(self) -> int:
        value: int = self._scalar(_U64)
        return value

    def string(self) -> str:
        try:
            return str(self.take(self.u64()), "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed("a string is not UTF-8") from error

    def value(self, *, keep: bool = True) -> Any:
        """Read a value; an array of strings that is not to be kept is only walked past."""
        kind = self.u32()
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self._scalar(_layout(kind))
        item, count = self.u32(), self.u64()
        if item == _STRING:
            # Each string takes at least its length field, which bounds the loop by the file.
            if count * _U64.size > len(self.data) - self.position:
                raise Malformed("an array is longer than the file")
            return self._strings(count) if keep else self._skip_strings(count)
        layout = _layout(item)
        return [value for (value,) in layout.iter_unpack(self.take(count * layout.size))]

    def _strings(self, count: int) -> list[str]:
        # A vocabulary is a hundred thousand of them: as ``string``, in one loop.
        data, position, found = self.data, self.position, []
        try:
            for _ in range(count):
                start = position + _U64.size
                (size,) = _U64.unpack_from(data, position)
                position = start + size
                if position > len(data):
                    raise Malformed("it ends inside its header")
                found.append(str(data[start:position], "utf-8"))
        except struct.error as error:
            raise Malformed("it ends inside its header") from error
        except UnicodeDecodeError as error:
            raise Malformed("a string is not UTF-8") from error
        self.position = position
        return found

    def _skip_strings(self, count: int) -> None:
        data, position, end = self.data, self.position, len(self.data)
        try:
            for _ in range(count):
                position += _U64.size + _U64.unpack_from(data, position)[0]
                if position > end:
                    raise Malformed("it ends inside its header")
        except struct.error as error:
            raise Malformed("it ends inside its header") from error
        self.position = position

    def _scalar(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.take(layout.size))[0]


def _layout(kind: int) -> struct.Struct:
    if kind not in _SCALARS:
        raise Malformed(f"unknown value type {kind}")
    return _SCALARS[kind]


def read_header(cursor: Cursor, *, skip: Collection[str] = ()) -> tuple[dict[str, Any], int]:
    """Return every key with its value, and the number of tensors whose descriptions follow; raises Malformed.

    skip: keys whose value is None when it is an array of strings.
    """
    if bytes(cursor.take(4)) != b"GGUF":
        raise Malformed("it does not begin with GGUF")
    version = cursor.u32()
    if version not in (2, 3):
        raise Malformed(f"version {version} (2 and 3 are read, little-endian)")
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    if num_tensors > MAX_ENTRIES or num_keys > MAX_ENTRIES:
        raise Malformed(f"it claims {num_tensors} tensors and {num_keys} keys")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        if key in metadata:
            raise Malformed(f"key {key} occurs twice")
        metadata[key] = cursor.value(keep=key not in skip)
    return metadata, num_tensors


def read_metadata(path: Path) -> dict[str, Any]:
    """Return every key of a GGUF file; arrays become lists.  Raises ConfigError for a file that is none or is cut short."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            cursor = Cursor(view)
            try:
                return read_header(cursor)[0]
            finally:
                cursor.data.release()
    except (Malformed, ValueError) as error:
        raise ConfigError(f"{path.name} is not a usable GGUF file: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path.name}: {error.strerror}") from error
