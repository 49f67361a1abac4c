"""Generative agents: people in a small town perceive what happens, weigh it, and decide what to do, all at the same time.

Each call begins with the town and then the person, so that persons share the town, and a person's calls share the person.
"""

from __future__ import annotations

from radixlang import State, function, gen, select
from report import show

TOWN = (
    "The town has a bakery, a school, a park with an old oak, and a library that closes at six. It is a Saturday in May, "
    "the market opens at eight, and in the evening there is a concert in the park.\n"
)
PEOPLE = {
    "Ana": "Ana is a baker of 45 who gets up at four and loves music.",
    "Ben": "Ben is a teacher of 31 who collects old maps and worries a lot.",
    "Cleo": "Cleo is a student of 19 who wants to become a violinist.",
}
EVENTS = ("It starts to rain.", "The concert is moved to the school.")


@function
def react_to(s: State, name: str, event: str) -> None:
    s += TOWN + PEOPLE[name] + "\n"
    s += f"Event: {event}\nOn a scale from 1 (everyday) to 5 (life-changing), for {name} this is a "
    s += select("weight", ["1", "2", "3", "4", "5"]) + f".\nWhat {name} does now: {name}" + gen("action", 20, stop=["\n", "."])


@function
def meet(s: State, one: str, other: str, seen: str) -> None:
    s += TOWN + PEOPLE[one] + "\n" + PEOPLE[other] + "\n"
    s += f"{one} and {other} meet in the park. Before that, {other}{seen}.\n{one}:" + gen("line", 24, stop="\n")


def main() -> list[State]:
    states: list[State] = []
    for event in EVENTS:
        states += react_to.run_batch([{"name": name, "event": event} for name in PEOPLE], temperature=0)
    pairs = [("Ana", "Cleo"), ("Ben", "Cleo"), ("Ana", "Ben")]
    last = dict(zip(PEOPLE, states[-len(PEOPLE) :], strict=True))
    return states + meet.run_batch([{"one": a, "other": b, "seen": last[b]["action"]} for a, b in pairs], temperature=0)


if __name__ == "__main__":
    show(main)
