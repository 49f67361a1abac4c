"""The workloads: seeded families of programs with the shapes of those that SGLang's paper, its benchmarks and agents run.

Token ids are random, so nothing is shared but what the shape says.  Lengths are in tokens; where a published benchmark
gives one it is used.  ``scale`` multiplies the number of programs, never their shape.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from radixrt.bench.program import Call, Output, Program, Tokens, Workload
from radixrt.errors import ConfigError

# Pools that people have: Llama-7B on a 24 GB card, as in SGLang's paper; Llama-3-8B there; and Llama-3-8B on a 48 GB card.
# A workload takes the smallest that holds what its programs come to while they run.
SMALL_POOL = 16_384
MEDIUM_POOL = 65_536
LARGE_POOL = 262_144
# Ids below are left to special tokens.
FIRST_TOKEN = 64


class Source:
    """Everything random about a workload, a function of its name and seed."""

    def __init__(self, name: str, seed: int, vocab_size: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64([seed, *name.encode()]))
        self._vocab_size = vocab_size

    def tokens(self, count: int) -> Tokens[int]:
        """New text of ``count`` tokens."""
        return array("i", self._rng.integers(FIRST_TOKEN, self._vocab_size, count, dtype=np.int32).tobytes())

    def about(self, mean: int) -> int:
        """A length between half and one and a half of ``mean``."""
        return self.between(math.ceil(mean / 2), mean + mean // 2)

    def between(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def wait(self, mean: float) -> float:
        """Seconds, exponentially distributed."""
        return float(self._rng.exponential(mean))

    def arrivals(self, count: int, rate: float) -> list[float]:
        """Start times of a Poisson process of ``rate`` a second."""
        return np.cumsum(self._rng.exponential(1 / rate, count)).tolist()  # type: ignore[no-any-return]

    def popular(self, count: int, num: int, exponent: float = 1.0) -> list[int]:
        """``num`` different ones out of ``count``, chosen with Zipf's frequencies."""
        weights = 1.0 / np.arange(1, count + 1) ** exponent
        return self._rng.choice(count, num, replace=False, p=weights / weights.sum()).tolist()  # type: ignore[no-any-return]

    def shuffled(self, programs: Sequence[Program]) -> list[Program]:
        return [programs[i] for i in self._rng.permutation(len(programs))]


def mmlu(source: Source, scale: float) -> Workload:
    """Five-shot multiple choice: the examples of a subject before each of its questions, one token out."""
    header = source.tokens(24)
    programs = []
    for _ in range(_count(32, scale)):
        shots = header + source.tokens(5 * source.about(100))
        programs += [Program((Call((shots, source.tokens(source.about(90))), 1),)) for _ in range(24)]
    return Workload("mmlu", source.shuffled(programs), SMALL_POOL)


def hellaswag(source: Source, scale: float) -> Workload:
    """Twenty-shot select: four endings of each context are scored."""
    shots = source.tokens(20 * 90)
    programs = []
    for _ in range(_count(200, scale)):
        context = source.tokens(source.about(60))
        programs.append(Program(tuple(Call((shots, context, source.tokens(source.about(25))), 1) for _ in range(4))))
    return Workload("hellaswag", programs, SMALL_POOL)


def react(source: Source, scale: float) -> Workload:
    """Agents that think, call a tool, and read what it says, after the same examples."""
    examples = source.tokens(1400)
    programs = [
        Program(_turns(source, examples + source.tokens(source.about(40)), source.between(4, 7), ask=80, answer=60, gap=0.5))
        for _ in range(_count(100, scale))
    ]
    return Workload("react", programs, SMALL_POOL, parallel=32)


def generative_agents(source: Source, scale: float) -> Workload:
    """A town of 25 agents: short calls through ten templates, each with a persona and what just happened."""
    templates = [source.tokens(source.about(300)) for _ in range(10)]
    personas = [source.tokens(150) for _ in range(25)]
    programs = []
    for _ in range(_count(60, scale)):
        persona = personas[source.between(0, 24)]
        calls: list[Call] = []
        for step in range(10):
            template = templates[source.popular(10, 1)[0]]
            after = (step - 1,) if step else ()
            calls.append(Call((template, persona, source.tokens(source.about(80))), source.about(30), limit=64, after=after))
        programs.append(Program(tuple(calls)))
    return Workload("generative-agents", programs, MEDIUM_POOL, parallel=25)


