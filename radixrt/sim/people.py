"""What operations mean: who asks for what, and who hangs up.

An operation's number decides what it means, together with what the world holds when it comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from radixrt.sim.answer import Answer
from radixrt.sim.faults import PLACES
from radixrt.sim.grammar import Choices
from radixrt.sim.history import Operation
from radixrt.sim.model import END_OF_TEXT, VOCAB_SIZE, Text
from radixrt.sim.world import World
from radixrt.types import LogprobOptions


class People:
    """Those who use a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._settings = world.settings
        self._late_aborts: list[int] = []
        rng = random.Random(world.settings.seed)
        self._preambles = [[rng.randrange(1, VOCAB_SIZE) for _ in range(world.settings.context_length // 2)] for _ in range(3)]
        self._operations: dict[str, Callable[[int], None]] = {
            "step": lambda _: world.step(), "flush": lambda _: world.flush(), "unpin": lambda number: world.unpin(str(number % 5)),
            "arrive": self._arrive, "follow": self._follow, "twin": self._twin, "abort": self._abort, "disconnect": self._disconnect,
            "exodus": self._exodus, "clock": self._pass_time, "fault": self._arm, "pin": self._pin, "close": self._close,
        }

    def apply(self, operation: Operation) -> None:
        """Do one operation."""
        if not self._world.stopped:
            name, number = operation
            self._operations[name](number)

    def _arrive(self, number: int) -> None:
        rng = random.Random(number)
        preamble = rng.choice(self._preambles)
        own = [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randrange(1, 12))]
        self._ask(rng, preamble[: rng.randrange(len(preamble))] + own, rng.choice((0, 0, 0, 1)))

    def _follow(self, number: int) -> None:
        if (before := self._recent(number, 8)) is not None:
            rng = random.Random(number)
            new = (rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randrange(1, 6)))
            self._ask(rng, [*before.text.tokens, *new], before.text.namespace)

    def _twin(self, number: int) -> None:
        if (before := self._recent(number, 8)) is not None:
            self._ask(random.Random(number), before.text.tokens[: before.num_prompt], before.text.namespace)

    def _ask(self, rng: random.Random, prompt: list[int], namespace: int) -> None:
        world, settings = self._world, self._settings
        longest = min(settings.context_length, settings.num_slots)
        if len(world.open) >= settings.most_open or len(prompt) >= longest:
            return
        max_new = longest if rng.random() < 0.05 else rng.randrange(settings.longest_output)
        choices, seconds, refused = None, 0.0, False
        if rng.random() < 0.25:
            allowed = {
                at: sorted(rng.sample(range(1, VOCAB_SIZE), rng.choice((1, 1, 1, 3)))) for at in range(max_new) if rng.random() < 0.5
            }
            choices = Choices(allowed, rng.randrange(1, 20))
            seconds, refused = rng.choice((0.0, 0.0, 0.002, 0.05, 1.0)), rng.random() < 0.1
        seed = 0 if settings.drafts and rng.random() < 0.7 else rng.getrandbits(20)
        answer = Answer(
            uid=len(world.answers), text=Text(world.model, prompt, namespace, seed), num_prompt=len(prompt),
            max_length=min(len(prompt) + max_new, longest), stop_ids=frozenset({END_OF_TEXT} if rng.random() < 0.7 else ()),
            choices=choices, logprobs=LogprobOptions(start_len=rng.randrange(-1, len(prompt) + 1)) if rng.random() < 0.06 else None,
            arrived=world.now, faults_before=world.faults.count, compile_seconds=seconds, refused=refused,
        )
        world.add(answer, priority=rng.choice((0, 0, 0, 1, 5, 20)), routing_key=rng.choice(("", "a", "b")))

    def _abort(self, number: int) -> None:
        if self._late_aborts:
            self._world.abort(self._late_aborts.pop())
        if (answer := self._recent(number, 16)) is not None:
            self._world.abort(answer.uid)

    def _disconnect(self, number: int) -> None:
        self._abort(number)
        if (answer := self._recent(number, 16)) is not None:
            self._late_aborts.append(answer.uid)

    def _exodus(self, number: int) -> None:
        if self._settings.faults and number % 2:
            self._world.faults.arm("device", 1)
            self._world.step()
        for uid in list(self._world.open):
            self._world.abort(uid)

    def _pass_time(self, number: int) -> None:
        self._world.now += (number % 1000) ** 2 / 1e5

    def _pin(self, number: int) -> None:
        if (answer := self._recent(number, 8)) is not None:
            self._world.pin(str(number % 5), answer.text, number % 7 + 0.5)

    def _close(self, number: int) -> None:
        if (answer := self._recent(number, 8)) is not None:
            self._world.drop_tail(answer.text, number % answer.num_prompt)

    def _arm(self, number: int) -> None:
        place = PLACES[number % len(PLACES)]
        self._world.faults.arm(place, 1 + number // len(PLACES) % (12 if place in ("allocate", "grammar", "insert") else 3))

    def _recent(self, number: int, among: int) -> Answer | None:
        """One of the latest requests, whatever has become of it; None before the first."""
        answers = self._world.answers
        return answers[-1 - number % min(len(answers), among)] if answers else None
