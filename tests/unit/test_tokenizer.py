"""Tokenizers from every kind of source: spelling of control tokens, exact bytes, end tokens, broken files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from radixrt.errors import ConfigError, RequestError
from radixrt.gguf_header import read_metadata
from radixrt.text.gguf_tokenizer import build_gguf
from radixrt.text.library_tokenizer import BYTE_ALPHABET, byte_level_bytes
from radixrt.text.tokenizer import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEXTS = ["", "hello", " hello  world\n", "café 日本 🫠", "a\x00b", "\ufeffx\u202e", "12 34", "it's"]


def byte_level_metadata(pieces: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary: one control token, the bytes, ``pieces`` merged of two parts, a user-defined token."""
    alphabet = sorted(BYTE_ALPHABET, key=BYTE_ALPHABET.__getitem__)
    tokens = ["<|end|>", *alphabet, *(piece.replace(" ", "") for piece in pieces), "<é>"]
    types = [CONTROL, *[NORMAL] * (len(tokens) - 2), USER_DEFINED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(pieces),
        "tokenizer.ggml.eos_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def space_marked_metadata(pieces: dict[str, float], **more: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary with byte fallback; ``pieces`` map to their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


LLAMA_PIECES = {"▁": -9.0, "h": -9.0, "e": -9.0, "l": -9.0, "o": -9.0, "he": -2.0, "ll": -1.0, "hell": -4.0, "▁hell": -3.0, "▁▁": -5.0}


def toy() -> Tokenizer:
    return load_tokenizer(None)


def byte_level() -> Tokenizer:
    return build_gguf(byte_level_metadata(("h e", "l l", "he ll")), name="test")


def space_marked() -> Tokenizer:
    return build_gguf(space_marked_metadata(LLAMA_PIECES), name="test")


@pytest.mark.parametrize("make", [toy, byte_level, space_marked])
@pytest.mark.parametrize("text", TEXTS)
def test_decoding_what_was_encoded_gives_the_text_back(make: Any, text: str) -> None:
    tokenizer = make()
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.vocab_size for token in tokens)


@pytest.mark.parametrize("make", [toy, byte_level, space_marked])
def test_spelling_of_a_control_token_is_plain_text_when_not_allowed(make: Any) -> None:
    tokenizer = make()
    for spelling, token in tokenizer.special_tokens.items():
        assert tokenizer.is_special(token)
        assert token in tokenizer.encode(f"a{spelling}b")
        plain = tokenizer.encode(f"a{spelling}b", add_special_tokens=False, allow_special=False)
        assert not any(map(tokenizer.is_special, plain))
        assert tokenizer.decode(plain) == f"a{spelling}b"


@pytest.mark.parametrize("make", [toy, byte_level, space_marked])
def test_lone_surrogate_is_the_callers_fault(make: Any) -> None:
    with pytest.raises(RequestError, match="surrogate at character 1"):
        make().encode("a\ud83d")


@pytest.mark.parametrize("make", [toy, byte_level, space_marked])
@pytest.mark.parametrize("token", [-1, 1_000_000])
def test_id_outside_the_vocabulary_has_no_text(make: Any, token: int) -> None:
    tokenizer = make()
    assert tokenizer.token_bytes(token) == b""
    assert not tokenizer.is_special(token)
    assert tokenizer.decode([token]) == ""


def test_toy_tokens_are_bytes() -> None:
    tokenizer = toy()
    assert tokenizer.encode("é<|im_end|>") == [0xC3, 0xA9, 258]
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids) == (259, (256, 258))
    assert tokenizer.decode([257, 104, 258], skip_special_tokens=False) == "<|im_start|>h<|im_end|>"


def test_byte_level_merges_in_order() -> None:
    tokenizer = byte_level()
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("hello he")] == [b"hell", b"o", b" ", b"he"]


def test_user_defined_token_is_matched_but_not_special() -> None:
    tokenizer = byte_level()
    token = tokenizer.vocab_size - 1
    assert tokenizer.encode("<é>", allow_special=False) == [token]
    assert not tokenizer.is_special(token)
    assert tokenizer.decode([token]) == "<é>"