def tree_of_thought(source: Source, scale: float) -> Workload:
    """Two proposals a node, three levels deep, then one answer from every leaf."""
    shots = source.tokens(600)
    programs = []
    for _ in range(_count(60, scale)):
        calls: list[Call] = []
        level: list[tuple[Tokens[int] | Output, ...]] = [(shots, source.tokens(source.about(110)))]
        for _ in range(3):
            below: list[tuple[Tokens[int] | Output, ...]] = []
            for prompt in level:
                for _ in range(2):
                    below.append((*prompt, Output(len(calls)), source.tokens(30)))
                    calls.append(Call(prompt, source.about(80), limit=256))
            level = below
        calls += [Call(prompt, source.about(40), limit=256) for prompt in level]
        programs.append(Program(tuple(calls)))
    return Workload("tree-of-thought", programs, SMALL_POOL, parallel=16)


def skeleton_of_thought(source: Source, scale: float) -> Workload:
    """A skeleton first, then all its points at once, then the whole."""
    instructions, expand, join = source.tokens(250), source.tokens(120), source.tokens(40)
    programs = []
    for _ in range(_count(80, scale)):
        question = source.tokens(source.about(40))
        points = source.between(5, 9)
        opening: tuple[Tokens[int] | Output, ...] = (instructions, question, Output(0), expand)
        calls = [Call((instructions, question), source.about(60), limit=128)]
        calls += [Call((*opening, source.tokens(12)), source.about(60), limit=128) for _ in range(points)]
        calls.append(Call((*opening, *(Output(1 + i) for i in range(points)), join), source.about(80), limit=256))
        programs.append(Program(tuple(calls)))
    return Workload("skeleton-of-thought", programs, SMALL_POOL, parallel=32)


def llm_judge(source: Source, scale: float) -> Workload:
    """Branch, solve, merge: an essay is judged in six dimensions, and the judgements are summed up."""
    instructions = source.tokens(180)
    dimensions = [source.tokens(35) for _ in range(6)]
    programs = []
    for _ in range(_count(80, scale)):
        essay = source.tokens(source.about(500))
        calls = [Call((instructions, essay, dimension), source.about(80), limit=256) for dimension in dimensions]
        calls.append(Call((instructions, essay, *(Output(i) for i in range(6)), source.tokens(30)), source.about(50), limit=256))
        programs.append(Program(tuple(calls)))
    return Workload("llm-judge", programs, SMALL_POOL, parallel=32)


def json_extraction(source: Source, scale: float) -> Workload:
    """One schema with its instructions, many documents."""
    schema = source.tokens(700)
    programs = [
        Program((Call((schema, source.tokens(source.about(350))), source.about(120), limit=256),)) for _ in range(_count(256, scale))
    ]
    return Workload("json-extraction", programs, SMALL_POOL, parallel=64)


def multi_turn_short(source: Source, scale: float) -> Workload:
    """Four turns of 256-512 tokens, answers of 4-8."""
    return _chat("multi-turn-short", source, _count(96, scale), (4, 8))


def multi_turn_long(source: Source, scale: float) -> Workload:
    """Four turns of 256-512 tokens, answers of 256-512."""
    return _chat("multi-turn-long", source, _count(48, scale), (256, 512))


def _chat(name: str, source: Source, num_programs: int, answer: tuple[int, int]) -> Workload:
    system = source.tokens(64)
    programs = []
    for _ in range(num_programs):
        parts: tuple[Tokens[int] | Output, ...] = (system,)
        calls: list[Call] = []
        for turn in range(4):
            parts = (*parts, source.tokens(source.between(256, 512)))
            calls.append(Call(parts, source.between(*answer), limit=answer[1]))
            parts = (*parts, Output(turn))
        programs.append(Program(tuple(calls)))
    return Workload(name, programs, MEDIUM_POOL, parallel=16)


def rag(source: Source, scale: float) -> Workload:
    """Retrieval in two hops: a query is written, and then answered over three passages, of which some are popular."""
    demonstrations, answering = source.tokens(400), source.tokens(350)
    passages = [source.tokens(source.about(140)) for _ in range(500)]
    programs = []
    for _ in range(_count(300, scale)):
        question = source.tokens(source.about(30))
        found = [passages[i] for i in source.popular(len(passages), 3)]
        calls = (
            Call((demonstrations, question), source.about(25), limit=64),
            Call((answering, *found, question, Output(0)), source.about(60), limit=128, gap=0.05),
        )
        programs.append(Program(calls))
    return Workload("rag", programs, MEDIUM_POOL, parallel=48)


