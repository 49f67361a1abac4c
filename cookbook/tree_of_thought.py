"""Tree of thought: several plans, several ways to carry each out, a grade for every leaf, and an answer from the best one.

Branches of branches share the question, their plan and their solution with their siblings.
"""

from __future__ import annotations

from radixlang import State, assistant, function, gen, select, system, user
from report import show

QUESTION = "A farmer has 17 sheep. All but 9 run away. How many are left?"


@function
def tree_of_thought(s: State, question: str, plans: int = 2, solutions: int = 2) -> None:
    s += system("You solve problems step by step and keep every step short.")
    s += user(f"Problem: {question}\nFirst write a plan of one sentence. Do not solve the problem yet.")
    leaves: list[State] = []
    planned = s.fork(plans)
    for plan in planned:
        plan += assistant("Plan:" + gen("plan", 32, stop="\n"))
        plan += user("Now carry out the plan and end with the answer.")
        solved = plan.fork(solutions)
        for solution in solved:
            solution += assistant("Solution:" + gen("solution", 48, stop="\n\n"))
            solution += user("How sure are you that this is right, from 1 (not at all) to 5 (certain)?")
            solution += assistant(select("grade", ["1", "2", "3", "4", "5"]))
            leaves.append(solution)
    best = max(leaves, key=lambda leaf: int(leaf["grade"]))
    s += assistant(f"Plan:{best['plan']}\nSolution:{best['solution']}") + user("So what is the answer, in a few words?")
    s += assistant(gen("answer", 16, stop="\n"))


def main() -> list[State]:
    return [tree_of_thought.run(QUESTION, temperature=0.8, seed=1)]


if __name__ == "__main__":
    show(main)
