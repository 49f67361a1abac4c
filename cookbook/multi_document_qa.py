"""Questions about several documents: notes are taken from all documents at once, and all questions are asked about all the notes.

The documents' branches share the instructions, the questions' branches share the instructions and every note.
"""

from __future__ import annotations

from radixlang import State, function, gen
from report import show

DOCUMENTS = (
    "The Aurora is a ferry built in 1998. She carries 400 passengers and sails between Kiel and Oslo.",
    "The Borealis is a ferry built in 2011. She carries 900 passengers and sails between Kiel and Gothenburg.",
    "The Corona is a cargo ship built in 2005. She carries no passengers and sails wherever she is paid to.",
)
QUESTIONS = ("Which ship is the oldest?", "Which ship carries most passengers?", "Which ship sails to Oslo?", "Which ship is no ferry?")


@function
def multi_document_qa(s: State, documents: tuple[str, ...], questions: tuple[str, ...]) -> None:
    s += "Take short notes of each document, then answer questions from the notes alone.\n\n"
    notes = s.fork(len(documents))
    notes += lambda i: f"Document {i + 1}: {documents[i]}\nNotes:" + gen("notes", 24, stop="\n") + "\n\n"
    notes.join("concatenate")
    asked = s.fork(len(questions))
    asked += [f"Question: {question}\nAnswer:" + gen("answer", 12, stop=["\n", "."]) for question in questions]
    asked.join()


def main() -> list[State]:
    state = multi_document_qa.run(DOCUMENTS, QUESTIONS, temperature=0)
    for question, answer in zip(QUESTIONS, state["answer"], strict=True):
        print(question, answer)
    return [state]


if __name__ == "__main__":
    show(main)
