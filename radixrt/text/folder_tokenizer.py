"""Reads the tokenizer of a Hugging Face folder: ``tokenizer.json`` and the small JSON files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from radixrt.errors import ConfigError
from radixrt.text.library_tokenizer import SPACE_MARK, LibraryTokenizer, byte_level_bytes, space_marked_bytes

# Ids are places in a table; one that claims more than any vocabulary has is a mistake or an attack.
MAX_TOKEN_ID = 1 << 24


def load_folder(folder: Path) -> LibraryTokenizer:
    """Load ``tokenizer.json`` with its control tokens, end tokens and chat template.

    Raises ConfigError when the folder has none, or one whose decoder is neither byte-level nor SentencePiece-like.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder.name} has no tokenizer.json; point --tokenizer-path at a folder that has one")
    content = _read_json(path)
    try:
        library = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{path.name} in {folder.name} is not a usable tokenizer: {error}") from error

    config = _read_json(folder / "tokenizer_config.json")
    named = _read_json(folder / "special_tokens_map.json") | config
    eos_token = _spelling(named.get("eos_token"))
    added = library.get_added_tokens_decoder()
    byte_level, space_prefix = _decoding(content, path)
    return LibraryTokenizer(
        library,
        _pieces(library, byte_level=byte_level),
        special_tokens={token.content: i for i, token in added.items() if token.special},
        eos_token_ids=_eos_token_ids(folder, library, eos_token),
        bos_token=_spelling(named.get("bos_token")),
        eos_token=eos_token,
        chat_template=_chat_template(folder, config),
        space_prefix=space_prefix,
    )


def _pieces(library: tokenizers.Tokenizer, *, byte_level: bool) -> list[bytes]:
    added = library.get_added_tokens_decoder()
    vocab = library.get_vocab(with_added_tokens=True)
    highest = max(vocab.values(), default=-1)
    if highest > MAX_TOKEN_ID:
        raise ConfigError(f"tokenizer.json has a token id of {highest}; the highest that is read is {MAX_TOKEN_ID}")
    pieces = [b""] * (highest + 1)
    exact = byte_level_bytes if byte_level else space_marked_bytes
    for piece, token in vocab.items():
        pieces[token] = piece.encode() if token in added else exact(piece)
    return pieces


def _decoding(content: Mapping[str, Any], path: Path) -> tuple[bool, bool]:
    """Tell whether pieces are byte-level, and whether decoding drops a leading space."""
    decoders = list(_steps(content.get("decoder"), "decoders"))
    kinds = {step.get("type") for step in decoders}
    if "ByteLevel" in kinds | {step.get("type") for step in _steps(content.get("pre_tokenizer"), "pretokenizers")}:
        return True, False
    marks = any(step.get("pattern") == {"String": SPACE_MARK} for step in decoders)
    if not marks and not kinds & {"Metaspace", "ByteFallback"}:
        raise ConfigError(f"{path.parent.name}: the decoder {sorted(filter(None, kinds))} of its tokenizer.json is not supported")
    strips = any(step.get("type") == "Strip" and step.get("start", 0) > 0 for step in decoders)
    prefixes = any(step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in decoders)
    return False, strips or prefixes


def _steps(part: Mapping[str, Any] | None, plural: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part.get("type") == "Sequence":
        for step in part.get(plural, ()):
            yield from _steps(step, plural)
    else:
        yield part


def _eos_token_ids(folder: Path, library: tokenizers.Tokenizer, eos_token: str | None) -> list[int]:
    declared = _read_json(folder / "generation_config.json").get("eos_token_id")
    if declared is None:
        declared = _read_json(folder / "config.json").get("eos_token_id")
    ids = declared if isinstance(declared, list) else [declared]
    ids = [*ids, library.token_to_id(eos_token) if eos_token else None]
    return [token for token in ids if isinstance(token, int)]


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _spelling(token: Any) -> str | None:
    """A named token is a string, or an object with its ``content``."""
    spelling = token.get("content") if isinstance(token, dict) else token
    return spelling if isinstance(spelling, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} in {path.parent.name} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name} in {path.parent.name} must hold a JSON object")
    return content