def test_first_of_equal_tokens_is_the_one_that_counts() -> None:
    tokens = [*byte_level_metadata()["tokenizer.ggml.tokens"], "e"]
    types = [*byte_level_metadata()["tokenizer.ggml.token_type"], NORMAL]
    tokenizer = build_gguf(byte_level_metadata(tokens=tokens, token_type=types), name="test")
    assert tokenizer.encode("e") == [tokens.index("e")]
    assert tokenizer.token_bytes(len(tokens) - 1) == b"e"


def test_llama3_takes_a_whole_word_of_the_vocabulary_without_merges() -> None:
    unmerged = byte_level_metadata(("h e",), merges=[])
    whole, merged = (build_gguf(unmerged | {"tokenizer.ggml.pre": pre}, name="test") for pre in ("llama-bpe", "gpt-2"))
    assert [whole.token_bytes(token) for token in whole.encode("he")] == [b"he"]
    assert [merged.token_bytes(token) for token in merged.encode("he")] == [b"h", b"e"]


def test_qwen_composes_characters_and_gpt2_does_not() -> None:
    composing, plain = (build_gguf(byte_level_metadata(pre=pre), name="test") for pre in ("qwen2", "gpt-2"))
    assert composing.decode(composing.encode("e\u0301")) == "\u00e9"
    assert plain.decode(plain.encode("e\u0301")) == "e\u0301"


def test_space_marked_joins_the_best_score_first() -> None:
    tokenizer = space_marked()
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("hello  hell", add_special_tokens=False)] == [
        b" hell", b"o", b" ", b" hell",
    ]  # fmt: skip


def test_space_marked_text_starts_with_a_space_that_decoding_drops() -> None:
    tokenizer = space_marked()
    tokens = tokenizer.encode("hell", add_special_tokens=False)
    assert [tokenizer.token_bytes(token) for token in tokens] == [b" hell"]
    assert tokenizer.decode(tokens) == "hell"
    bare = build_gguf(space_marked_metadata(LLAMA_PIECES, add_space_prefix=False), name="test")
    assert [bare.token_bytes(token) for token in bare.encode("hell", add_special_tokens=False)] == [b"hell"]
    assert bare.decode(bare.encode(" hell")) == " hell"


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, [1]), ({"add_bos_token": False}, []), ({"add_eos_token": True}, [1, 2]), ({"add_bos_token": False, "add_eos_token": True}, [2])],
)
def test_begin_and_end_tokens_follow_the_files_flags(more: dict[str, Any], expected: list[int]) -> None:
    tokenizer = build_gguf(space_marked_metadata(LLAMA_PIECES, **more), name="test")
    assert [token for token in tokenizer.encode("hello") if tokenizer.is_special(token)] == expected
    assert not any(map(tokenizer.is_special, tokenizer.encode("hello", add_special_tokens=False)))


