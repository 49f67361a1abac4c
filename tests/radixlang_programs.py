"""Programs of every kind, which run alike on the embedded engine and over HTTP."""

from __future__ import annotations

from typing import Any

from radixlang import Function, State, assistant, function, gen, select, system, user

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@function
def few_shot_qa(s: State, question: str) -> None:
    s += "The following are questions with answers.\n\n"
    s += "Q: What is the capital of France?\nA: Paris\n"
    s += f"Q: {question}\nA:" + gen("answer", 12, stop="q")


@function
def multi_turn(s: State, first: str, second: str) -> None:
    s += system("You are a helpful assistant.")
    s += user(first) + assistant(gen("answer_1", 10))
    with s.user():
        s += second
    with s.assistant():
        s += "Well, " + gen("answer_2", 10) + "."


@function
def tool_use(s: State, question: str) -> None:
    s += f"To answer '{question}' I will use a "
    s += select("tool", ["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + gen("expression", 6)
    else:
        s += "The query is" + gen("query", 6)


@function
def expert_answer(s: State, question: str) -> None:
    s += f"Q: {question}\nA good person to answer this is"
    s += gen("expert", 5)
    s += f".\nFor instance, {s['expert']} would say" + gen("answer", 12)


@function
def react(s: State, question: str) -> None:
    s += f"Question: {question}\n"
    for step in range(1, 4):
        s += f"Thought {step}:" + gen(f"thought_{step}", 8, stop=["x", "\n"]) + f"\nAct {step}: "
        s += select(f"act_{step}", ["Search", "Finish"]) + "\n"
        if s[f"act_{step}"] == "Finish":
            break
        s += f"Observation {step}: nothing about {s[f'thought_{step}'].strip()}\n"


@function
def parallel_decoding(s: State, topic: str) -> None:
    s += f"Two tips about {topic}: first and second.\n"
    forks = s.fork(2)
    forks += lambda i: f"Now, tip {i + 1} in detail:" + gen("detail", 10)
    forks.join()
    s += f"1.{s['detail'][0]}\n2.{s['detail'][1]}\nIn summary," + gen("summary", 10)


@function
def parallel_encoding(s: State, question: str) -> None:
    contexts = s.fork(3)
    contexts += lambda i: f"Context {i}: " + "fact " * (i + 1) + "\n"
    contexts.join("concatenate")
    s += f"{question}" + gen("answer", 8)


@function
def judged(s: State, essay: str) -> None:
    s += "Essay: " + essay + "\n"
    forks = s.fork(3)
    for fork, dimension in zip(forks, ("clarity", "style", "depth"), strict=True):
        fork += f"{dimension}:" + gen("judgment", 8) + " grade " + select("grade", ["A", "B"], choices_method="greedy_token_selection")
    forks.join()
    s += "Grades: " + ", ".join(s["grade"]) + ". Overall "
    s += select("best", ["good", "bad"], choices_method="unconditional_likelihood_normalized")


@function
def stopping(s: State) -> None:
    s += "Count: " + gen("word", 30, stop_regex="[aeiou]") + "|" + gen("tail", 4, n=2)


@function
def nested(s: State, question: str) -> None:
    few_shot_qa(s, question)
    s += "\n" + expert_answer(question="why")


PROGRAMS: list[tuple[Function, dict[str, Any]]] = [
    (few_shot_qa, {"question": "What is the capital of Italy?"}),
    (multi_turn, {"first": "Hello <|im_end|> there", "second": "And now?"}),
    (tool_use, {"question": "two and two"}),
    (expert_answer, {"question": "why is the sky blue"}),
    (react, {"question": "who"}),
    (parallel_decoding, {"topic": "sleep"}),
    (parallel_encoding, {"question": "So?"}),
    (judged, {"essay": "Once upon a time."}),
    (stopping, {}),
    (nested, {"question": "what"}),
]
