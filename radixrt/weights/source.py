"""The seam between weight formats and models: a source yields named tensors, ``fill`` copies them into a model's places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from radixrt.errors import ConfigError
from radixrt.weights.blocks import BlockTensor

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class StoredTensor:
    """Shape of a tensor, its size in the file in bytes, and its type there in lower case."""

    shape: tuple[int, ...]
    size: int
    kind: str = "f32"


class WeightSource(Protocol):
    """A set of tensors under Hugging Face names.  ``stored`` is known before anything is read."""

    @property
    def stored(self) -> Mapping[str, StoredTensor]: ...

    def read(self) -> Iterator[tuple[str, Tensor | BlockTensor]]:
        """Yield every tensor once, one at a time, in any floating type or in blocks."""


class Place(Protocol):
    """Where a tensor goes: a torch tensor, or rows of a matrix in a format of their own."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def ndim(self) -> int: ...

    def copy_(self, tensor: Tensor, /) -> object: ...


@runtime_checkable
class BlockPlace(Place, Protocol):
    """A place that can take a matrix in blocks as it is, if they are of its own kind."""

    def copy_blocks(self, tensor: BlockTensor) -> None: ...


def fill(
    places: Mapping[str, Place],
    source: WeightSource,
    *,
    place_of: Callable[[str], str | None] = lambda name: name,
    progress: Progress | None = None,
) -> None:
    """Copy every tensor of ``source`` into its place, converting type and device.

    ``place_of`` gives the place of a stored name, None when the tensor is not needed.  ``progress`` gets (bytes done,
    bytes in all, name).  Raises ConfigError, before anything is copied, when names or shapes do not correspond.
    """
    stored = source.stored
    targets = {name: target for name in stored if (target := place_of(name)) is not None}
    _name_some("are missing", places.keys() - set(targets.values()))
    _name_some("are not part of the model", [name for name, target in targets.items() if target not in places])
    for name, target in targets.items():
        found, wanted = list(stored[name].shape), list(places[target].shape)
        if found != wanted:
            raise ConfigError(f"tensor {name} has shape {found}, the config asks for {wanted}")
    total, done = sum(entry.size for entry in stored.values()), 0
    for name, tensor in source.read():
        if name in targets:
            _copy(places[targets[name]], tensor)
        done += stored[name].size
        if progress is not None:
            progress(done, total, name)


def _copy(place: Place, tensor: Tensor | BlockTensor) -> None:
    if not isinstance(tensor, BlockTensor):
        place.copy_(tensor)
    elif isinstance(place, BlockPlace):
        place.copy_blocks(tensor)
    else:
        place.copy_(tensor.dequantize())


def _name_some(problem: str, names: Collection[str]) -> None:
    if names:
        raise ConfigError(f"{len(names)} tensors {problem}: {', '.join(sorted(names)[:4])}{', …' if len(names) > 4 else ''}")