def test_llama3_files_begin_with_bos_unless_they_say_otherwise() -> None:
    assert build_gguf(byte_level_metadata(pre="llama-bpe", bos_token_id=0), name="test").encode("e")[0] == 0
    assert build_gguf(byte_level_metadata(pre="llama-bpe", bos_token_id=0, add_bos_token=False), name="test").encode("e")[0] != 0
    assert build_gguf(byte_level_metadata(pre="gpt-2", bos_token_id=0), name="test").encode("e")[0] != 0


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "it's 123\n  x", ["it", "'s", " 123", "\n ", " x"]),
        ("smollm", "it's 123\n  x", ["it", "'s", " ", "1", "2", "3", "\n ", " x"]),
        ("llama-bpe", "it'S 1234\n\nx", ["it", "'S", " ", "123", "4", "\n\n", "x"]),
        ("qwen2", "it's 123!\nx", ["it", "'s", " ", "1", "2", "3", "!\n", "x"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 123", ["Hello", "World's", " ", "123"]),
        ("deepseek-v3", "日本go 1234 (x", ["日本", "go", " ", "123", "4", " (", "x"]),
        ("deepseek-coder", "a b\n12", ["a", " b", "\n", "1", "2"]),
    ],
)
def test_text_is_cut_as_the_files_pre_tokenizer_says(pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = build_gguf(byte_level_metadata(pre=pre), name="test")
    cut = tokenizer._library.pre_tokenizer.pre_tokenize_str(text)  # no merges, so the tokens themselves do not show the cuts
    assert [bytes(BYTE_ALPHABET[char] for char in piece).decode() for piece, _ in cut] == pieces


def test_unknown_pre_tokenizer_is_logged_and_read_as_gpt2(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = build_gguf(byte_level_metadata(pre="never-heard-of"), name="test")
    assert "never-heard-of" in caplog.text
    assert tokenizer.decode(tokenizer.encode("it's")) == "it's"


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, (0,)), ({"eos_token_id": 5}, (5, 0)), ({"eot_token_id": 7}, (0, 7)), ({"eos_token_id": 99_999}, (0,))],
)
def test_end_tokens_of_a_gguf_file(more: dict[str, Any], expected: tuple[int, ...]) -> None:
    """``<|end|>`` is a known end of turn, whatever the file calls eos; ids out of range are ignored."""
    assert build_gguf(byte_level_metadata(**more), name="test").eos_token_ids == expected


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tokenizer.ggml.model": "gpt2"},
        byte_level_metadata() | {"tokenizer.ggml.model": "rwkv"},
        byte_level_metadata() | {"tokenizer.ggml.token_type": [1]},
        byte_level_metadata() | {"tokenizer.ggml.merges": ["h nothing"]},
        byte_level_metadata() | {"tokenizer.ggml.merges": [3]},
        space_marked_metadata({}) | {"tokenizer.ggml.scores": [0.0]},
    ],
)
def test_broken_gguf_vocabulary_is_a_config_error(metadata: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="test"):
        build_gguf(metadata, name="test")


def gguf_bytes(metadata: dict[str, Any]) -> bytes:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def typed(value: Any) -> tuple[int, bytes]:
        if isinstance(value, bool):
            return 7, struct.pack("<?", value)
        if isinstance(value, int):
            return 4, struct.pack("<I", value)
        if isinstance(value, float):
            return 6, struct.pack("<f", value)
        if isinstance(value, str):
            return 8, string(value)
        kinds = [typed(item) for item in value]
        return 9, struct.pack("<IQ", kinds[0][0] if kinds else 4, len(value)) + b"".join(content for _, content in kinds)

    body = b"".join(string(key) + struct.pack("<I", typed(value)[0]) + typed(value)[1] for key, value in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + body


def test_gguf_file_reads_back_what_was_written(tmp_path: Path) -> None:
    metadata = {"a": 1, "b": True, "c": "é", "d": [1, 2, 3], "e": ["x", ""], "f": 0.5, "g": []}
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata))
    assert read_metadata(path) == metadata


def test_gguf_file_loads_as_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(byte_level_metadata(("h e",)) | {"tokenizer.chat_template": "{{ x }}"}))
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("he")) == "he"
    assert tokenizer.chat_template == "{{ x }}"
    assert tokenizer.eos_token == "<|end|>"


def test_truncated_or_lying_gguf_file_is_a_config_error(tmp_path: Path) -> None:
    whole = gguf_bytes({"list": ["abc", "de"], "numbers": [1, 2, 3], "text": "hello"})
    path = tmp_path / "m.gguf"
    broken = [whole[:end] for end in range(len(whole))]
    broken += [b"GGML" + whole[4:], whole[:4] + struct.pack("<I", 99) + whole[8:], whole[:16] + struct.pack("<Q", 1 << 60) + whole[24:]]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"m\.gguf"):
            read_metadata(path)


@pytest.mark.parametrize("kind", ["an array of arrays", "a huge array", "an unknown type"])
def test_gguf_values_that_make_no_sense_are_refused(tmp_path: Path, kind: str) -> None:
    value = {
        "an array of arrays": struct.pack("<IIQ", 9, 9, 1),
        "a huge array": struct.pack("<IIQ", 9, 8, 1 << 40),
        "an unknown type": struct.pack("<I", 77),
    }[kind]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + value)
    with pytest.raises(ConfigError, match=r"m\.gguf"):
        load_tokenizer(path)


