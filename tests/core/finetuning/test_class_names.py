"""Names of classes that Hugging Face's datasets store as numbers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.finetune import FinetuneConfig
from core.errors import CorpusError
from core.finetuning.data import read_splits
from core.finetuning.tasks import make_task
from tests.hub_server import HubServer

ROOT = Path(__file__).parents[3]
# Not in alphabetical order; the first two never occur.
CLASSES = ["unknown", "other", "spam", "ham"]
TAGS = ["O", "B-PER", "I-PER"]
TEXTS = {"text": [f"text {n}" for n in range(12)], "label": [2, 3, -1] * 4}
WORDS = {
    "tokens": [["Ada", "Love", "runs"], ["it"], ["a", "b"]] * 4,
    "ner_tags": [[1, 2, 0], [0], [-1, -1]] * 4,
}
CARD = b"""---
dataset_info:
  features:
  - {name: text, dtype: string}
  - name: label
    dtype: {class_label: {names: {'0': 'no', '1': maybe, '2': 'yes'}}}
configs:
- config_name: default
  data_files: [{split: train, path: a.jsonl}]
---
"""
# Shapes that older versions of datasets wrote.
OLD_LISTS: list[Any] = [
    {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": TAGS, "num_classes": 3}},
    {"_type": "LargeList", "feature": {"_type": "ClassLabel", "names": TAGS}},
    [{"_type": "ClassLabel", "names": TAGS}],
]


def parquet(columns: dict[str, list[Any]], features: dict[str, Any]) -> bytes:
    """Writes columns with features as datasets writes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features

    stream = io.BytesIO()
    pq.write_table(pa.table(columns, schema=Features(features).arrow_schema), stream)
    return stream.getvalue()


def texts() -> bytes:
    from datasets import ClassLabel, Value

    return parquet(TEXTS, {"text": Value("string"), "label": ClassLabel(names=CLASSES)})


