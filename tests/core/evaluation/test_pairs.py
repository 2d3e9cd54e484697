"""Reading of minimal pairs from JSON lines and from the Hub."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config.evaluate import EvaluateConfig
from core.errors import StudioError
from core.evaluation.pairs import Pair, read_pairs
from tests.hub_server import HubServer

ROOT = Path(__file__).parents[3]
ROW = {"sentence_good": "It runs.", "sentence_bad": "It run.", "UID": "agreement"}
READ = """
import json, sys
from core.config import EvaluateConfig
from core.errors import StudioError
from core.evaluation.pairs import read_pairs
found = []
for values in json.loads(sys.argv[1]):
    try:
        found.append([list(pair) for pair in read_pairs(EvaluateConfig(**values))])
    except StudioError as error:
        found.append([error.field, str(error)])
print(json.dumps(found))
"""
CARD = b"""---
configs:
- config_name: first_island
  data_files: first_island.parquet
- config_name: second_island
  data_files: second_island.parquet
---
"""


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return str(path)


def test_pairs_in_blimps_format_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {**ROW, "linguistics_term": "sva"}, ROW)
    with open(path, "a") as file:
        file.write("\n  \n")
    assert read_pairs(EvaluateConfig(path=path)) == [
        Pair("It runs.", "It run.", "agreement", "sva", f"Line 1 of {path}"),
        Pair("It runs.", "It run.", "agreement", "", f"Line 2 of {path}"),
    ]


def test_file_is_the_paradigm_of_pairs_without_one(tmp_path: Path) -> None:
    bare = {"sentence_good": "a", "sentence_bad": "b"}
    for name in ("islands.jsonl", "negation.jsonl"):
        write(tmp_path / name, bare)
    pairs = read_pairs(EvaluateConfig(path=str(tmp_path)))
    assert [pair.paradigm for pair in pairs] == ["islands", "negation"]


def test_files_of_one_name_are_different_paradigms(tmp_path: Path) -> None:
    bare = {"sentence_good": "a", "sentence_bad": "b"}
    for name in ("v1.0.jsonl", "v1.1.jsonl"):
        write(tmp_path / name, bare)
    pairs = read_pairs(EvaluateConfig(path=str(tmp_path)))
    assert [pair.paradigm for pair in pairs] == ["v1.0", "v1.1"]
    for name in ("ko", "en"):
        (tmp_path / "x" / name).mkdir(parents=True)
        write(tmp_path / "x" / name / "islands.jsonl", bare)
    pairs = read_pairs(EvaluateConfig(path=str(tmp_path / "x"), limit=1))
    assert [pair.paradigm for pair in pairs] == ["en/islands", "ko/islands"]


def test_other_field_names_are_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"gut": "a", "schlecht": "b", "Art": 3, "Gruppe": "x"})
    (pair,) = read_pairs(
        EvaluateConfig(
            path=path, good_field="gut", bad_field="schlecht", paradigm_field="Art",
            phenomenon_field="Gruppe",
        )
    )  # fmt: skip
    assert pair[:4] == ("a", "b", "3", "x")


def test_missing_label_is_no_paradigm(tmp_path: Path) -> None:
    nothing = {"UID": None, "linguistics_term": None}
    (pair,) = read_pairs(EvaluateConfig(path=write(tmp_path / "a.jsonl", {**ROW, **nothing})))
    assert (pair.paradigm, pair.phenomenon) == ("a", "")


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    row = {"sentence_good": "a\ud800", "sentence_bad": "b\udfff", "UID": "c\ud800"}
    (pair,) = read_pairs(EvaluateConfig(path=write(tmp_path / "a.jsonl", row)))
    assert pair[:3] == ("a?", "b?", "c?")


def test_limit_counts_pairs_of_a_paradigm(tmp_path: Path) -> None:
    rows = [{**ROW, "UID": name} for name in ("one", "two", "one", "one", "two")]
    pairs = read_pairs(EvaluateConfig(path=write(tmp_path / "a.jsonl", *rows), limit=1))
    assert [pair.paradigm for pair in pairs] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "options", "field", "words"),
    [
        ('{"sentence_good": "a"}', {}, "bad_field", "Line 1 of .* has no field 'sentence_bad'"),
        (json.dumps(ROW), {"good_field": "good"}, "good_field", "sentence_good, sentence_bad, UID"),
        (json.dumps(ROW), {"paradigm_field": "kind"}, "paradigm_field", "no field 'kind'"),
        (json.dumps({**ROW, "sentence_bad": " "}), {}, "bad_field", "an empty text"),
        (json.dumps({**ROW, "sentence_good": 3}), {}, "good_field", "Received: 3"),
        (json.dumps(ROW), {"good_field": "sentence_bad"}, "good_field", "the same field"),
        ("", {}, "path", "no minimal pairs"),
        ("\n\n", {}, "path", "no minimal pairs"),
        ("It runs.\nIt run.\n", {}, "path", "Line 1 of .* is not a JSON object"),
        (json.dumps(ROW) + "\n[1]\n", {}, "path", "Line 2 of .* is not a JSON object"),
    ],
)
def test_unusable_line_is_reported(
    content: str, options: dict[str, str], field: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(StudioError, match=words) as caught:
        read_pairs(EvaluateConfig(path=str(path), **options))
    assert caught.value.field == field


def test_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sentence_good,sentence_bad\na,b\n")
    with pytest.raises(StudioError, match=r"a\.csv has the wrong format.*JSON lines"):
        read_pairs(EvaluateConfig(path=str(tmp_path / "a.csv")))


@pytest.mark.slow
def test_all_configurations_of_a_hub_dataset_are_read(tmp_path: Path) -> None:
    server = HubServer()
    files = {"README.md": CARD}
    for name in ("first_island", "second_island"):
        stream = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([{**ROW, "UID": name}] * 2), stream)
        files[f"{name}.parquet"] = stream.getvalue()
    server.add("datasets", "nyu-mll/blimp", files)
    asked: list[dict[str, Any]] = [
        {},
        {"dataset_config": "second_island"},
        {"dataset_config": "third"},
        {"split": "test"},
        {"dataset_name": "me/missing"},
        {"good_field": "good"},
    ]
    try:
        every, second, *refused = read_on(server.url, tmp_path, asked)
        assert server.unknown_requests == []
    finally:
        server.close()
    assert [pair[2] for pair in every] == ["first_island"] * 2 + ["second_island"] * 2
    assert [pair[2] for pair in second] == ["second_island"] * 2
    assert [field for field, _ in refused] == [
        "dataset_config", "split", "dataset_name", "good_field",
    ]  # fmt: skip
    assert "Row 1 of nyu-mll/blimp (first_island) has no field 'good'" in refused[-1][1]


@pytest.mark.slow
def test_unreachable_hub_is_answered_with_a_file(tmp_path: Path) -> None:
    ((field, message),) = read_on("http://127.0.0.1:9", tmp_path, [{}])
    assert field == "dataset_name"
    assert "can't be reached" in message and "set path to a file" in message


def read_on(url: str, folder: Path, asked: list[dict[str, Any]]) -> list[Any]:
    """Reads in a process of its own: the Hub's client reads HF_ENDPOINT on import."""
    home = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(asked)],
        cwd=ROOT, env={**os.environ, **home}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout.splitlines()[-1]))