def generated_shared_prefix(source: Source, scale: float) -> Workload:
    """SGLang's: 64 groups of 16 prompts, 2,048 tokens of system prompt and 128 of question, 256 out, shuffled, all at once."""
    programs = []
    for _ in range(_count(64, scale)):
        system = source.tokens(2048)
        programs += [Program((Call((system, source.tokens(128)), 256),)) for _ in range(16)]
    return Workload("generated-shared-prefix", source.shuffled(programs), SMALL_POOL)


def bench_multiturn(source: Source, scale: float) -> Workload:
    """SGLang's HiCache benchmark: 256 clients, 5 rounds of 512 tokens in and 64 out, 128 at once."""
    count = _count(256, scale)
    programs = []
    for start in source.arrivals(count, 8.0):
        parts: tuple[Tokens[int] | Output, ...] = ()
        calls: list[Call] = []
        for turn in range(5):
            parts = (*parts, source.tokens(512))
            calls.append(Call(parts, 64))
            parts = (*parts, Output(turn))
        programs.append(Program(tuple(calls), start))
    return Workload("bench-multiturn", programs, LARGE_POOL, parallel=128)


def agentic(source: Source, scale: float) -> Workload:
    """Coding agents: a long system prompt with tools, 8-20 turns of 220 tokens, and tools that take their time."""
    system = source.tokens(6000)
    programs = []
    for start in source.arrivals(_count(24, scale), 0.5):
        first = system + source.tokens(source.about(900))
        programs.append(Program(_turns(source, first, source.between(8, 20), ask=500, answer=220, gap=2.0), start))
    return Workload("agentic", programs, LARGE_POOL)


def cold_hot(source: Source, scale: float) -> Workload:
    """The adversary of LPM: short requests on six hot prefixes, a little faster than they are served; one in twenty is cold."""
    return _cold_hot("cold-hot", source, _count(1200, scale), num_prefixes=6, rate=24.0)


def cold_hot_crowd(source: Source, scale: float) -> Workload:
    """The adversary of FCFS as well: twelve hot prefixes, more than the pool holds at once."""
    return _cold_hot("cold-hot-crowd", source, _count(1200, scale), num_prefixes=12, rate=20.0)


def _cold_hot(name: str, source: Source, num_programs: int, *, num_prefixes: int, rate: float) -> Workload:
    prefixes = [source.tokens(1500) for _ in range(num_prefixes)]
    programs = []
    for i, start in enumerate(source.arrivals(num_programs, rate)):
        if i % 20 == 10:
            call = Call((source.tokens(1200),), 16, kind="cold")
        else:
            call = Call((prefixes[source.between(0, num_prefixes - 1)], source.tokens(source.about(40))), 16, kind="hot")
        programs.append(Program((call,), start))
    return Workload(name, programs, SMALL_POOL)


WORKLOADS: Mapping[str, Callable[[Source, float], Workload]] = {
    "mmlu": mmlu,
    "hellaswag": hellaswag,
    "react": react,
    "generative-agents": generative_agents,
    "tree-of-thought": tree_of_thought,
    "skeleton-of-thought": skeleton_of_thought,
    "llm-judge": llm_judge,
    "json-extraction": json_extraction,
    "multi-turn-short": multi_turn_short,
    "multi-turn-long": multi_turn_long,
    "rag": rag,
    "generated-shared-prefix": generated_shared_prefix,
    "bench-multiturn": bench_multiturn,
    "agentic": agentic,
    "cold-hot": cold_hot,
    "cold-hot-crowd": cold_hot_crowd,
}


def build(name: str, *, seed: int = 0, scale: float = 1.0, vocab_size: int = 32_000) -> Workload:
    """Build a workload by name; the same arguments give the same programs.  Raises ConfigError for an unknown name."""
    if name not in WORKLOADS:
        raise ConfigError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    if vocab_size <= 2 * FIRST_TOKEN:
        raise ConfigError(f"a vocabulary of {vocab_size} tokens is too small for random text")
    workload = WORKLOADS[name](Source(name, seed, vocab_size), scale)
    return replace(workload, programs=tuple(workload.programs))


def _turns(source: Source, first: Tokens[int], num_turns: int, *, ask: int, answer: int, gap: float) -> tuple[Call, ...]:
    """A conversation whose every turn goes on from all before it, after a tool took its time."""
    parts: tuple[Tokens[int] | Output, ...] = (first,)
    calls: list[Call] = []
    for turn in range(num_turns):
        calls.append(Call(parts, source.about(answer), limit=2 * answer, gap=source.wait(gap) if turn else 0.0))
        parts = (*parts, Output(turn), source.tokens(source.about(ask)))
    return tuple(calls)


def _count(number: int, scale: float) -> int:
    return max(1, round(number * scale))
