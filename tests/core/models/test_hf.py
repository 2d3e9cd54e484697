"""Checkpoint folders: written, read and refused contents. No backend is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from core.errors import CheckpointError, ConfigError
from core.families.roberta import RobertaArchitecture
from core.models import hf

ARCHITECTURE = RobertaArchitecture(
    vocab_size=31,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=20,
    pad_token_id=3,
    bos_token_id=0,
    eos_token_id=None,
)
QUERY = "roberta.encoder.layer.0.attention.self.query.weight"
WORDS = "roberta.embeddings.word_embeddings.weight"


@pytest.fixture
def weights() -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(0)
    return {
        tie.path: generator.normal(size=tie.shape).astype(np.float32)
        for tie in hf.weight_mappings(ARCHITECTURE)
    }


@pytest.fixture
def folder(tmp_path: Path, weights: dict[str, NDArray[np.float32]]) -> Path:
    hf.write_weights(tmp_path, weights, ARCHITECTURE)
    return tmp_path


def change(folder: Path, **tensors: NDArray | None) -> None:
    """Replaces tensors in a checkpoint; None removes one."""
    found = {**load_file(folder / hf.WEIGHTS_FILE), **tensors}
    kept = {name: value for name, value in found.items() if value is not None}
    save_file(kept, folder / hf.WEIGHTS_FILE, metadata={"format": "pt"})


def test_written_checkpoint_is_read_back(folder: Path, weights: dict[str, NDArray]) -> None:
    assert hf.read_architecture(folder) == ARCHITECTURE
    found = hf.read_weights(folder)
    assert found.keys() == weights.keys()
    for path, value in weights.items():
        assert np.array_equal(found[path], value), path


def test_query_key_and_value_are_written_as_separate_tensors(
    folder: Path, weights: dict[str, NDArray]
) -> None:
    theirs = load_file(folder / hf.WEIGHTS_FILE)
    kernel = weights["roberta/layer_0/attention/qkv/kernel"]
    assert np.array_equal(theirs[QUERY], kernel[:, :8].T)
    assert np.array_equal(theirs[QUERY.replace("query", "value")], kernel[:, 16:].T)


def test_config_names_the_class_and_the_special_token_ids(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    assert values["architectures"] == ["RobertaForMaskedLM"]
    assert values["model_type"] == "roberta"
    assert (values["pad_token_id"], values["bos_token_id"]) == (3, 0)
    assert values["eos_token_id"] is None


def test_safetensors_metadata_allows_loading_in_pytorch(folder: Path) -> None:
    from safetensors import safe_open

    with safe_open(folder / hf.WEIGHTS_FILE, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_reading_weights_imports_no_backend(folder: Path) -> None:
    code = (
        "import sys; from core.models import hf; hf.read_weights(sys.argv[1]); "
        "print([name for name in ('tensorflow', 'jax', 'keras', 'torch') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(folder)]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "[]"


def test_weights_in_several_files_are_read(folder: Path, weights: dict[str, NDArray]) -> None:
    split_into_files(folder)
    found = hf.read_weights(folder)
    assert all(np.array_equal(found[path], value) for path, value in weights.items())


def split_into_files(folder: Path) -> None:
    tensors = load_file(folder / hf.WEIGHTS_FILE)
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[:9],
        "model-00002-of-00002.safetensors": names[9:],
    }
    for file, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    places = {name: file for file, members in parts.items() for name in members}
    (folder / hf.INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / hf.WEIGHTS_FILE).unlink()


def test_old_copy_of_a_tensor_in_another_file_is_not_read(
    folder: Path, weights: dict[str, NDArray]
) -> None:
    split_into_files(folder)
    first, second = sorted(folder.glob("model-*.safetensors"))
    old = {name: value + 1 for name, value in load_file(second).items()}
    save_file({**load_file(first), **old}, first)
    found = hf.read_weights(folder)
    assert all(np.array_equal(found[path], value) for path, value in weights.items())


def test_missing_file_of_several_is_named(folder: Path) -> None:
    split_into_files(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model-00002-of-00002\.safetensors"):
        hf.read_weights(folder)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {"a": "../model.safetensors"}}'])
def test_invalid_index_is_refused(folder: Path, index: str) -> None:
    split_into_files(folder)
    (folder / hf.INDEX_FILE).write_text(index)
    with pytest.raises(CheckpointError):
        hf.read_weights(folder)


def test_half_precision_is_read_as_float32(folder: Path, weights: dict[str, NDArray]) -> None:
    import ml_dtypes

    for dtype in (np.float16, ml_dtypes.bfloat16):
        tensors = load_file(folder / hf.WEIGHTS_FILE)
        save_file({name: value.astype(dtype) for name, value in tensors.items()},
                  folder / hf.WEIGHTS_FILE)  # fmt: skip
        found = hf.read_weights(folder)
        for path, value in weights.items():
            assert found[path].dtype == np.float32
            assert np.allclose(found[path], value, atol=0.02), path


def test_copy_of_the_tied_weights_is_accepted(folder: Path, weights: dict[str, NDArray]) -> None:
    words = load_file(folder / hf.WEIGHTS_FILE)[WORDS]
    change(folder, **{WORDS: None, "lm_head.decoder.weight": words})
    assert np.array_equal(hf.read_weights(folder)["roberta/embeddings/words/table"], words)


def test_untied_head_is_refused(folder: Path) -> None:
    words = load_file(folder / hf.WEIGHTS_FILE)[WORDS]
    change(folder, **{"lm_head.decoder.weight": words})
    hf.read_weights(folder)
    change(folder, **{"lm_head.decoder.weight": words + 1})
    with pytest.raises(CheckpointError, match="not tied to the token embeddings") as caught:
        hf.read_weights(folder)
    assert "lm_head.decoder.weight" in caught.value.problem
    assert WORDS in caught.value.expected


def test_unneeded_tensors_are_ignored(folder: Path) -> None:
    change(folder, **{"roberta.pooler.dense.weight": np.zeros((8, 8), np.float32)})
    hf.read_weights(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    change(folder, **{QUERY: None})
    with pytest.raises(CheckpointError) as caught:
        hf.read_weights(folder)
    assert QUERY in caught.value.problem
    assert "(8, 8)" in caught.value.expected


def test_tensor_of_another_shape_is_named(folder: Path) -> None:
    change(folder, **{WORDS: np.zeros((30, 8), np.float32)})
    with pytest.raises(CheckpointError) as caught:
        hf.read_weights(folder)
    assert WORDS in caught.value.problem
    assert (caught.value.expected, caught.value.received) == ("shape (31, 8)", "shape (30, 8)")


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_truncated_file_is_named(folder: Path, kept: int) -> None:
    file = folder / hf.WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors can't be read"):
        hf.read_weights(folder)


def test_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint in") as caught:
        hf.read_weights(tmp_path)
    assert caught.value.received == "an empty folder"


def test_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / hf.WEIGHTS_FILE).unlink()
    with pytest.raises(CheckpointError, match="There is no checkpoint in") as caught:
        hf.read_weights(folder)
    assert caught.value.received == "config.json"


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        hf.read_architecture(tmp_path / "nowhere")


def test_pickles_are_never_loaded(folder: Path) -> None:
    (folder / hf.WEIGHTS_FILE).rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickle files are never loaded") as caught:
        hf.read_weights(folder)
    assert "save_pretrained" in caught.value.fix


def test_another_family_is_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "model_type": "falcon"}))
    with pytest.raises(ConfigError, match="falcon"):
        hf.read_weights(folder)
