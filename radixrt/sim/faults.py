"""Breaking things on purpose, and telling that apart from what breaks by itself."""

from __future__ import annotations

from array import array
from typing import Any

from radixrt.cache.slots import SlotAllocator
from radixrt.cache.tree import Insertion, Tree
from radixrt.engine.step_loop import StepLoop
from radixrt.schedule.step import ScheduledStep
from radixrt.sim.grammar import Choices, ChoicesState
from radixrt.types import TokenOutput

# Where a fault can be raised: a forward pass or sampling as it is queued, the device, the logits of a row (which raises
# nothing, but is reported), an allocation of slots, a grammar that takes in a token, an insertion into the tree.
PLACES = ("forward", "sample", "device", "logits", "allocate", "grammar", "insert")


class SimulatedFault(RuntimeError):
    """Raised on purpose."""


class Faults:
    """Which calls from now on break, while ``on``; ``count`` is how many have."""

    def __init__(self) -> None:
        self.on = False
        self.count = 0
        self._armed: dict[str, int] = {}

    def arm(self, place: str, calls: int) -> None:
        """Let the ``calls``-th call from now on break."""
        self._armed[place] = calls

    def disarm(self) -> None:
        self._armed.clear()

    def strikes(self, place: str) -> bool:
        """Whether this call is one that breaks."""
        if not self.on or place not in self._armed:
            return False
        self._armed[place] -= 1
        if self._armed[place]:
            return False
        del self._armed[place]
        self.count += 1
        return True

    def raise_at(self, place: str) -> None:
        """Raise SimulatedFault if this call is one that breaks."""
        if self.strikes(place):
            raise SimulatedFault(place)


class FaultyGrammar(ChoicesState):
    """A grammar that breaks when told to."""

    def __init__(self, choices: Choices, faults: Faults) -> None:
        super().__init__(choices)
        self._faults = faults

    def accept(self, token: int) -> bool:
        self._faults.raise_at("grammar")
        return super().accept(token)


class FaultyAllocator(SlotAllocator):
    """An allocator that breaks when told to."""

    def __init__(self, num_slots: int, faults: Faults) -> None:
        super().__init__(num_slots)
        self._faults = faults

    def allocate(self, count: int) -> array[int]:
        self._faults.raise_at("allocate")
        return super().allocate(count)


class FaultyTree:
    """A radix tree that breaks when told to, before it has done anything."""

    def __init__(self, tree: Tree, faults: Faults) -> None:
        self._tree = tree
        self._faults = faults
        for name in vars(Tree):
            if not name.startswith("_") and name != "insert":
                setattr(self, name, getattr(tree, name))  # a call costs what it costs without faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def insert(self, *arguments: Any, **options: Any) -> Insertion:
        self._faults.raise_at("insert")
        return self._tree.insert(*arguments, **options)


class CandidLoop(StepLoop):
    """Lets out what nobody broke on purpose, instead of ending requests for it."""

    def _fail(self, step: ScheduledStep | None, error: Exception) -> list[TokenOutput]:
        if not isinstance(error, SimulatedFault):
            raise error
        return super()._fail(step, error)
