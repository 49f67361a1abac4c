"""A tokenizer backed by the ``tokenizers`` library, whatever file it was read from, with the exact bytes of each token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tokenizers

from radixrt.errors import RequestError


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, as GPT-2 defined it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()
_OUTSIDE = 0x100
# To characters below 256, which stand for themselves as bytes; what is no letter of the alphabet to one that is not.
_TO_BYTES = dict.fromkeys(range(0x100), _OUTSIDE) | {ord(char): byte for char, byte in BYTE_ALPHABET.items()}
SPACE_MARK = "\u2581"


def byte_level_bytes(piece: str) -> bytes:
    """Return the bytes a byte-level piece stands for; a piece outside the alphabet stands for itself."""
    try:
        return piece.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


def space_marked_bytes(piece: str) -> bytes:
    """Return the bytes of a SentencePiece-style piece: ``<0x0A>`` is a byte, the space mark a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            return piece.encode()
    return piece.replace(SPACE_MARK, " ").encode()


class LibraryTokenizer:
    """Implements ``Tokenizer``.

    Args:
        library: the configured tokenizer; truncation and padding are switched off.
        pieces: the bytes of every token id, empty where the vocabulary has a hole.
        special_tokens: spelling to id of the control tokens.
        eos_token_ids: tokens that end an answer, the model's own first.
        space_prefix: whether encoding writes a space before a text, which decoding a whole text drops again.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        pieces: Sequence[bytes],
        *,
        special_tokens: Mapping[str, int],
        eos_token_ids: Iterable[int] = (),
        bos_token: str | None = None,
        eos_token: str | None = None,
        chat_template: str | None = None,
        space_prefix: bool = False,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._plain = _plain_twin(library)
        self._pieces = list(pieces)
        self._special_ids = frozenset(special_tokens.values())
        self.special_tokens = dict(special_tokens)
        self.vocab_size = len(self._pieces)
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.chat_template = chat_template
        self.space_prefix = space_prefix

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        require_unicode(text)
        library = self._library if allow_special else self._plain
        # The batch call releases the GIL and tracks no offsets, unlike the single call.
        ids: list[int] = library.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.vocab_size else b""

    def is_special(self, token: int) -> bool:
        return token in self._special_ids

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        skipped = self._special_ids if skip_special_tokens else frozenset()
        text = b"".join([self.token_bytes(token) for token in tokens if token not in skipped]).decode(errors="replace")
        return text[1:] if self.space_prefix and text.startswith(" ") else text


def require_unicode(text: str) -> None:
    """Raise RequestError for a text with lone surrogates, which stand for no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is not valid Unicode: lone surrogate at character {error.start}", code="invalid_unicode") from error


def _plain_twin(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer that reads the spelling of a control token as ordinary text.

    A switch of the library does that, but for all threads at once, hence a second object; the model is shared.
    """
    twin = tokenizers.Tokenizer(library.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(library, part) is not None:
            setattr(twin, part, getattr(library, part))
    added = library.get_added_tokens_decoder()
    twin.add_tokens([added[token] for token in sorted(added)])
    if twin.get_added_tokens_decoder() != added:  # ids with holes can only be restored by a full copy
        twin = tokenizers.Tokenizer.from_str(library.to_str())
    twin.encode_special_tokens = True
    return twin
