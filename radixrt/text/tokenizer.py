"""What the rest of radixrt asks of a tokenizer, and ``load_tokenizer``, which picks the reader for the file at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from radixrt.errors import ConfigError
from radixrt.text.folder_tokenizer import load_folder
from radixrt.text.gguf_tokenizer import load_gguf
from radixrt.text.toy_tokenizer import ToyTokenizer


class Tokenizer(Protocol):
    """Text to token ids and back; safe to use from several threads.

    ``special_tokens`` maps the spelling of each control token to its id.  ``space_prefix``: encoding writes a space
    before a text.  Ids beyond the vocabulary, which models with padded logits can produce, stand for no bytes.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def bos_token(self) -> str | None: ...
    @property
    def eos_token(self) -> str | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_tokens(self) -> Mapping[str, int]: ...
    @property
    def space_prefix(self) -> bool: ...

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        """Return the ids of a text; RequestError for lone surrogates.

        ``add_special_tokens``: write the begin and end tokens the model wants around a text.  ``allow_special=False``:
        text that spells a control token is ordinary text.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes of a token; of a control token, its spelling."""
        ...

    def is_special(self, token: int) -> bool:
        """Tell whether a token is a control token."""
        ...

    def token_text(self, token: int) -> str:
        """Return one token as text for a person to read; lossy where a token ends inside a character."""
        ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids that start a text; invalid UTF-8 becomes U+FFFD."""
        ...


def load_tokenizer(source: Path | None) -> Tokenizer:
    """Load the tokenizer in a ``.gguf`` file or a Hugging Face folder; None is the toy's.

    Raises ConfigError when there is none, or none that radixrt can read.
    """
    if source is None:
        return ToyTokenizer()
    if source.is_dir():
        return load_folder(source)
    if source.name == "tokenizer.json":
        return load_folder(source.parent)
    if source.suffix == ".gguf" and source.exists():
        return load_gguf(source)
    raise ConfigError(f"no tokenizer at {source.name}: expected a .gguf file or a folder with tokenizer.json")
