"""Held-out text of files and of datasets on the Hub."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config import EvaluateConfig
from core.errors import ConfigError
from core.evaluation.documents import check_is_named
from core.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.hub_server import HubServer, run_with_hub

READ = """
import json, sys
from core.config import EvaluateConfig
from core.errors import StudioError
from core.evaluation.documents import read_documents
found = []
for values in json.loads(sys.argv[1]):
    try:
        config = EvaluateConfig(task="text", **values)
        found.append([[name, list(texts)] for name, texts in read_documents(config)])
    except StudioError as error:
        found.append([error.field, str(error)])
print(json.dumps(found))
"""
CARD = b"""---
configs:
- config_name: en
  data_files:
  - {split: test, path: en.parquet}
- config_name: "no"
  data_files:
  - {split: test, path: no.parquet}
---
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A Hub with a dataset of two languages, and one without configurations."""
    server = HubServer()
    texts = {"en": ["A ship.", " ", "A horse."], "no": ["Et skip."]}
    files = {f"{name}.parquet": table(some) for name, some in texts.items()}
    server.add("datasets", "me/languages", {"README.md": CARD, **files})
    server.add("datasets", "me/plain", {"train.parquet": table(["One text.", "Another."])})
    yield server
    server.close()


def table(texts: list[str]) -> bytes:
    stream = io.BytesIO()
    rows = [{"title": "t", "story": text} for text in texts]
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


def test_text_without_a_path_needs_a_dataset() -> None:
    with pytest.raises(ConfigError, match=r"no text to evaluate on.*set path or dataset_name"):
        check_is_named(EvaluateConfig(task="text"))
    check_is_named(EvaluateConfig(task="text", dataset_name="a/b"))
    assert EvaluateConfig().dataset == "nyu-mll/blimp"
    assert EvaluateConfig(path="a.jsonl", dataset_name="a/b").dataset == ""


@pytest.mark.slow
def test_each_configuration_of_a_hub_dataset_is_a_source(hub: HubServer, tmp_path: Path) -> None:
    of_test = {"dataset_name": "me/languages", "split": "test"}
    asked: list[dict[str, Any]] = [
        {**of_test, "text_column": "story"},
        {**of_test, "text_column": "story", "limit": 1, "dataset_config": "en"},
        {"dataset_name": "me/plain", "text_column": "story"},
        of_test,
        {**of_test, "split": "train", "text_column": "story"},
        {**of_test, "dataset_config": "fi", "text_column": "story"},
        {"dataset_name": "me/missing"},
    ]
    done = run_with_hub(hub.url, tmp_path, "-c", READ, json.dumps(asked))
    assert done.returncode == 0, done.stderr[-3000:]
    every, first, plain, *refused = json.loads(done.stdout.splitlines()[-1])
    assert every == [["en", ["A ship.", "A horse."]], ["no", ["Et skip."]]]
    assert first == [["en", ["A ship."]]]
    assert plain == [["me/plain", ["One text.", "Another."]]]
    fields = ["text_column", "split", "dataset_config", "dataset_name"]
    assert [field for field, _ in refused] == fields
    assert hub.unknown_requests == []


@pytest.mark.slow(20)
def test_command_evaluates_text_of_the_hub(hub: HubServer, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with workspace.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, make_tokenizer(workspace, "byte_level_bpe"))
    words = ["-m", "core", "evaluate", "--model", "words", "--task", "text", "--json"]
    place = ["--workspace", str(workspace.root)]
    data = ["--dataset-name", "me/languages", "--split", "test", "--text-column", "story"]
    done = run_with_hub(hub.url, tmp_path, *words, *place, *data)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures["by_source"]) == ["en", "no"] and figures["documents"] == 3
    manifest = workspace.list("evaluation")[0].manifest
    assert (manifest.name, manifest.config["dataset_name"]) == ("words-languages", "me/languages")
