"""The floors of the house: imports only go down, the islands stay apart, and nothing that runs foreign code is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
    for base, package in ((ROOT, "radixrt"), (ROOT, "radixrt_kernels"), (ROOT / "frontend", "radixlang"))
    for path in sorted((base / package).rglob("*.py"))
}

SMALL = "radixrt.samplers radixrt.limits radixrt.options"
F1 = f"{SMALL} radixrt.types radixrt.errors radixrt.config radixrt.gguf_header radixrt.processes radixrt_kernels"
F3 = f"{F1} radixrt.cache radixrt.grammar radixrt.text radixrt.batch"
F5 = f"{F3} radixrt.attention radixrt.models radixrt.weights radixrt.runner radixrt.schedule"
MAY_IMPORT = {  # besides itself
    "radixrt_kernels": "",
    "radixrt.errors": "",
    "radixrt.samplers": "radixrt.errors",
    "radixrt.types": "radixrt.errors radixrt.samplers",
    "radixrt.options": "",
    "radixrt.limits": "radixrt.errors radixrt.options",
    "radixrt.config": "radixrt.errors radixrt.types radixrt.limits radixrt.options radixrt_kernels",
    "radixrt.processes": "",
    "radixrt.gguf_header": "radixrt.errors",
    "radixrt.cache": F1,
    "radixrt.grammar": F1,
    "radixrt.text": F1,
    "radixrt.batch": F1,
    "radixrt.attention": F3,
    "radixrt.weights": F3,
    "radixrt.models": f"{F3} radixrt.attention radixrt.weights",
    "radixrt.runner": f"{F3} radixrt.attention radixrt.weights radixrt.models",
    "radixrt.schedule": f"{F1} radixrt.cache radixrt.grammar.base radixrt.grammar.bitmask radixrt.grammar.budget radixrt.batch",
    "radixrt.engine": F5,
    "radixrt.sim": f"{F5} radixrt.engine",
    "radixrt.server": f"{F5} radixrt.engine",
    "radixrt.bench": f"{F5} radixrt.engine radixrt.sim",
    "radixrt.cli": f"{F5} radixrt.engine radixrt.server radixrt.bench radixrt.settings radixrt.terminal",
    "radixrt.terminal": f"{F5} radixrt.engine",
    "radixrt.settings": "radixrt.config radixrt.errors",
    "radixrt.__main__": "radixrt.cli",
    "radixrt.launch_server": f"{F5} radixrt.engine radixrt.server radixrt.cli",
    "radixrt": f"{F5} radixrt.engine",
    "radixlang": "radixrt",
}


def unit(module: str) -> str:
    """The row of the table that a module belongs to."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "radixrt" else parts[0]


def imported(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield our modules that a source imports, also under TYPE_CHECKING, inside functions and by name in a lazy table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names if unit(alias.name) in MAY_IMPORT}
            if "radixrt" in names and only_facts_of_the_package(tree):
                names.remove("radixrt")
            yield from sorted(names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            submodules = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in SOURCES]
            if unit(base) in MAY_IMPORT:
                yield from submodules or [base]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"rad\w+(\.\w+)+(:\w+)?", node.value):
            yield from (name for name in [node.value.partition(":")[0]] if name in SOURCES)


def only_facts_of_the_package(tree: ast.AST) -> bool:
    """Whether a source uses the bare package for nothing but ``radixrt.__version__`` and the like."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "radixrt"]
    return all(node.attr.startswith("__") for node in uses)


def upward(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """The imports of a source that its floor does not allow."""
    own, allowed = unit(module), MAY_IMPORT[unit(module)].split()
    below = [name for name in allowed if name != "radixrt"] + ([own] if own != "radixrt" else [])
    exact = {"radixrt"} & {own, *allowed}
    targets = imported(ast.parse(source), module, is_package=is_package)
    return [target for target in targets if target not in exact and not any(f"{target}.".startswith(f"{name}.") for name in below)]


@pytest.mark.parametrize("module", SOURCES)
def test_imports_only_go_down(module: str) -> None:
    path = SOURCES[module]
    assert upward(module, path.read_text(), is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("radixrt.cache.prefix_cache", "from radixrt.schedule.request import Request", ["radixrt.schedule.request"]),
        ("radixrt.cache.prefix_cache", "if TYPE_CHECKING:\n    import radixrt.text.stop", ["radixrt.text.stop"]),
        ("radixrt.text.stop", "from ..grammar import base", ["radixrt.grammar"]),
        ("radixrt.schedule.scheduler", "from radixrt.grammar.base import Grammar\nfrom radixrt.batch import Batch", []),
        ("radixrt.schedule.scheduler", "def f():\n    from radixrt.runner.runner import ModelRunner", ["radixrt.runner.runner"]),
        ("radixrt.schedule.scheduler", "import radixrt.grammar.compiler", ["radixrt.grammar.compiler"]),
        ("radixrt.models.llama", "from radixrt.runner import runner", ["radixrt.runner"]),
        ("radixrt_kernels.ops", "import radixrt.errors", ["radixrt.errors"]),
        ("radixrt.engine.core", "from radixrt import Engine", ["radixrt"]),
        ("radixrt.engine.core", "import radixrt\nradixrt.Engine()", ["radixrt"]),
        ("radixrt.engine.core", "import radixrt\nprint(radixrt.__version__)", []),
        ("radixlang.ir", "from radixrt import Engine", []),
        ("radixlang.ir", "from radixrt.types import SamplingParams", ["radixrt.types"]),
    ],
)
def test_an_upward_edge_is_noticed(module: str, source: str, found: list[str]) -> None:
    assert [unit(name) for name in upward(module, source)] == [unit(name) for name in found]


def test_the_values_between_the_layers_need_no_torch() -> None:
    code = "import sys, radixrt, radixrt.types, radixrt.errors, radixrt.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "numpy.load", "np.load"}


def foreign_code(source: str) -> list[str]:
    """What a source uses that can run code out of data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name.partition(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.Call):
            found += [name for name in [ast.unparse(node.func)] if name in FORBIDDEN_CALLS]
            found += [word.arg for word in node.keywords if word.arg == "trust_remote_code" and ast.unparse(word.value) != "False"]
    return found


@pytest.mark.parametrize("module", SOURCES)
def test_no_source_runs_code_out_of_data(module: str) -> None:
    assert foreign_code(SOURCES[module].read_text()) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import pickle", 1),
        ("from dill import loads", 1),
        ("eval(text)", 1),
        ("torch.load(path, weights_only=True)", 1),
        ("AutoConfig.from_pretrained(path, trust_remote_code=True)", 1),
        ("AutoConfig.from_pretrained(path, trust_remote_code=False)\nmodel.eval()\nre.compile(text)", 0),
    ],
)
def test_code_out_of_data_is_noticed(source: str, count: int) -> None:
    assert len(foreign_code(source)) == count
