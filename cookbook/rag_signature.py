"""Retrieval with a signature, as in DSPy: what goes in and what comes out is declared, and the program is made from that.

Fields that do not change come first in the prompt, so that questions about the same passage share it.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixlang import Function, State, function, gen
from report import show

PASSAGES = (
    "Bees dance to tell each other where flowers are. The angle of the dance is the angle to the sun.",
    "Honey keeps for a very long time because it holds little water and much sugar.",
    "A beehive has one queen. She lives for several years, a worker in summer only for about six weeks.",
)
QUESTIONS = ("How long does a queen live?", "How long does a worker live?", "Why does honey keep?", "What does the dance tell?")


@dataclass(frozen=True)
class Signature:
    """The task, the fields given in the order they are written, and the fields wanted with their lengths in tokens."""

    task: str
    inputs: tuple[str, ...]
    outputs: dict[str, int]

    def program(self) -> Function:
        @function
        def predict(s: State, **inputs: str) -> None:
            s += f"{self.task}\n\n"
            for field in self.inputs:
                s += f"{field}: {inputs[field]}\n"
            for field, length in self.outputs.items():
                s += f"{field}:" + gen(field, length, stop="\n") + "\n"

        return predict


def retrieve(question: str) -> str:
    """Return the passage that has most words in common with a question."""
    words = set(question.lower().strip("?").split())
    return max(PASSAGES, key=lambda passage: len(words & set(passage.lower().replace(".", "").split())))


def main() -> list[State]:
    qa = Signature("Answer the question from the passage.", ("Passage", "Question"), {"Reasoning": 32, "Answer": 16}).program()
    states: list[State] = qa.run_batch([{"Passage": retrieve(q), "Question": q} for q in QUESTIONS], temperature=0)
    return states


if __name__ == "__main__":
    show(main)
