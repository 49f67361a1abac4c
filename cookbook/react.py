"""ReAct: the model thinks, picks an action, and reads what the action observed, until it can answer.

The examples are the same for every question of the batch; a question's own steps grow at the end and are never computed again.
"""

from __future__ import annotations

from radixlang import State, function, gen, select
from report import show

FACTS = {
    "Danube": "The Danube is 2,850 km long and ends in the Black Sea.",
    "Rhine": "The Rhine is 1,230 km long and ends in the North Sea.",
    "Elbe": "The Elbe is 1,094 km long and ends in the North Sea.",
}
EXAMPLE = """Answer the question. Think, then act: Search a river, or Finish with the answer.

Question: Where does the Rhine end?
Thought 1: I should look up the Rhine.
Action 1: Search: Rhine
Observation 1: The Rhine is 1,230 km long and ends in the North Sea.
Thought 2: It ends in the North Sea.
Action 2: Finish: the North Sea

"""
QUESTIONS = ("Where does the Danube end?", "How long is the Elbe?", "Is the Danube longer than the Elbe?")


@function
def react(s: State, question: str, steps: int = 3) -> None:
    s += EXAMPLE + f"Question: {question}\n"
    for i in range(1, steps + 1):
        s += f"Thought {i}:" + gen(f"thought_{i}", 24, stop="\n") + f"\nAction {i}: "
        s += select(f"action_{i}", ["Search", "Finish"]) + ": "
        if s[f"action_{i}"] == "Finish":
            break
        s += select(f"river_{i}", list(FACTS))
        s += f"\nObservation {i}: {FACTS[s[f'river_{i}']]}\n"
    else:
        s += "Finish: "
    s += gen("answer", 16, stop="\n")


def main() -> list[State]:
    states: list[State] = react.run_batch([{"question": question} for question in QUESTIONS], temperature=0)
    for question, state in zip(QUESTIONS, states, strict=True):
        print(question, state["answer"])
    return states


if __name__ == "__main__":
    show(main)
