"""Builds the tokenizer a GGUF file describes in its metadata: byte-level BPE (``gpt2``) or SentencePiece BPE (``llama``)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from radixrt.errors import ConfigError
from radixrt.gguf_header import read_metadata
from radixrt.text.library_tokenizer import SPACE_MARK, LibraryTokenizer, byte_level_bytes, space_marked_bytes

logger = logging.getLogger(__name__)

# Instruction-tuned files often name only the end of text as eos; these control tokens end a turn as well.
_TURN_ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<|return|>", "<EOT>")
)


class _TokenType(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Split:
    """How text is cut into pieces before pairs are merged, and what else goes with the name of a pre-tokenizer.

    patterns: applied one after the other, each match a piece.  digits: each digit a piece.  words: GPT-2's pattern last.
    whole_words: a piece that is a token needs no merges.  add_bos: unless the file says otherwise.  compose: NFC first.
    """

    patterns: tuple[str, ...] = ()
    words: bool = False
    digits: bool = False
    whole_words: bool = False
    add_bos: bool = False
    compose: bool = False


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"

_GPT2 = _Split(words=True)
_DIGITS = _Split(digits=True, words=True)
_LLAMA3_PATTERN = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_LLAMA3 = _Split((_LLAMA3_PATTERN,), whole_words=True, add_bos=True)
_CL100K = _Split((_LLAMA3_PATTERN,))
_QWEN2_PATTERN = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN2 = _Split((_QWEN2_PATTERN,), compose=True)
_QWEN35 = _Split(
    (rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",),
    compose=True,
)
_TEKKEN = _Split((rf"{_CASED.replace('{0}', '')}|\p{{N}}|{_TAIL_SLASH}",), whole_words=True, add_bos=True)
_O200K = _Split((rf"{_CASED.replace('{0}', _ENDINGS + '?')}|\p{{N}}{{1,3}}|{_TAIL_SLASH}",))
_DEEPSEEK_CODER = _Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"))
_DEEPSEEK3 = _Split(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)

_SPLITS: dict[str, _Split] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "trillion", "roberta-bpe"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN2),
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
}


def load_gguf(path: Path) -> LibraryTokenizer:
    """Build the tokenizer of a GGUF file.

    Raises ConfigError for a broken file and for a vocabulary that is neither ``gpt2`` nor ``llama``.
    """
    return build_gguf(read_metadata(path), name=path.name)


def build_gguf(metadata: Mapping[str, Any], *, name: str) -> LibraryTokenizer:
    """Build the tokenizer that GGUF metadata describes; ``name`` is for messages."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ConfigError(f"{name} holds no tokenizer; give --tokenizer-path")
    types = metadata.get("tokenizer.ggml.token_type") or [_TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ConfigError(f"{name}: {len(tokens)} tokens but {len(types)} token types")
    space_prefix = False
    try:
        if kind == "gpt2":
            split = _split(metadata.get("tokenizer.ggml.pre", "default"))
            library, exact, add_bos = _byte_level(metadata, tokens, split), byte_level_bytes, split.add_bos
        elif kind == "llama":
            space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
            library, exact, add_bos = _space_marked(metadata, tokens, types, space_prefix=space_prefix), space_marked_bytes, True
        else:
            raise ConfigError(f"{name}: tokenizer type {kind!r} is not supported; give --tokenizer-path")
    except ConfigError:
        raise
    except Exception as error:  # the library raises plain Exception for vocabularies that do not fit together
        raise ConfigError(f"{name}: the tokenizer does not fit together: {error}") from error

    control = {tokens[i]: i for i, kind in enumerate(types) if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN)}
    added = {i for i, kind in enumerate(types) if kind == _TokenType.USER_DEFINED} | set(control.values())
    library.add_tokens([AddedToken(tokens[i], special=tokens[i] in control, normalized=False) for i in sorted(added)])
    bos, eos = (_named_token(metadata, f"tokenizer.ggml.{which}_token_id", len(tokens)) for which in ("bos", "eos"))
    before = [bos] if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", add_bos) else []
    after = [eos] if eos is not None and metadata.get("tokenizer.ggml.add_eos_token", False) else []
    if before or after:
        library.post_processor = _surround(tokens, before, after)
    turn_ends = [_named_token(metadata, f"tokenizer.ggml.{which}_token_id", len(tokens)) for which in ("eot", "eom")]
    turn_ends += [control[spelling] for spelling in control if spelling in _TURN_ENDS]
    template = metadata.get("tokenizer.chat_template")
    return LibraryTokenizer(
        library,
        [piece.encode() if i in added else exact(piece) for i, piece in enumerate(tokens)],
        special_tokens=control,
        eos_token_ids=[token for token in (eos, *turn_ends) if token is not None],
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
        chat_template=template if isinstance(template, str) else None,
        space_prefix=space_prefix,
    )


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], split: _Split) -> tokenizers.Tokenizer:
    merges = [_pair(merge) for merge in metadata.get("tokenizer.ggml.merges", ())]
    library = tokenizers.Tokenizer(models.BPE(_vocab(tokens), merges, ignore_merges=split.whole_words))
    if split.compose:
        library.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    if split.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.words))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.decoder = decoders.ByteLevel()
    return library


def _space_marked(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], *, space_prefix: bool) -> tokenizers.Tokenizer:
    vocab = _vocab(tokens)
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError("it has no score for each token")
    # SentencePiece joins the neighbours whose union scores best; as ranked merges that is every way to cut a piece in two.
    mergeable = [i for i in vocab.values() if types[i] == _TokenType.NORMAL and len(tokens[i]) > 1]
    mergeable.sort(key=lambda i: (-scores[i], i))
    merges = [
        (tokens[i][:cut], tokens[i][cut:])
        for i in mergeable
        for cut in range(1, len(tokens[i]))
        if tokens[i][:cut] in vocab and tokens[i][cut:] in vocab
    ]
    unknown = next((tokens[i] for i, kind in enumerate(types) if kind == _TokenType.UNKNOWN), None)
    model = models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=_TokenType.BYTE in types)
    library = tokenizers.Tokenizer(model)
    mark_spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    library.normalizer = normalizers.Sequence(([normalizers.Prepend(SPACE_MARK)] if space_prefix else []) + mark_spaces)
    if not any(SPACE_MARK in tokens[i].lstrip(SPACE_MARK) for i in mergeable):
        # No piece spans the start of a word, so cutting there changes nothing but the time long texts take.
        library.pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE_MARK}*[^{SPACE_MARK}]+|{SPACE_MARK}+"), "isolated")
    return library


def _split(name: str) -> _Split:
    if name not in _SPLITS:
        logger.warning("pre-tokenizer %.40r is unknown: text is cut as GPT-2 does, and prompts may tokenize differently", name)
    return _SPLITS.get(name, _GPT2)


def _vocab(tokens: Sequence[str]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for i, token in enumerate(tokens):
        vocab.setdefault(token, i)
    return vocab


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _named_token(metadata: Mapping[str, Any], key: str, vocab_size: int) -> int | None:
    token = metadata.get(key)
    return token if isinstance(token, int) and 0 <= token < vocab_size else None


def _surround(tokens: Sequence[str], before: Sequence[int], after: Sequence[int]) -> processors.TemplateProcessing:
    single = [tokens[i] for i in before] + ["$A"] + [tokens[i] for i in after]
    return processors.TemplateProcessing(single=single, special_tokens=[(tokens[i], i) for i in {*before, *after}])