def byte_level_library() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|start|>", "<|stop|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(["hello world, hello there"], trainer)
    library.add_tokens([AddedToken("<é>", special=False)])
    library.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 0)])
    return library


def save(folder: Path, library: tokenizers.Tokenizer, **files: Any) -> Path:
    library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_folder_encodes_as_the_library_does(tmp_path: Path, text: str) -> None:
    library = byte_level_library()
    tokenizer = load_tokenizer(save(tmp_path, library))
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_folder_ignores_saved_truncation_and_padding(tmp_path: Path) -> None:
    library = byte_level_library()
    library.enable_truncation(2)
    library.enable_padding(length=64)
    tokenizer = load_tokenizer(save(tmp_path, library))
    text = "hello world, hello there"
    assert tokenizer.encode(text) == byte_level_library().encode(text).ids


def test_folder_tells_control_tokens_from_other_added_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, byte_level_library()))
    assert tokenizer.special_tokens == {"<|start|>": 0, "<|stop|>": 1}
    plain = tokenizer.encode("<|stop|><é>", add_special_tokens=False, allow_special=False)
    assert tokenizer.decode(plain) == "<|stop|><é>"
    assert not any(map(tokenizer.is_special, plain))
    assert tokenizer.token_bytes(plain[-1]) == "<é>".encode()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"tokenizer_config": {"eos_token": "<|stop|>"}}, (1,)),
        ({"tokenizer_config": {"eos_token": {"content": "<|stop|>", "lstrip": False}}}, (1,)),
        ({"special_tokens_map": {"eos_token": "<|stop|>"}}, (1,)),
        ({"generation_config": {"eos_token_id": [7, 1]}, "tokenizer_config": {"eos_token": "<|stop|>"}}, (7, 1)),
        ({"generation_config": {"eos_token_id": 7}, "config": {"eos_token_id": 8}}, (7,)),
        ({"config": {"eos_token_id": 8}}, (8,)),
    ],
)
def test_end_tokens_of_a_folder(tmp_path: Path, files: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert load_tokenizer(save(tmp_path, byte_level_library(), **files)).eos_token_ids == expected


def test_chat_template_of_a_folder(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert load_tokenizer(save(tmp_path, byte_level_library(), tokenizer_config={})).chat_template is None
    assert load_tokenizer(save(tmp_path, byte_level_library(), tokenizer_config={"chat_template": "x"})).chat_template == "x"
    assert load_tokenizer(save(tmp_path, byte_level_library(), tokenizer_config={"chat_template": named})).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("é")
    assert load_tokenizer(tmp_path).chat_template == "é"


def test_space_marked_folder_has_exact_bytes(tmp_path: Path) -> None:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(models.BPE(vocab, [("h", "i"), ("▁", "hi")], unk_token="<unk>", byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = load_tokenizer(save(tmp_path, library))
    tokens = tokenizer.encode("hi é")
    assert [tokenizer.token_bytes(token) for token in tokens] == [b" hi", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(tokens) == library.decode(tokens) == "hi é"
    assert tokenizer.space_prefix


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer.json", "{}"), ("tokenizer_config.json", "[]"), ("generation_config.json", "nonsense")],
)
def test_broken_folder_is_a_config_error(tmp_path: Path, name: str, content: str) -> None:
    save(tmp_path, byte_level_library())
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        load_tokenizer(tmp_path)


def test_unsupported_or_missing_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"gone\.gguf"):
        load_tokenizer(tmp_path / "gone.gguf")
    library = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    library.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="WordPiece"):
        load_tokenizer(save(tmp_path, library))


def test_pieces_of_a_byte_alphabet_stand_for_its_bytes_and_others_for_themselves() -> None:
    for code in range(0x400):
        for piece in (chr(code), "a" + chr(code) + "\u0120"):
            inside = all(char in BYTE_ALPHABET for char in piece)
            assert byte_level_bytes(piece) == (bytes(BYTE_ALPHABET[char] for char in piece) if inside else piece.encode())
