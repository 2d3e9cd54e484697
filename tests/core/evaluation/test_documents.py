"""Held-out text of files and of datasets on the Hub."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig, options_read
from core.corpus.lines import too_large
from core.errors import ConfigError, StudioError
from core.evaluation.advice import naming_options
from core.evaluation.documents import check_is_named, check_text, read_documents
from core.evaluation.pairs import check_pairs
from core.evaluation.stage import run as evaluate
from core.evaluation.unused import check_used
from core.workspace.workspace import Workspace
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


CSV = b"1,It runs fast.\n2,It ran.\n"


@pytest.mark.parametrize(
    ("name", "data", "values", "texts"),
    [
        ("a.csv", CSV, {"csv_header": "no", "text_column": "2"}, ["It runs fast.", "It ran."]),
        ("a.tsv", b'id\ttext\n1\t"A ship.\n', {"quoting": "no"}, ['"A ship.']),
        ("a.csv", b"a,id;text\n1,5;A ship.\n", {"delimiter": "semicolon"}, ["A ship."]),
        ("a.txt", b"A sh\xfcp.\n" + b"A ship.\n" * 9, {"encoding_errors": "ignore", "limit": 1},
         ["A shp."]),
    ],
)  # fmt: skip
def test_advised_options_make_files_readable(
    tmp_path: Path, name: str, data: bytes, values: dict[str, Any], texts: list[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    config = EvaluateConfig(task="text", path=str(tmp_path / name))
    with pytest.raises(StudioError) as caught:
        assert [list(one) for _, one in read_documents(config)] == [texts]
    assert caught.value.field in {*values, "path", "encoding"}
    assert next(iter(values)) in caught.value.fix
    config = config.model_copy(update=values)
    check_used(config)
    assert [list(one) for _, one in read_documents(config)] == [texts]


@pytest.mark.parametrize("task", ["text", "minimal_pairs"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("folder", b""), ("a.zip", b"PK\x05\x06" + bytes(18)), ("held.en", b"A\x01"),
        ("a.jsonl", b"PAR1\x00\x00PAR1"), ("", b""),
    ],
)  # fmt: skip
def test_errors_advise_only_options_of_this_stage(
    tmp_path: Path, name: str, data: bytes, task: Literal["text", "minimal_pairs"]
) -> None:
    path = tmp_path / name
    if data:
        path.write_bytes(data)
    else:
        path.mkdir(exist_ok=True)
    config = EvaluateConfig(task=task, path=str(path))
    with pytest.raises(StudioError) as caught, naming_options(config):
        if not name:
            raise too_large("a.jsonl", 128_000_000)
        (check_text if task == "text" else check_pairs)(config)
    options = options_read(task, has_path=True)
    assert caught.value.field in options
    absent = {*CorpusConfig.model_fields, *EvaluateConfig.model_fields} - {*options}
    assert not absent & set(re.findall(r"\w+_\w+", caught.value.fix)), caught


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a.txt", {"dataset_name": "a/b"}), ("a.txt", {"split": "test"}),
        ("a.txt", {"good_field": "good"}), ("a.txt", {"text_column": "text"}),
        ("a.txt", {"csv_header": "no"}), ("a.csv", {"text_unit": "file"}),
        ("a.csv", {"phenomenon_field": ""}), ("", {"encoding": "cp949"}),
        ("", {"text_unit": "file"}), ("", {"paradigm_field": "kind"}),
    ],
)  # fmt: skip
def test_options_without_effect_on_text_are_refused(
    tmp_path: Path, name: str, values: dict[str, str]
) -> None:
    if name:
        (tmp_path / name).write_text("id,text\n1,A ship.\n")
    data = {"path": str(tmp_path / name)} if name else {"dataset_name": "a/b"}
    check_used(EvaluateConfig.parse({"task": "text", **data}))
    with pytest.raises(ConfigError, match="has no effect") as caught:
        evaluate(EvaluateConfig.parse({"task": "text", **data, **values}), Workspace(tmp_path))
    assert [caught.value.field] == list(values)


@pytest.mark.parametrize("name", ["text_column", "context_tokens", "csv_header", "split"])
def test_options_without_effect_on_pairs_are_refused(name: str) -> None:
    value = {"context_tokens": "8", "csv_header": "no"}.get(name, "story")
    check_used(EvaluateConfig(path="a.jsonl", encoding="cp949"))
    with pytest.raises(ConfigError, match=f"^{name} has no effect") as caught:
        check_used(EvaluateConfig.parse({"path": "a.jsonl", name: value}))
    assert caught.value.field == name


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
