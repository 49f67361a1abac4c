"""What is asked: the seven workloads agents and their like make a server do, as lengths, shapes and concurrency."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from peers.session import Session

ORDER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 32},
        "city": {"type": "string", "maxLength": 24},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 9999},
        "priority": {"type": "string", "enum": ["low", "normal", "high"]},
        "items": {"type": "array", "items": {"type": "string", "maxLength": 24}, "minItems": 1, "maxItems": 4},
    },
    "required": ["customer", "city", "quantity", "priority", "items"],
    "additionalProperties": False,
}
ORDER_RULES = (
    "You turn a note about an order into one JSON object with the fields customer, city, quantity, priority (low, normal or high) and "
    "items. Take every value from the note, keep it short, and write nothing else. Words that mean nothing here:"
)
CUSTOMERS = ["Ada", "Bruno", "Chen", "Dana", "Emil", "Farah", "Goran", "Hana", "Igor", "Jana", "Kofi", "Lena"]
CITIES = ["Athens", "Bergen", "Cairo", "Dakar", "Geneva", "Hanoi", "Kyoto", "Lagos", "Lima", "Porto"]
ITEMS = ["blanket", "bucket", "candle", "hammer", "kettle", "ladder", "mirror", "pillow", "ribbon", "saddle"]
LEVELS = 3  # of the tree of thoughts
BRANCHES = 4


async def one_stream(session: Session) -> None:
    """W1: how fast one answer comes."""
    await session.complete(session.prompt(32), 256, exact=32)


def one_prompt(num_tokens: int) -> Callable[[Session], Awaitable[None]]:
    """W2: how soon the first token of a long cold prompt comes."""

    async def ask(session: Session) -> None:
        await session.complete(session.prompt(num_tokens), 1, exact=num_tokens)

    return ask


async def many_streams(session: Session) -> None:
    """W3: what many at once get."""

    async def ask(num_tokens: int) -> None:
        prompt = session.prompt(num_tokens)
        async with session.slots:
            await session.complete(prompt, 128, exact=num_tokens)

    await asyncio.gather(*[ask(session.words.random.randint(112, 144)) for _ in range(64)])


async def agents(session: Session) -> None:
    """W4: conversations that share a long preamble, each on its own slot from its first turn to its last."""
    system = {"role": "system", "content": session.prompt(2980)}

    async def converse() -> None:
        questions = [session.prompt(55) for _ in range(4)]
        messages = [system]
        async with session.slots:
            for turn, question in enumerate(questions, 1):
                messages.append({"role": "user", "content": question})
                answer = await session.chat(messages, 40, kind=f"turn {turn}")
                if answer.error:
                    return
                messages.append({"role": "assistant", "content": answer.text})

    await asyncio.gather(*[converse() for _ in range(32)])


async def thoughts(session: Session) -> None:
    """W5: a tree in which every text goes on in four ways."""
    root = session.prompt(1500)
    labels = [session.more(3) for _ in range(BRANCHES)]

    async def grow(text: str, level: int) -> None:
        async with session.slots:
            answer = await session.complete(text, 24, kind=f"level {level}")
        if level < LEVELS and not answer.error:
            await asyncio.gather(*[grow(text + answer.text + label, level + 1) for label in labels])

    await asyncio.gather(*[grow(root + label, 1) for label in labels])


def extractions(schema: Any) -> Callable[[Session], Awaitable[None]]:
    """W6: notes under shared rules, each to one JSON object."""

    async def ask_all(session: Session) -> None:
        rules = {"role": "system", "content": session.words.fill(ORDER_RULES, session.length(800))}
        choose = session.words.random.choice

        async def ask() -> None:
            note = (
                f"{choose(CUSTOMERS)} from {choose(CITIES)} orders {session.words.random.randint(2, 99)} pieces of {choose(ITEMS)} and "
                f"{choose(ITEMS)}; priority {choose(['low', 'normal', 'high'])}. Also heard: {session.more(40)}."
            )
            async with session.slots:
                await session.chat([rules, {"role": "user", "content": note}], 160, schema=schema, to_end=True)

        await asyncio.gather(*[ask() for _ in range(24)])

    return ask_all


async def preambles(session: Session) -> None:
    """W7: more preambles than a small pool holds, in random order; the pool is the server's to set."""
    texts = [session.prompt(1500) for _ in range(24)]
    order = [text for text in texts for _ in range(4)]
    session.words.random.shuffle(order)

    async def ask(prompt: str) -> None:
        async with session.slots:
            await session.complete(prompt, 16, exact=None)

    await asyncio.gather(*[ask(text + session.more(20)) for text in order])


def is_order(text: str) -> bool:
    """Tell whether an answer of W6 is what the schema says."""
    try:
        order = json.loads(text)
    except ValueError:
        return False
    if not isinstance(order, dict) or set(order) != set(ORDER_SCHEMA["required"]):
        return False
    items = order["items"]
    return (
        all(isinstance(order[name], str) and len(order[name]) <= most for name, most in (("customer", 32), ("city", 24)))
        and type(order["quantity"]) is int and 0 <= order["quantity"] <= 9999
        and order["priority"] in ("low", "normal", "high")
        and isinstance(items, list) and 1 <= len(items) <= 4 and all(isinstance(item, str) and len(item) <= 24 for item in items)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """headline: the figure a workload is judged by; seconds are better when less, tokens a second when more.

    cold: nothing of it may come from a cache.
    """

    name: str
    about: str
    headline: str
    run: Callable[[Session], Awaitable[None]]
    concurrency: int = 1
    cold: bool = False
    checks: Callable[[str], bool] | None = None


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "one stream, 32 in, 256 out", "decode_tokens_s", one_stream, cold=True),
        Workload("W2", "2,048 in, 1 out", "seconds", one_prompt(2048), cold=True),
        Workload("W2b", "7,000 in, 1 out", "seconds", one_prompt(7000), cold=True),
        Workload("W3", "64 x (128 in, 128 out), 16 at a time", "output_tokens_s", many_streams, 16, cold=True),
        Workload("W4", "32 agents of 4 turns, preamble of 3,000, 8 at a time", "seconds", agents, 8),
        Workload("W5", "tree of thoughts, root of 1,500, 4 x 4 x 4, 24 out, 16 at a time", "seconds", thoughts, 16),
        Workload("W6", "24 extractions to a schema, 800 shared, 8 at a time", "seconds", extractions(ORDER_SCHEMA), 8, checks=is_order),
        Workload("W6n", "the requests of W6 without the schema", "seconds", extractions(None), 8),
        Workload("W7", "96 requests on 24 preambles of 1,500 in random order, 8 at a time", "seconds", preambles, 8),
    )
}
