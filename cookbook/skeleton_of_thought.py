"""Skeleton of thought: an outline first, then all of its points at the same time, then the whole answer.

The points are independent of each other, so they take as long as the longest of them, and share the outline.
"""

from __future__ import annotations

from radixlang import State, assistant, function, gen, system, user
from report import show

QUESTION = "How do I prepare for a long hike?"


@function
def skeleton_of_thought(s: State, question: str, points: int = 3) -> str:
    s += system("You give practical advice.")
    s += user(f"{question} List {points} points, each of a few words.")
    with s.assistant():
        for i in range(1, points + 1):
            s += f"{i}." + gen(f"point_{i}", 12, stop="\n") + "\n"
    forks = s.fork(points)
    forks += lambda i: user(f"Explain point {i + 1} in one or two sentences.") + assistant(gen("text", 48, stop="\n"))
    forks.join()
    return "\n".join(f"{i + 1}.{s[f'point_{i + 1}']}: {text}" for i, text in enumerate(s["text"]))


def main() -> list[State]:
    state = skeleton_of_thought.run(QUESTION, temperature=0)
    print(state.ret_value)
    return [state]


if __name__ == "__main__":
    show(main)