def tagged() -> bytes:
    from datasets import ClassLabel, List, Value

    features = {"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=TAGS))}
    return parquet(WORDS, features)


def write(path: Path, columns: dict[str, list[Any]], metadata: Any) -> str:
    """Writes columns as Parquet with a value of the metadata key `huggingface`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    pq.write_table(pa.table(columns).replace_schema_metadata({b"huggingface": data}), path)
    return str(path)


def features_of(label: Any) -> dict[str, Any]:
    return {"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, "label": label}}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    server = HubServer()
    server.add("datasets", "me/texts", {"train.parquet": texts()})
    server.add("datasets", "me/words", {"train.parquet": tagged()})
    rows = [{"text": f"text {n}", "label": n % 3 - 1} for n in range(12)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    server.add("datasets", "me/lines", {"README.md": CARD, "a.jsonl": lines.encode()})
    configs = [
        {"dataset_name": "me/texts", "test_split": "train"},
        {"dataset_name": "me/words", "test_split": "train", "task": "token_classification"},
        {"dataset_name": "me/lines", "test_split": "train"},
        {"dataset_name": "me/texts", "test_split": "dev"},
    ]
    environment = {
        **os.environ, "HF_ENDPOINT": server.url, "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
    }  # fmt: skip
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.core.finetuning.hub_reader"],
            cwd=ROOT, env=environment, input=json.dumps(configs), capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert server.unknown_requests == []
        yield json.loads(ended.stdout.splitlines()[-1])
    finally:
        server.close()


def test_texts_from_the_hub_have_the_names_of_their_classes(results: list[dict[str, Any]]) -> None:
    found = results[0]
    assert [one[1] for one in found["test"]] == ["spam", "ham"] * 4
    assert found["labels"] == ["spam", "ham"], "in the dataset's order"
    assert [note for note in found["notes"] if "class is -1" in note] == [
        "Left out 4 rows of me/texts (train): their class is -1, which means that they have no "
        "label"
    ] * 2  # fmt: skip


def test_words_from_the_hub_have_the_names_of_their_tags(results: list[dict[str, Any]]) -> None:
    found = results[1]
    assert [one[1] for one in found["test"]] == [["B-PER", "I-PER", "O"], ["O"]] * 4
    assert (found["labels"], found["metric"]) == (TAGS, "span_f1")
    assert "Left out 4 rows of me/words" in found["notes"][0]


def test_names_of_a_dataset_card_are_used(results: list[dict[str, Any]]) -> None:
    assert results[2]["labels"] == ["no", "maybe"]
    assert [one[1] for one in results[2]["test"]] == ["no", "maybe"] * 4


def test_split_that_is_missing_on_the_hub_is_named_by_its_option(
    results: list[dict[str, Any]],
) -> None:
    assert results[3]["field"] == "test_split"
    assert "set test_split to an existing one" in results[3]["fix"]


def test_local_parquet_has_the_names_of_its_classes(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(texts())
    path, notes = str(tmp_path / "a.parquet"), list[str]()
    config = FinetuneConfig(train_path=path, test_path=path)
    splits = read_splits(config, notes.append)
    assert [one[1] for one in splits.test] == ["spam", "ham"] * 4
    labels = make_task(config, splits).labels
    assert labels and labels.names == ("spam", "ham")
    assert "Left out 4 rows" in notes[0] and "Left out 4 rows" in notes[1]


def test_local_parquet_has_the_names_of_its_tags(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(tagged())
    path = str(tmp_path / "a.parquet")
    config = FinetuneConfig(train_path=path, test_path=path, task="token_classification")
    splits = read_splits(config)
    assert [one[1] for one in splits.test] == [("B-PER", "I-PER", "O"), ("O",)] * 4
    assert make_task(config, splits).metric == "span_f1"


@pytest.mark.parametrize("feature", OLD_LISTS)
def test_names_of_older_datasets_are_read(tmp_path: Path, feature: Any) -> None:
    metadata = {"info": {"features": {"ner_tags": feature}}}
    path = write(tmp_path / "a.parquet", WORDS, metadata)
    config = FinetuneConfig(train_path=path, test_path=path, task="token_classification")
    assert read_splits(config).test[0][1] == ("B-PER", "I-PER", "O")


def test_word_of_the_class_minus_one_has_no_tag(tmp_path: Path) -> None:
    columns = {"tokens": [["a", "b"]] * 3, "ner_tags": [[-1, 1]] * 3}
    path = write(
        tmp_path / "a.parquet", columns, {"info": {"features": {"ner_tags": OLD_LISTS[2]}}}
    )
    config = FinetuneConfig(train_path=path, test_path=path, task="token_classification")
    assert read_splits(config).test[0][1] == ("", "B-PER")


@pytest.mark.parametrize(
    "metadata",
    [
        b"{", b"\xff", b'{"info": ' + b"[" * 100 + b"]" * 100 + b"}", b" " * (9 << 20),
        {"info": {"features": [1]}},
        *(features_of({"_type": "ClassLabel", "names": names})
          for names in (None, "ab", {"0": "a"}, [], ["a", 1], ["a", "a"], ["a", ""],
                        ["a", "b" * 201], [str(n) for n in range(10_001)])),
    ],
)  # fmt: skip
def test_malformed_names_are_refused(tmp_path: Path, metadata: Any) -> None:
    path = write(tmp_path / "a.parquet", TEXTS, metadata)
    with pytest.raises(CorpusError, match="class names that can't be read") as caught:
        read_splits(FinetuneConfig(train_path=path))
    assert len(str(caught.value)) < 1000 and caught.value.field == "label_column"


@pytest.mark.parametrize(
    "metadata",
    [
        [], None, {}, {"info": None}, {"info": {"features": None}}, features_of(None),
        features_of({"_type": "Value", "dtype": "int64"}), features_of(["ClassLabel"]),
        {"info": {"features": {"other": {"_type": "ClassLabel", "names": None}}}},
    ],
)  # fmt: skip
def test_metadata_without_names_of_the_label_are_ignored(tmp_path: Path, metadata: Any) -> None:
    path = write(tmp_path / "a.parquet", TEXTS, metadata)
    found = read_splits(FinetuneConfig(train_path=path, test_path=path)).test
    assert [one[1] for one in found] == ["2", "3", "-1"] * 4


@pytest.mark.parametrize("number", [4, -2])
def test_number_without_a_name_is_refused_with_its_row(tmp_path: Path, number: int) -> None:
    columns = {"text": ["a", "b"], "label": [0, number]}
    label = {"_type": "ClassLabel", "names": CLASSES}
    path = write(tmp_path / "a.parquet", columns, features_of(label))
    with pytest.raises(CorpusError, match=r"Row 2 of .* has no name.*from 0 to 3"):
        read_splits(FinetuneConfig(train_path=path))


def test_rows_without_any_label_are_reported(tmp_path: Path) -> None:
    columns = {"text": ["a", "b"], "label": [-1, -1]}
    label = {"_type": "ClassLabel", "names": CLASSES}
    path = write(tmp_path / "a.parquet", columns, features_of(label))
    with pytest.raises(CorpusError, match="2 rows, all of the class -1"):
        read_splits(FinetuneConfig(train_path=path))


def test_regression_learns_the_numbers_of_classes(tmp_path: Path) -> None:
    label = {"_type": "ClassLabel", "names": CLASSES}
    path = write(tmp_path / "a.parquet", TEXTS, features_of(label))
    found = read_splits(FinetuneConfig(train_path=path, test_path=path, task="regression")).test
    assert [float(one[1]) for one in found] == [2, 3] * 4  # type: ignore[arg-type]


def test_class_names_differ_between_files_of_a_folder(tmp_path: Path) -> None:
    for name, names in (("a", ["x", "y"]), ("b", ["y", "x"])):
        label = {"_type": "ClassLabel", "names": names}
        columns = {"text": ["a"] * 3, "label": [0] * 3}
        write(tmp_path / f"{name}.parquet", columns, features_of(label))
    config = FinetuneConfig(train_path=str(tmp_path), test_path=str(tmp_path))
    assert [one[1] for one in read_splits(config).test] == ["x"] * 3 + ["y"] * 3
