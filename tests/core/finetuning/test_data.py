"""Labelled examples from files of all formats, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from core.config.finetune import FinetuneConfig
from core.errors import ConfigError, StudioError
from core.finetuning.data import hold_out, read_splits
from core.finetuning.examples import Example, Sentence
from core.finetuning.glue import with_glue
from core.finetuning.labels import Labels

ROWS = [{"label": number % 2, "text": f'text "{number}'} for number in range(10)]
CONLLU = """# newpar id = p1
# text = Han tok det.
1\tHan\than\tPRON\tpron\t_\t2\tnsubj\t_\t_
2-3\ttok det\t_\t_\t_\t_\t_\t_\t_\t_
2\ttok\tta\tVERB\tverb\t_\t0\troot\t_\t_
3\tdet\tdet\tPRON\tpron\t_\t2\tobj\t_\tSpaceAfter=No
3.1\t_\t_\t_\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\tclb\t_\t2\tpunct\t_\t_

1\tJa\tja\tINTJ\tinterj\t_\t0\troot\t_\t_

"""


def write(folder: Path, name: str, rows: list[dict[str, Any]] = ROWS) -> str:
    """Writes rows in the format of the name's suffix."""
    path = folder / name
    if name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif "json" in name:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        mark = "\t" if ".tsv" in name else ","
        quote = '"' if mark == "," else ""
        cells = [[str(one).replace('"', '""' if quote else '"') for one in row.values()]
                 for row in rows]  # fmt: skip
        lines = [mark.join(rows[0]), *(mark.join(f"{quote}{c}{quote}" for c in r) for r in cells)]
        text = "\n".join(lines) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.tsv.gz", "a.jsonl", "a.parquet"])
def test_examples_are_read_from_all_formats(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name)
    splits = read_splits(FinetuneConfig(train_path=path, test_path=path))
    assert [(one.texts, one.label) for one in splits.test] == [  # type: ignore[union-attr]
        ((row["text"],), str(row["label"])) for row in ROWS
    ]
    assert (len(splits.train), len(splits.validation)) == (9, 1)
    assert splits.test_name == name


def test_pairs_and_numbers_are_found_by_their_usual_names(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": 1.5}] * 4
    path = write(tmp_path, "pairs.jsonl", rows)
    splits = read_splits(FinetuneConfig(train_path=path, task="regression"))
    (example, *_) = splits.train
    assert isinstance(example, Example)
    assert example.texts == ("a", "b") and float(example.label) == 1.5


def test_unclear_columns_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"first": "a", "kind": "x"}] * 3)
    with pytest.raises(ConfigError, match="unclear which column has the text") as caught:
        read_splits(FinetuneConfig(train_path=path))
    assert caught.value.field == "text_column"
    config = FinetuneConfig(train_path=path, text_column="first", label_column="kind")
    assert read_splits(config).train[0].texts == ("a",)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no column 'none'"):
        read_splits(config.model_copy(update={"label_column": "none"}))


def test_words_and_tags_are_read_from_conllu(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    config = FinetuneConfig(task="token_classification", train_path=str(path), test_path=str(path))
    first, second = read_splits(config).test
    assert isinstance(first, Sentence) and isinstance(second, Sentence)
    assert first.words == ("Han", "tok", "det", ".")
    assert first.tags == ("PRON", "VERB", "PRON", "PUNCT")
    assert second.words == ("Ja",)
    other = config.model_copy(update={"label_column": "deprel"})
    assert read_splits(other).test[1].tags == ("root",)  # type: ignore[union-attr]


def test_tags_are_read_from_column_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n# SYM O\n")
    config = FinetuneConfig(task="token_classification", train_path=str(path), test_path=str(path))
    first, second = read_splits(config).test
    assert first == ((("EU", "rejects")), ("B-ORG", "O"), first.place)
    assert second[:2] == (("#",), ("O",))
    by_place = config.model_copy(update={"label_column": "2"})
    assert read_splits(by_place).test[0].tags == ("NNP", "VBZ")  # type: ignore[union-attr]
    with pytest.raises(StudioError, match="line without a tag"):
        read_splits(config.model_copy(update={"label_column": "9"}))


def test_lists_of_words_are_read_from_tables(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}, {"tokens": ["c"], "ner_tags": ["O"]}]
    path = write(tmp_path, "a.parquet", rows)
    config = FinetuneConfig(task="token_classification", train_path=path, test_path=path)
    assert read_splits(config).test[0][:2] == (("a", "b"), ("O", "B-X"))
    path = write(tmp_path, "b.jsonl", [{"tokens": ["a", "b"], "ner_tags": ["O"]}])
    with pytest.raises(StudioError, match="no word for each tag"):
        read_splits(config.model_copy(update={"train_path": path}))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "no training examples"),
        ({"train_path": "missing.tsv"}, "missing"),
        ({"learning_rates": "fast"}, "learning_rates"),
        ({"learning_rates": "0.1, 7"}, "learning_rates"),
    ],
)
def test_unsuitable_options_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(StudioError, match=problem):
        read_splits(FinetuneConfig(**values))


@pytest.mark.parametrize(
    ("given", "width", "rates"),
    [
        ("", 128, [3e-4, 1e-3, 3e-3]),
        (" ", 512, [1e-4, 3e-4, 1e-3]),
        ("", 768, [3e-5, 1e-4, 3e-4]),
        ("2e-5 2e-5", 128, [2e-5]),
    ],
)
def test_learning_rates_suit_the_width_unless_some_are_given(
    given: str, width: int, rates: list[float]
) -> None:
    assert FinetuneConfig(learning_rates=given).for_width(width).rates == rates


def test_label_must_be_a_number_for_regression(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"text": "a", "label": "good"}] * 3)
    with pytest.raises(StudioError, match="has no number in the column 'label'"):
        read_splits(FinetuneConfig(train_path=path, task="regression"))


def test_classes_are_ordered_by_number_or_alphabet() -> None:
    assert Labels.of(["10", "9", "-1"]).names == ("-1", "9", "10")
    assert Labels.of(["b", "a", "9"]).names == ("9", "a", "b")
    with pytest.raises(StudioError, match="1 different labels"):
        Labels.of(["a", "a"])


def test_held_out_examples_are_always_the_same() -> None:
    examples = [Example((str(number),), "0") for number in range(50)]
    train, validation = hold_out(examples)
    assert (len(train), len(validation)) == (45, 5)
    assert hold_out(examples) == (train, validation)
    assert sorted([*train, *validation]) == sorted(examples)


def test_glue_task_sets_dataset_columns_and_metric() -> None:
    config = with_glue(FinetuneConfig(glue="stsb"))
    assert (config.task, config.dataset_name, config.dataset_config, config.test_split) == (
        "regression", "nyu-mll/glue", "stsb", "validation",
    )  # fmt: skip
    assert (config.text_column, config.text_pair_column) == ("sentence1", "sentence2")
