import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.corpus.hub import replacement_for
from tests.hub_server import HubServer
from tests.texts import sentences
from tests.web_server import send, serving

ROOT = Path(__file__).parents[3]
CARD = b"""---
configs:
- config_name: one
  data_files:
  - {split: train, path: one/train.parquet}
  - {split: test, path: one/test.parquet}
- config_name: two
  data_files: two.parquet
---
"""
WORDS = {"dataset_name": "me/words"}

# Corpus settings by case. One process reads all of them, because imports take seconds.
CASES: dict[str, dict[str, Any]] = {
    "held out": {**WORDS, "dataset_config": "one", "validation_percent": 20},
    "named split": {**WORDS, "dataset_config": "one", "validation_split": "test"},
    "limit": {**WORDS, "dataset_config": "one", "limit": 7},
    "column": {**WORDS, "dataset_config": "two", "text_column": "b"},
    "default configuration": {"dataset_name": "me/lines"},
    "left over": {"dataset_name": "me/lines", "dataset_config": "wikitext-103-raw-v1"},
    "wrong configuration": {**WORDS, "dataset_config": "three"},
    "wrong revision": {**WORDS, "dataset_config": "one", "dataset_revision": "v9"},
    "revision": {"dataset_name": "me/lines", "dataset_revision": "v1"},
    "wrong split": {**WORDS, "dataset_config": "one", "train_split": "dev"},
    "wrong validation split": {**WORDS, "dataset_config": "one", "validation_split": "dev"},
    "validation on the training split": {
        **WORDS,
        "dataset_config": "one",
        "validation_split": "train",
    },
    "two columns": {**WORDS, "dataset_config": "two"},
    "script": {"dataset_name": "oscar", "dataset_config": "unshuffled_deduplicated_no"},
    "unknown script": {"dataset_name": "me/scripted"},
    "gated": {"dataset_name": "me/gated"},
    "missing": {"dataset_name": "me/missing"},
    "no dataset name": {"dataset_name": "../words"},
    "no data": {"dataset_name": "me/empty"},
    "damaged": {"dataset_name": "me/damaged"},
    "truncated": {"dataset_name": "me/truncated"},
    "wrong checksum": {"dataset_name": "me/wrong-checksum"},
    "nested": {"dataset_name": "me/nested"},
    "nested column": {"dataset_name": "me/nested", "text_column": "meta.body"},
    "list column": {"dataset_name": "me/nested", "text_column": "tags[]"},
    "nested lines": {"dataset_name": "me/nested-lines", "text_column": "meta.body"},
    "bytes": {"dataset_name": "me/bytes"},
}

# Malicious card entries. INNER is replaced by the address of a server on this machine.
FOREIGN_FILES: dict[str, str] = {
    "address": "data_files: INNER/a.jsonl",
    "address-in-list": "data_files: [a.jsonl, INNER/a.jsonl]",
    "address-of-split": "data_files: [{split: train, path: ['INNER/*.jsonl']}]",
    "chained": "data_files: 'zip://a.jsonl::INNER/a.zip'",
    "file": "data_files: 'file:///etc/passwd'",
    "absolute": "data_files: /etc/passwd",
    "home": "data_files: ~/.ssh/id_rsa",
    "climbing": "data_files: ../../etc/passwd",
    "other-repository": "data_files: 'hf://datasets/me/words/two.parquet'",
    "folder": "data_dir: /etc",
    "folder-address": "data_dir: 'INNER'",
}


