"""Tests of the interface that all objectives share."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import core.objectives
from core.errors import ConfigError
from core.families import families_of_objective, objectives_of_family
from core.objectives.mlm import unigram_baseline
from core.objectives.objective import ObjectiveSettings
from core.objectives.registry import OBJECTIVES, create_objective, stored_sequence_length
from tests.core.objectives.support import (
    VOCAB_SIZE,
    assert_a_batch_is_a_pure_function,
    marked_rows,
    vocabulary,
)

SETTINGS = ObjectiveSettings(max_seq_length=64)
INPUTS = {
    "mlm": ("input_ids", "masked_positions"),
    "clm": ("input_ids",),
    "span_corruption": ("input_ids", "decoder_input_ids"),
    "denoising": ("input_ids", "attention_mask", "decoder_input_ids"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_objectives_share_one_interface(name: str) -> None:
    task = create_objective(name, SETTINGS, vocabulary())
    assert task.name == name and families_of_objective(task.name)
    assert task.row_length == stored_sequence_length(name, SETTINGS)
    rows = marked_rows(8, task.row_length)
    batch = task.batch(rows, seed=0, step=0)
    assert set(batch) == {*INPUTS[name], "labels", "label_weights"}
    assert batch["input_ids"].shape == (8, 64)
    for array in ("labels", "label_weights"):
        assert batch[array].shape == (8, task.predictions_per_sequence)
    assert_a_batch_is_a_pure_function(task, rows)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_batch_shapes_are_static(name: str) -> None:
    task = create_objective(name, SETTINGS, vocabulary())
    shapes = {
        tuple((array, values.shape, values.dtype.str) for array, values in batch.items())
        for seed in range(3)
        for step in range(3)
        for batch in [task.batch(marked_rows(4, task.row_length, seed), seed, step)]
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_a_unigram_baseline(name: str) -> None:
    task = create_objective(name, SETTINGS, vocabulary())
    batch = task.batch(marked_rows(4, task.row_length), 0, 0)
    counts = np.ones(VOCAB_SIZE, np.int64)
    baseline = unigram_baseline(counts, batch["labels"], batch["label_weights"])
    assert baseline == pytest.approx(np.log(VOCAB_SIZE))


@pytest.mark.parametrize(
    ("name", "length"), [("mlm", 512), ("clm", 512), ("span_corruption", 568), ("denoising", 512)]
)
def test_stored_sequence_length_is_known_without_a_tokenizer(name: str, length: int) -> None:
    assert stored_sequence_length(name, ObjectiveSettings(512)) == length


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("roberta", ("mlm",)),
        ("bert", ("mlm",)),
        ("modernbert", ("mlm",)),
        ("gpt2", ("clm",)),
        ("t5", ("span_corruption",)),
        ("bart", ("denoising",)),
        ("other", ()),
    ],
)
def test_each_family_has_its_objectives(family: str, names: tuple[str, ...]) -> None:
    assert objectives_of_family(family) == names


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("mlm", "mask_id"),
        ("span_corruption", "eos_id"),
        ("span_corruption", "pad_id"),
        ("denoising", "mask_id"),
        ("denoising", "pad_id"),
        ("denoising", "eos_id"),
    ],
)
def test_vocabulary_without_a_required_token_is_refused(name: str, missing: str) -> None:
    lacking = replace(vocabulary(), **{missing: None})
    with pytest.raises(ConfigError, match=rf"objective {name}.*Received: none"):
        create_objective(name, SETTINGS, lacking)


def test_line_by_line_requires_a_padding_token() -> None:
    lines = ObjectiveSettings(64, line_by_line=True)
    with pytest.raises(ConfigError, match="padding token"):
        create_objective("mlm", lines, replace(vocabulary(), pad_id=None))
    task = create_objective("mlm", lines, vocabulary())
    assert "attention_mask" in task.batch(marked_rows(8, task.row_length), seed=0, step=0)


def test_settings_reach_the_objective() -> None:
    whole = ObjectiveSettings(64, mlm_probability=0.3, whole_word_mask=True)
    task = create_objective("mlm", whole, vocabulary())
    assert task.predictions_per_sequence == 19
    assert getattr(task, "word_starts", None) is not None
    assert getattr(create_objective("mlm", SETTINGS, vocabulary()), "word_starts", None) is None


def test_unknown_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match="mlm, clm, span_corruption, denoising"):
        stored_sequence_length("nsp", SETTINGS)


def test_objectives_import_only_numpy_and_the_standard_library() -> None:
    folder = Path(core.objectives.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                ours = name in ("core.errors", "core.earlier_names") or name.startswith(
                    "core.objectives"
                )
                assert ours or top == "numpy" or top in sys.stdlib_module_names, (path, name)
