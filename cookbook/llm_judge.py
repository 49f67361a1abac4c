"""A judge by branch, solve and merge: an essay is judged in several respects at once, and the judgments are merged into a verdict.

Every branch shares the essay; run over a batch, all essays share the instructions, which are cached before the batch starts.
"""

from __future__ import annotations

from radixlang import State, assistant, function, gen, select, system, user
from report import show

RESPECTS = ("clarity", "originality", "evidence")
ESSAYS = (
    "Cats are better than dogs because cats are quiet. My neighbour's dog barks all night. Nobody has ever been woken by a cat.",
    "Cities should plant trees. Trees cool streets by several degrees, slow down rain water, and make people walk more.",
    "Homework is bad. It is bad because it is homework, and homework is never good.",
)


@function
def judge(s: State, essay: str) -> None:
    s += system("You judge short essays strictly and fairly. You give reasons first and then a grade from A (excellent) to D (poor).")
    s += user(f"Essay: {essay}\nRead it carefully. I will ask about one respect at a time.")
    s += assistant("I have read it.")
    branches = s.fork(len(RESPECTS))
    for respect, branch in zip(RESPECTS, branches, strict=True):
        branch += user(f"How is its {respect}?")
        branch += assistant(gen("reason", 32, stop="\n") + "\nGrade: " + select("grade", ["A", "B", "C", "D"]))
    branches.join()
    grades = ", ".join(f"{respect} {grade}" for respect, grade in zip(RESPECTS, s["grade"], strict=True))
    s += user(f"The grades are: {grades}. Give the essay one grade.")
    s += assistant("Overall grade: " + select("overall", ["A", "B", "C", "D"]))


def main() -> list[State]:
    states: list[State] = judge.run_batch([{"essay": essay} for essay in ESSAYS], temperature=0)
    for essay, state in zip(ESSAYS, states, strict=True):
        print(f"{state['overall']} ({', '.join(state['grade'])}): {essay[:60]}…")
    return states


if __name__ == "__main__":
    show(main)