def parquet(**columns: list[Any]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def serve(inner: str = "http://127.0.0.1:9") -> HubServer:
    server = HubServer()
    for name, line in FOREIGN_FILES.items():
        config = "config_name: default\n  " + line.replace("INNER", inner)
        card = f"---\nconfigs:\n- {config}\n---\n".encode()
        server.add("datasets", f"me/{name}", {"README.md": card, "a.jsonl": b'{"text": "x"}\n'})
    card = f"configs:\n- config_name: default\n  data_files: {inner}/a.jsonl\n".encode()
    server.add("datasets", "me/second-card", {".huggingface.yaml": card, "a.jsonl": b"{}\n"})
    words = {
        "README.md": CARD,
        "one/train.parquet": parquet(id=list(range(101)), review=["", *sentences(100)]),
        "one/test.parquet": parquet(id=[1, 2], review=["one", None]),
        "two.parquet": parquet(a=["x", "y"], b=["one", "two"]),
    }
    server.add("datasets", "me/words", words)
    server.add("datasets", "me/lines", {"train.jsonl": b'{"text": "one"}\n{"text": "two"}\n'})
    old = {"train.jsonl": b'{"text": "old"}\n{"text": "older"}\n'}
    lines = server.find("datasets", "me/lines")
    assert lines
    lines.branches["v1"] = old
    server.add("datasets", "oscar-corpus/oscar", {"oscar.py": b"raise SystemExit"})
    server.rename("datasets", "oscar", "oscar-corpus/oscar")
    server.add("datasets", "me/scripted", {"scripted.py": b"raise SystemExit"})
    server.add("datasets", "me/gated", {"a.parquet": parquet(text=["x"])}, gated=True)
    server.add("datasets", "me/empty", {"README.md": b"Nothing here."})
    server.add("datasets", "me/damaged", {"a.parquet": b"PAR1 and no more PAR1"})
    packed = gzip.compress("".join(f'{{"text": "{one}"}}\n' for one in sentences(2000)).encode())
    server.add("datasets", "me/truncated", {"a.jsonl.gz": packed[:-2000]})
    changed = packed[:-8] + bytes([packed[-8] ^ 255]) + packed[-7:]
    server.add("datasets", "me/wrong-checksum", {"a.jsonl.gz": changed})
    rows = [{"meta": {"body": f"b{n}"}, "tags": [f"x{n}", "y"]} for n in range(3)]
    nested = {"id": [1, 2, 3], **{key: [row[key] for row in rows] for key in ("meta", "tags")}}
    server.add("datasets", "me/nested", {"a.parquet": parquet(**nested)})
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    server.add("datasets", "me/nested-lines", {"a.jsonl": lines})
    server.add("datasets", "me/bytes", {"a.parquet": parquet(text=["né".encode(), b"two"])})
    return server


def read_all(folder: Path, url: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    result = subprocess.run(
        [sys.executable, "-m", "tests.core.corpus.hub_reader", str(folder / "workspace")],
        cwd=ROOT,
        env=environment,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("hub")
    server = serve()
    try:
        found = read_all(folder, server.url, list(CASES.values()))
        assert server.unknown_requests == []
        yield dict(zip(CASES, found, strict=True))
    finally:
        server.close()


@pytest.mark.slow(9)
def test_documents_are_streamed_and_split(results: dict[str, dict[str, Any]]) -> None:
    result = results["held out"]
    assert sorted(result["train"] + result["validation"]) == sorted(sentences(100))
    assert 5 < len(result["validation"]) < 40
    assert result["again"] == result["train"]
    assert result["counts"]["blank_skipped"] == 1
    assert (result["columns"], result["text_column"]) == (["id", "review"], "review")
    assert result["samples"] == sentences(100)[:2]


@pytest.mark.slow(5)
def test_named_validation_split_is_used(results: dict[str, dict[str, Any]]) -> None:
    result = results["named split"]
    assert (result["train"], result["validation"]) == (sentences(100), ["one"])


def test_limit_bounds_the_number_of_documents(results: dict[str, dict[str, Any]]) -> None:
    result = results["limit"]
    assert sorted(result["train"] + result["validation"]) == sorted(sentences(100)[:7])


def test_text_column_can_be_chosen(results: dict[str, dict[str, Any]]) -> None:
    assert sorted(results["column"]["train"] + results["column"]["validation"]) == ["one", "two"]


def test_revision_of_a_dataset_is_read(results: dict[str, dict[str, Any]]) -> None:
    result = results["revision"]
    assert sorted(result["train"] + result["validation"]) == ["old", "older"]


def test_configuration_of_the_default_dataset_is_not_used_for_another_dataset(
    results: dict[str, dict[str, Any]],
) -> None:
    for case in ("default configuration", "left over"):
        result = results[case]
        assert sorted(result["train"] + result["validation"]) == ["one", "two"], case


@pytest.mark.parametrize(
    ("case", "kind", "field", "words"),
    [
        ("wrong configuration", "CorpusError", "dataset_config", ["'one', 'two'", "three"]),
        ("wrong revision", "CorpusError", "dataset_revision", ["no revision with this name", "v9"]),
        ("wrong split", "CorpusError", "train_split", ["'train', 'test'", "dev"]),
        (
            "validation on the training split",
            "ConfigError",
            "validation_split",
            ["training and validation splits are the same"],
        ),
        ("wrong validation split", "CorpusError", "validation_split", ["'train', 'test'"]),
        ("two columns", "ConfigError", "text_column", ["a, b"]),
        ("script", "CorpusError", "dataset_name", ["oscar.py", "wikimedia/wikipedia", ".no"]),
        ("unknown script", "CorpusError", "dataset_name", ["scripted.py", "source to files"]),
        ("gated", "CorpusError", "dataset_name", ["permission", "hf auth login"]),
        ("missing", "CorpusError", "dataset_name", ["dataset me/missing doesn't exist"]),
        ("no dataset name", "ConfigError", "dataset_name", ["owner/name"]),
        ("no data", "CorpusError", "dataset_name", ["no data files"]),
        ("damaged", "CorpusError", "dataset_name", ["can't be read"]),
        ("truncated", "CorpusError", "dataset_name", ["data file", "is damaged", "EOFError"]),
        ("wrong checksum", "CorpusError", "dataset_name", ["is damaged", "CRC"]),
        ("nested", "ConfigError", "text_column", ["meta.body", "tags[]"]),
    ],
)
def test_unreadable_dataset_is_reported_with_its_field(
    results: dict[str, dict[str, Any]], case: str, kind: str, field: str, words: list[str]
) -> None:
    result = results[case]
    assert (result["type"], result["field"]) == (kind, field)
    for word in words:
        assert word in result["message"]


def test_nested_columns_and_bytes_of_a_dataset_are_read(
    results: dict[str, dict[str, Any]],
) -> None:
    expected = {
        "nested column": ["b0", "b1", "b2"], "nested lines": ["b0", "b1", "b2"],
        "list column": ["x0\ny", "x1\ny", "x2\ny"], "bytes": ["né", "two"],
    }  # fmt: skip
    for case, texts in expected.items():
        result = results[case]
        assert "train" in result, (case, result)
        assert sorted(result["train"] + result["validation"]) == texts, case


def test_card_that_names_files_outside_its_repository_is_refused_without_a_request(
    tmp_path: Path,
) -> None:
    """Attack: `data_files: http://127.0.0.1...` sent requests to this machine's own services."""
    names = [*FOREIGN_FILES, "second-card"]
    with serving(lambda handler: send(handler, b'{"text": "secret"}\n')) as inner:
        server = serve(inner.url)
        try:
            found = read_all(tmp_path, server.url, [{"dataset_name": f"me/{one}"} for one in names])
        finally:
            server.close()
    for name, result in zip(names, found, strict=True):
        assert result.get("type") == "CorpusError", name
        assert "only files of its own repository" in result["message"], (name, result["message"])
    assert inner.asked == []


def test_unreachable_hub_is_reported_with_an_offline_alternative(tmp_path: Path) -> None:
    oscar = CASES["script"]
    result, script = read_all(tmp_path, "http://127.0.0.1:9", [WORDS, oscar])
    assert result["type"] == "CorpusError"
    assert "can't be reached" in result["message"] and "source to docs" in result["message"]
    assert "script" in script["message"] and "wikimedia/wikipedia" in script["message"]


def test_replacement_is_suggested_for_known_script_datasets() -> None:
    assert "Salesforce/wikitext" in replacement_for("wikitext", "")
    assert "20231101.ko" in replacement_for("oscar", "unshuffled_original_ko")
    assert "20231101.en" in replacement_for("oscar-corpus/OSCAR-2201", "")
    assert replacement_for("me/mine", "") == ""
