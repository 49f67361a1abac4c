"""An agent with tools, memory and a budget: an asynchronous program that waits for its tools without holding up anything.

While a tool works, other agents of the batch compute; what an agent has said so far stays in the cache for when it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from radixlang import State, assistant, function, gen, select, system, user
from report import show

STOCK = {"apples": 12, "pears": 0, "plums": 40}


async def look_up(item: str) -> str:
    """A tool that takes its time."""
    await asyncio.sleep(0.05)
    return f"there are {STOCK[item]} {item}"


async def order(item: str) -> str:
    STOCK[item] += 50
    return f"50 {item} were ordered"


TOOLS: dict[str, Callable[[str], Awaitable[str]]] = {"look_up": look_up, "order": order}


@function
async def agent(s: State, task: str, budget: int = 120) -> list[str]:
    memory: list[str] = []
    s += system("You look after a fruit shop. Tools: look_up (how much is there), order (buy more), done (you are finished).")
    s += user(task)
    for _ in range(4):
        with s.assistant():
            s += "Thought:" + gen("thought", 24, stop="\n") + "\nTool: " + select("tool", [*TOOLS, "done"])
            if await s.get("tool") != "done":
                s += " " + select("item", list(STOCK))
        if await s.get("tool") == "done" or s.usage().completion_tokens > budget:
            break
        memory.append(await TOOLS[await s.get("tool")](await s.get("item")))
        s += user(f"Result: {memory[-1]}. Known so far: {'; '.join(dict.fromkeys(memory))}. What next?")
    s += user("Report in one sentence.") + assistant(gen("report", 32, stop="\n"))
    return memory


def main() -> list[State]:
    tasks = [f"Make sure that we have {item}." for item in STOCK]
    return list(agent.run_batch([{"task": task} for task in tasks], temperature=0))


if __name__ == "__main__":
    show(main)
