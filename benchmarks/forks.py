"""The branching workload: one program that forks against the same requests sent one after another.

    python benchmarks/forks.py [--model-path smollm2-135m-instruct] [--branches 8] [--repeat 3]

Prints the time from start to end of both (the best of the repeats), what each computed, and how many texts agree.
"""

from __future__ import annotations

import argparse
import time

from radixlang import EngineBackend, State, function, gen

from radixrt import Engine

PREAMBLE = "Write short product texts. Be concrete, name one use, and avoid superlatives. The shop sells tools for gardens. " * 6
THINGS = ("a spade", "a rake", "a hose", "a wheelbarrow", "a pair of gloves", "a watering can", "a hedge trimmer", "a bench")
TOKENS = 32


@function
def branching(s: State, branches: int) -> None:
    s += PREAMBLE + "\nText about"
    forks = s.fork(branches)
    forks += lambda i: f" {THINGS[i % len(THINGS)]}, number {i}:" + gen("text", TOKENS)
    forks.join()
    assert len(s["text"]) == branches


def one_by_one(engine: Engine, branches: int, options: dict[str, object]) -> list[str]:
    texts = []
    for i in range(branches):
        prompt = f"{PREAMBLE}\nText about {THINGS[i % len(THINGS)]}, number {i}:"
        texts.append(engine.generate(prompt, {"max_new_tokens": TOKENS, **options})["text"])
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", default="smollm2-135m-instruct")
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    options: dict[str, object] = {"temperature": 0, "ignore_eos": True}
    with Engine(model_path=args.model_path, max_total_tokens=16_000) as engine:
        backend = EngineBackend(engine)
        best: dict[str, float] = {}
        texts: dict[str, list[str]] = {}
        for _ in range(args.repeat):
            for name in ("one by one", "forks"):
                engine.flush_cache()
                before, start = engine.stats.computed_tokens, time.perf_counter()
                if name == "forks":
                    texts[name] = branching.run(branches=args.branches, backend=backend, **options)["text"]
                else:
                    texts[name] = one_by_one(engine, args.branches, options)
                best[name] = min(best.get(name, 1e9), time.perf_counter() - start)
                print(f"{name:10}  {best[name]:6.2f} s  {engine.stats.computed_tokens - before:6} tokens computed")
        same = sum(a == b for a, b in zip(texts["forks"], texts["one by one"], strict=True))
        print(f"forks are {best['one by one'] / best['forks']:.2f}x as fast; {same} of {args.branches} texts are the same")


if __name__ == "__main__":
    main()
