"""A run or a trace as one page without scripts: every token in the colour of where it came from, branches where it forked.

The tree on the page is the radix tree of the run: what several requests share stands there once.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixlang.backends.tokens import TokenBackend
from radixlang.piece import Piece, walk
from radixlang.run import Run
from radixlang.state import State

if TYPE_CHECKING:
    from radixlang.trace import Trace

# Origins, the strongest last: a token that a request of the run computed was not in the cache before, whoever found it later.
ORIGINS = {
    "cache": "text of the program that was cached before", "constant": "text of the program", "argument": "argument",
    "model": "written freely by the model", "grammar": "written under a grammar, or chosen",
}  # fmt: skip
_RANK = {origin: i for i, origin in enumerate(ORIGINS)}
# Deeper branches are drawn without further indentation of their own.
MAX_DEPTH = 60


@dataclass(slots=True)
class Token:
    """One token on the page; ``label`` is the variable that begins there."""

    text: str
    origin: str
    label: str | None = None
    children: dict[Hashable, Token] = field(default_factory=dict)


Spelled = tuple[Hashable, str]


async def run_page(run: Run) -> str:
    """Return the page of a run, with what its branches are still writing: it is waited for."""
    await asyncio.gather(*map(asyncio.wrap_future, list(run.tasks)), return_exceptions=True)
    root = Token("", "constant")
    for piece in run.pieces:
        prompt = await _prompt(run, piece.before)
        # Where a backend does not count, what other requests of the run have is no news.
        cached = piece.answers[0].meta.get("cached_tokens", _known(root, prompt))
        at = root
        for i, token in enumerate(prompt):
            at = _grow(at, token, "cache" if i < cached else "constant")
        for answer in piece.answers:
            written = await _written(run, piece, answer.tokens, prompt, answer.text)
            end = at
            for i, token in enumerate(written):
                ruled = piece.kind == "select" or (piece.sampling is not None and piece.sampling.constrained)
                end = _grow(end, token, "grammar" if ruled else "model", piece.name if i == 0 else None)
    usage = run.usage()
    facts = {
        "requests": len(run.pieces), "prompt tokens": usage.prompt_tokens, "from the cache": f"{usage.hit_rate:.0%}",
        "tokens written": usage.completion_tokens,
    }  # fmt: skip
    return _page(run.program.name, facts, root)


async def _prompt(run: Run, before: Piece | None) -> Sequence[Spelled]:
    if isinstance(run.backend, TokenBackend):
        return await run.backend.prompt_tokens(before)
    return _words("".join(_shown(piece) for piece in walk(before)))


async def _written(run: Run, piece: Piece, tokens: Sequence[int], prompt: Sequence[Spelled], text: str) -> Sequence[Spelled]:
    if not isinstance(run.backend, TokenBackend):
        return _words(text)
    if piece.kind == "select":
        whole = await run.backend.prompt_tokens(piece)
        same = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), min(len(prompt), len(whole)))
        return whole[same:]
    return await run.backend.spelled(tokens)


def trace_page(trace: Trace) -> str:
    """Return the page of a trace: its text, its arguments, and the places of what will be written."""
    root = Token("", "constant")
    _grow_state(root, trace, trace.states[0])
    facts = {"states": len(trace.states), "variables": ", ".join(trace.variables) or "none"}
    if trace.stopped:
        facts["stopped"] = trace.stopped
    return _page(trace.name, facts, root)


def _grow_state(at: Token, trace: Trace, state: State) -> None:
    from radixlang.trace import marks

    for piece in walk(state._last, state._first):
        if piece.kind in ("gen", "select"):
            at = _grow(at, (id(piece), f" {piece.name or piece.kind} "), "model" if piece.kind == "gen" else "grammar", piece.kind)
            continue
        for i, part in enumerate(marks(_shown(piece))):
            if part:
                at = _grow(at, ((id(piece), i), f"{{{part}}}" if i % 2 else part), "argument" if i % 2 else "constant")
    for child in trace.children(state):
        branch = _grow(at, (id(child), ""), "constant")
        _grow_state(branch, trace, child)


def _shown(piece: Piece) -> str:
    return f"{piece.role}: " if piece.kind == "begin" else "\n" if piece.kind == "end" else piece.text


def _words(text: str) -> list[Spelled]:
    return [(word, word) for word in re.findall(r"\s*\S+|\s+", text)]


def _grow(at: Token, token: Spelled, origin: str, label: str | None = None) -> Token:
    key, text = token
    child = at.children.get(key)
    if child is None:
        child = at.children[key] = Token(text, origin, label)
    elif _RANK[origin] > _RANK[child.origin]:
        child.origin = origin
    child.label = child.label or label
    return child


def _known(root: Token, tokens: Sequence[Spelled]) -> int:
    """How many leading tokens the tree has already."""
    at, known = root, 0
    while known < len(tokens) and (child := at.children.get(tokens[known][0])) is not None:
        at, known = child, known + 1
    return known


def _count(root: Token) -> Counter[str]:
    counts: Counter[str] = Counter()
    left = list(root.children.values())
    while left:
        token = left.pop()
        counts[token.origin] += bool(token.text)
        left.extend(token.children.values())
    return counts


def _stretch(token: Token) -> tuple[str, Token]:
    """Return the tokens from one to the next fork, written out, and the last of them."""
    parts = []
    while True:
        if token.label is not None:
            parts.append(f'<b class="var">{html.escape(token.label)}</b>')
        if token.text:
            text = html.escape(token.text).replace("\n", '<i class="nl">↵</i>\n')
            parts.append(f'<span class="{token.origin}" title="{ORIGINS[token.origin]}">{text}</span>')
        if len(token.children) != 1:
            return "".join(parts), token
        (token,) = token.children.values()


def _tree(token: Token, depth: int = 0) -> Iterable[str]:
    text, last = _stretch(token)
    yield f'<div class="text">{text}</div>'
    children = last.children.values()
    if children:
        yield f'<div class="forks{" deep" if depth > MAX_DEPTH else ""}">'
        for i, child in enumerate(children):
            yield f'<div class="fork"><span class="number">{i + 1}/{len(children)}</span>'
            yield from _tree(child, depth + 1)
            yield "</div>"
        yield "</div>"


def _page(title: str, facts: dict[str, object], root: Token) -> str:
    counts = _count(root)
    total = sum(counts.values()) or 1
    shown = [origin for origin in ORIGINS if counts[origin]]
    bar = "".join(f'<span class="{origin}" style="flex:{counts[origin]}" title="{counts[origin]}"></span>' for origin in shown)
    legend = "".join(
        f'<li><span class="swatch {origin}"></span><b>{counts[origin]}</b> {html.escape(ORIGINS[origin])} '
        f"<small>{counts[origin] / total:.0%}</small></li>"
        for origin in shown
    )
    told = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd></div>" for name, value in facts.items())
    body = "".join(_tree(root))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)} · radixlang</title><style>{_STYLE}</style><main><header><h1>{html.escape(title)}</h1>"
        f'<dl>{told}</dl></header><div class="bar">{bar}</div><ul class="legend">{legend}</ul>{body}</main></html>'
    )


_STYLE = """
:root{--page:#fbfaf8;--ink:#22252b;--faint:#80858f;--line:#d9d6cf;--card:#fff;
--cache:#d3e3f7;--constant:#e9e7e2;--argument:#f9e2b4;--model:#cdebc9;--grammar:#e5d3f5}
@media(prefers-color-scheme:dark){:root{--page:#17191d;--ink:#e4e4e2;--faint:#8b909a;--line:#363a42;--card:#1e2126;
--cache:#23405f;--constant:#33363c;--argument:#5a4517;--model:#25502b;--grammar:#4a3262}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:32px 28px 64px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:8px 40px;margin-bottom:18px}
h1{font-size:26px;font-weight:650;letter-spacing:-.01em;margin:0}
dl{display:flex;flex-wrap:wrap;gap:4px 28px;margin:0}dl div{display:flex;gap:7px;align-items:baseline}
dt{color:var(--faint);font-size:13px}dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums}
.bar{display:flex;gap:2px;height:12px;border-radius:6px;overflow:hidden}.bar span{min-width:3px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 24px;padding:0;margin:10px 0 26px;font-size:13px}
.legend small{color:var(--faint)}.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:7px;vertical-align:-1px}
.text{font:13px/1.85 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.text span{border-radius:3px;padding:2px 0;box-shadow:inset -1px 0 var(--page)}
.cache{background:var(--cache)}.constant{background:var(--constant)}.argument{background:var(--argument)}
.model{background:var(--model)}.grammar{background:var(--grammar)}
.var{font:600 10px/1 system-ui,sans-serif;background:var(--ink);color:var(--page);border-radius:3px;padding:2px 5px;margin:0 3px;
vertical-align:2px;white-space:nowrap}
.nl{color:var(--faint);font-style:normal;opacity:.6}
.forks{margin:6px 0 0 10px;border-left:2px solid var(--line);padding-left:0}.forks.deep{margin-left:0}
.fork{position:relative;padding:7px 0 7px 54px}
.fork::before{content:"";position:absolute;left:0;top:20px;width:14px;border-top:2px solid var(--line)}
.number{position:absolute;left:19px;top:11px;font-size:11px;color:var(--faint);font-variant-numeric:tabular-nums}
""".replace("\n", "")
