"""``radixrt top``: who runs, who waits, and what the cache does, once a second in the terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from radixrt.terminal.remote import Remote

BAR_WIDTH = 60
ROWS = 15


def watch(remote: Remote, console: Console, *, interval: float = 1.0, rounds: int | None = None) -> None:
    """Show a server until interrupted, or for some rounds.  Raises RadixrtError when it does not answer."""
    with Live(console=console, auto_refresh=False, screen=console.is_terminal and rounds is None) as live:
        shown = 0
        while True:
            live.update(picture(remote), refresh=True)
            shown += 1
            if rounds is not None and shown >= rounds:
                return
            time.sleep(interval)


def picture(remote: Remote) -> RenderableType:
    """Return what there is to see now."""
    info = remote.call("/server_info")
    requests = remote.call(f"/v1/requests?limit={ROWS}")
    tree = remote.call(f"/v1/cache/tree?depth=4&limit={ROWS}")
    return Group(_head(info), _pool(info["stats"], info["max_total_num_tokens"]), _requests(requests), _tree(tree))


def _head(info: dict[str, Any]) -> RenderableType:
    stats = info["stats"]
    prompt = stats["prompt_tokens"]
    rate = f"{stats['cached_prompt_tokens'] / prompt:.1%}" if prompt else "-"
    line = (
        f"{info['served_names']}  {info['status']}  up {info['uptime_seconds']:.0f} s   hit rate {rate}   "
        f"generated {stats['generated_tokens']:,}   computed {stats['computed_tokens']:,}   evicted {stats['evicted_tokens']:,}"
    )
    return Text(line, style="bold")


def _pool(stats: dict[str, Any], capacity: int) -> RenderableType:
    """The KV pool as one bar."""
    bar = Text()
    filled = 0
    for tokens, style in ((stats["locked_tokens"], "blue"), (stats["cached_tokens"], "green")):
        width = round(BAR_WIDTH * tokens / capacity) if capacity else 0
        filled += width
        bar.append("█" * width, style=style)
    bar.append("░" * max(0, BAR_WIDTH - filled), style="dim")
    bar.append(f"  running {stats['locked_tokens']:,} · cached {stats['cached_tokens']:,} · free {stats['free_tokens']:,}")
    return bar


def _requests(view: dict[str, Any]) -> RenderableType:
    table = Table(title=f"{view['num_running']} running, {view['num_waiting']} waiting", title_justify="left", expand=False)
    for name in ("id", "state"):
        table.add_column(name)
    for name in ("prompt", "cached", "output", "s"):
        table.add_column(name, justify="right")
    rows = [(facts, "running") for facts in view["running"]] + [(facts, f"waits: {facts['waits_for']}") for facts in view["waiting"]]
    for facts, state in rows[:ROWS]:
        cached = "-" if facts["cached"] < 0 else f"{facts['cached']:,}"
        table.add_row(
            Text((facts["rid"] or "-")[:24]), state, f"{facts['prompt']:,}", cached, f"{facts['output']:,}", f"{facts['seconds']:.1f}"
        )
    return table


def _tree(view: dict[str, Any]) -> RenderableType:
    table = Table(title=f"radix tree, {view['num_nodes']} nodes down to four levels", title_justify="left", expand=False)
    for name in ("tokens", "below", "hits", "in use"):
        table.add_column(name, justify="right")
    table.add_column("begins")
    depth: dict[int, int] = {}
    for node in view["nodes"]:
        depth[node["handle"]] = 0 if node["parent"] is None else depth.get(node["parent"], 0) + 1
        text = "  " * depth[node["handle"]] + node.get("text", "").replace("\n", "⏎")
        pinned = " (pinned)" if node["pins"] else ""
        table.add_row(
            f"{node['tokens']:,}", f"{node['subtree_tokens']:,}", f"{node['hits']:,}", f"{node['locks']}{pinned}", Text(text[:60])
        )
    return table
