"""Tests of the shards stage: its sequences, its clean-up after failures, and its errors."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.corpus.reading import open_corpus
from core.errors import ConfigError, CorpusError, ShardError
from core.objectives.objective import ObjectiveSettings
from core.objectives.registry import create_objective
from core.records.events import Reporter, RunStopped
from core.shards import packing
from core.shards.build import build
from core.shards.destination import FolderDestination
from core.shards.protobuf import INT64, decode_varint_lists, parse_example
from core.shards.read import Rows, open_shards
from core.shards.records import walk
from core.tokenizer.loading import load
from core.tokenizer.vocabulary import vocabulary_of
from core.workspace.manifests import damaged_files, read_manifest
from core.workspace.workspace import Workspace
from tests.core.shards.conftest import write_damaged
from tests.texts import write_sentences

ROOT = Path(__file__).parents[3]


def expected_tokens(config: ShardConfig, workspace: Workspace, split: str) -> list[int]:
    """Encodes each document separately and concatenates the ids."""
    tokenizer = load(config.tokenizer, workspace)
    corpus = open_corpus(config.corpus, workspace)
    return [
        number for text in corpus.documents(split) for number in tokenizer.encode(text).tolist()
    ]


def changed(config: ShardConfig, **values: object) -> ShardConfig:
    return ShardConfig(**{**config.model_dump(), **values})


@pytest.mark.parametrize("tokenizer", ["unigram", "bpe"])
@pytest.mark.parametrize("record_format", ["bytes", "int64"])
def test_sequences_hold_every_token_except_an_incomplete_last_sequence(
    config: ShardConfig, workspace: Workspace, tokenizer: str, record_format: str
) -> None:
    config = changed(config, tokenizer=tokenizer, record_format=record_format)
    counts = build(config, workspace).manifest.counts
    shards = open_shards("small", workspace)
    dropped = 0
    for split, rows in (("train", shards.train), ("validation", shards.validation)):
        tokens = expected_tokens(config, workspace, split)
        whole, rest = divmod(len(tokens), 16)
        taken = rows.take(np.arange(len(rows)))
        assert taken.reshape(-1).tolist() == tokens[: whole * 16]
        assert counts[f"{split}_rows"] == len(rows) == whole
        assert counts[f"{split}_tokens"] == whole * 16
        dropped += rest
    assert counts["tokens_dropped"] == dropped
    assert counts["train_documents"] + counts["validation_documents"] == len(
        set(Path(config.corpus.path).read_text("utf-8").splitlines())
    )


def test_batch_size_does_not_change_the_fingerprint(
    config: ShardConfig, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(config, workspace)
    monkeypatch.setattr(packing.Batcher.__init__, "__defaults__", (100, 50))
    second = build(changed(config, name="again"), workspace)
    assert second.fingerprint == first.fingerprint


def test_shard_files_are_named_and_split_as_in_the_original_script(
    config: ShardConfig, workspace: Workspace
) -> None:
    artifact = build(config, workspace)
    rows = artifact.manifest.counts["train_rows"]
    names = {path.name for path in (artifact.path / "train").iterdir()}
    full = {f"dataset-{shard}-50.tfrecord" for shard in range(rows // 50)}
    assert names == full | {f"dataset-{rows // 50}-{rows % 50}.tfrecord"}


def test_manifest_records_inputs_counts_and_tokenizer(
    config: ShardConfig, workspace: Workspace
) -> None:
    artifact = build(config, workspace)
    tokenizer = load("unigram", workspace)
    manifest = artifact.manifest
    assert manifest.inputs == {
        "corpus": open_corpus(config.corpus, workspace).fingerprint,
        "tokenizer": tokenizer.fingerprint,
    }
    assert manifest.counts["row_length"] == 16
    assert manifest.counts["vocab_size"] == tokenizer.vocab_size
    assert damaged_files(artifact.path, manifest) == []
    shards = open_shards("small", workspace)
    assert shards.tokenizer_folder and load(str(shards.tokenizer_folder)).fingerprint == (
        tokenizer.fingerprint
    )
    rows = shards.train.take(np.arange(len(shards.train)))
    assert np.array_equal(
        shards.token_counts, np.bincount(rows.reshape(-1), minlength=tokenizer.vocab_size)
    )


def test_the_same_config_gives_the_same_fingerprint(
    config: ShardConfig, workspace: Workspace
) -> None:
    first = build(config, workspace)
    second = build(changed(config, name="second"), workspace)
    assert first.fingerprint == second.fingerprint
    assert build(changed(config, name="third", max_seq_length=8), workspace).fingerprint != (
        first.fingerprint
    )


def test_default_name_is_derived_from_the_settings(
    config: ShardConfig, workspace: Workspace
) -> None:
    config = changed(config, name="", tokenizer=str(workspace.folder("tokenizer") / "unigram"))
    assert build(config, workspace).name == "files-unigram-16"
    assert build(config, workspace).name == "files-unigram-16-2"


def test_single_split_can_be_built(config: ShardConfig, workspace: Workspace) -> None:
    both = build(config, workspace).manifest.counts
    for split, other in (("train", "validation"), ("validation", "train")):
        artifact = build(changed(config, name=split, split=split), workspace)
        assert artifact.manifest.counts[f"{split}_rows"] == both[f"{split}_rows"]
        assert artifact.manifest.counts[f"{other}_rows"] == 0
        assert not (artifact.path / other).exists()
        shards = open_shards(split, workspace)
        assert len(getattr(shards, other)) == 0
        assert shards.row_length == 16


def test_shards_can_be_written_to_another_folder(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    here = build(config, workspace)
    place = tmp_path / "deep" / "place"
    artifact = build(changed(config, name="there", output_dir=str(place)), workspace)
    assert artifact.manifest.location == str(place)
    assert artifact.manifest.counts == here.manifest.counts
    assert artifact.fingerprint == here.fingerprint
    assert damaged_files(place, read_manifest(place)) == []
    for reference in ("there", str(place)):
        shards = open_shards(reference, workspace)
        assert shards.path == place
        assert len(shards.train) == here.manifest.counts["train_rows"]
    assert [path.name for path in place.parent.iterdir()] == ["place"]


def test_moved_or_replaced_output_folder_is_reported(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    build(changed(config, output_dir=str(place)), workspace)
    place.rename(tmp_path / "moved")
    with pytest.raises(ShardError, match="not at their location"):
        open_shards("small", workspace)
    build(changed(config, name="other", max_seq_length=8, output_dir=str(place)), workspace)
    with pytest.raises(ShardError, match="have changed"):
        open_shards("small", workspace)


def test_non_empty_output_folder_is_refused_and_left_unchanged(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="isn't empty") as caught:
        build(changed(config, output_dir=str(place)), workspace)
    assert caught.value.field == "output_dir"
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    assert not list(workspace.folder("shards").glob("*"))


def test_output_folder_that_denies_access_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ConfigError, match=r"place can't be written to.*denied") as caught:
        FolderDestination(tmp_path / "place")
    assert caught.value.field == "output_dir"


def test_empty_output_folder_is_accepted(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "place").mkdir()
    build(changed(config, output_dir=str(tmp_path / "place")), workspace)
    assert (tmp_path / "place" / "manifest.json").is_file()


@pytest.mark.parametrize("is_there", [True, False])
def test_symbolic_link_to_the_output_folder_is_followed(
    config: ShardConfig, workspace: Workspace, tmp_path: Path, is_there: bool
) -> None:
    place, link = tmp_path / "disk" / "place", tmp_path / "link"
    if is_there:
        place.mkdir(parents=True)
    link.symlink_to(place)
    artifact = build(changed(config, output_dir=str(link)), workspace)
    assert artifact.manifest.location == str(link) and link.is_symlink()
    assert [path.name for path in place.parent.iterdir()] == ["place"]
    assert open_shards("small", workspace).fingerprint == artifact.fingerprint


def test_mount_point_is_refused_before_the_corpus_is_read(
    config: ShardConfig, workspace: Workspace
) -> None:
    missing = CorpusConfig(source="files", path="/nowhere.txt")
    with pytest.raises(ConfigError, match=r"is a mount point.*/shards") as caught:
        build(changed(config, corpus=missing.model_dump(), output_dir="/"), workspace)
    assert caught.value.field == "output_dir"


@pytest.mark.parametrize("output_dir", ["", "place"])
def test_stopped_build_leaves_no_files_or_threads(
    config: ShardConfig,
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output_dir: str,
) -> None:
    class StopsAfterSomeRows(Reporter):
        checks = 0

        def raise_if_stopped(self) -> None:
            self.checks += 1
            if self.checks > 5:
                raise RunStopped("abort")

    monkeypatch.setattr(packing.Batcher.__init__, "__defaults__", (500, 50))
    threads = threading.active_count()
    place = str(tmp_path / output_dir) if output_dir else ""
    with pytest.raises(RunStopped):
        build(changed(config, output_dir=place), workspace, StopsAfterSomeRows())
    assert not list(workspace.folder("shards").glob("*"))
    assert not list(workspace.folder("shards").glob(".*"))
    assert {path.name for path in tmp_path.iterdir()} == {"workspace"}
    assert threading.active_count() == threads


def test_full_disk_is_reported_and_leaves_no_files(
    config: ShardConfig, workspace: Workspace
) -> None:
    """A file-size limit in a separate process stands in for a full disk."""
    code = """
import resource, sys
from core.config import ShardConfig
from core.errors import ShardError
from core.shards.build import build
from core.workspace import Workspace
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
try:
    build(ShardConfig.model_validate_json(sys.argv[1]), Workspace(sys.argv[2]))
except ShardError as error:
    print(error)
"""
    values = changed(config, shard_size=10_000).model_dump_json()
    result = subprocess.run(
        [sys.executable, "-c", code, values, str(workspace.root)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "can't be written" in result.stdout and "File too large" in result.stdout
    assert not list(workspace.folder("shards").glob("*"))
    assert not list(workspace.folder("shards").glob(".*"))


def test_build_does_not_import_pandas_tensorflow_jax_or_keras(
    config: ShardConfig, workspace: Workspace
) -> None:
    code = """
import sys
from pathlib import Path
from core.config import ShardConfig
from core.shards.build import build
from core.workspace import Workspace
build(ShardConfig.model_validate_json(sys.argv[1]), Workspace(Path(sys.argv[2])))
print(sorted({"pandas", "tensorflow", "jax", "keras"} & {*sys.modules}), "pyarrow" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, config.model_dump_json(), str(workspace.root)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert result.stdout == "[] True\n"


def test_too_little_text_is_reported_with_the_tokens_a_sequence_needs(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    with pytest.raises(
        ShardError, match=r"single validation sequence.*at least 60000 tokens"
    ) as caught:
        build(changed(config, split="validation", max_seq_length=60_000), workspace)
    tokens = len(expected_tokens(config, workspace, "validation"))
    assert f"Received: {tokens} tokens" in str(caught.value)
    with pytest.raises(ShardError, match="single training sequence"):
        build(changed(config, max_seq_length=60_000), workspace)
    assert not list(workspace.folder("shards").glob("*"))


def test_corpus_without_a_held_out_document_is_refused(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    text = tmp_path / "one.txt"
    text.write_text("the river and the mountain under the quiet house " * 100, "utf-8")
    corpus = CorpusConfig(source="files", path=str(text))
    with pytest.raises(CorpusError, match="too few documents to hold some out"):
        build(changed(config, corpus=corpus.model_dump()), workspace)


def test_tokenizer_without_a_mask_token_is_refused(
    config: ShardConfig, workspace: Workspace
) -> None:
    folder = workspace.folder("tokenizer") / "bpe"
    specification = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    for token in specification["added_tokens"]:
        token["content"] = token["content"].replace("<mask>", "<extra>")
    vocabulary = specification["model"]["vocab"]
    vocabulary["<extra>"] = vocabulary.pop("<mask>")
    (folder / "tokenizer.json").write_text(json.dumps(specification), "utf-8")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="mask token") as caught:
        build(changed(config, tokenizer="bpe"), workspace)
    assert caught.value.field == "tokenizer"


def test_taken_name_is_refused_before_the_corpus_is_read(
    config: ShardConfig, workspace: Workspace
) -> None:
    build(config, workspace)
    missing = CorpusConfig(source="files", path="/nowhere.txt")
    with pytest.raises(ConfigError, match="is taken"):
        build(changed(config, corpus=missing.model_dump()), workspace)


def test_long_document_is_encoded_in_parts_without_losing_tokens(
    config: ShardConfig,
    workspace: Workspace,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = {
        "source": "files",
        "path": str(text),
        "text_unit": "file",
        "validation_path": str(write_sentences(tmp_path / "validation.txt", 30, seed=1)),
    }
    config = changed(config, corpus=corpus, split="train")
    monkeypatch.setattr(packing.Batcher.__init__, "__defaults__", (1000, 50))
    build(config, workspace)
    rows = open_shards("small", workspace).train
    tokens = expected_tokens(config, workspace, "train")
    assert rows.take(np.arange(len(rows))).reshape(-1).tolist() == tokens[: len(rows) * 16]


def test_progress_is_reported(config: ShardConfig, workspace: Workspace) -> None:
    class Listens(Reporter):
        def __init__(self) -> None:
            self.heard: list[tuple[float, str, str]] = []

        def progress(
            self, done: float, total: float | None = None, unit: str = "", note: str = ""
        ) -> None:
            self.heard.append((done, unit, note))

    reporter = Listens()
    build(config, workspace, reporter)
    done, unit, note = reporter.heard[-1]
    assert (done > 0, unit) == (True, "documents")
    assert re.fullmatch(r"[\d,]+ tokens, [\d.,]+ [kMG]?B/s", note)


def test_large_vocabulary_is_stored_with_four_bytes_per_id(
    config: ShardConfig, workspace: Workspace
) -> None:
    build(changed(config, tokenizer="bpe"), workspace)
    narrow = open_shards("small", workspace)
    folder = workspace.folder("tokenizer") / "bpe"
    specification = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    specification["model"]["vocab"]["seldom seen"] = 70_000
    (folder / "tokenizer.json").write_text(json.dumps(specification), "utf-8")
    build(changed(config, name="wide", tokenizer="bpe"), workspace)
    wide = open_shards("wide", workspace)
    assert wide.vocab_size == 70_001
    rows = np.arange(len(narrow.train))
    assert np.array_equal(wide.train.take(rows), narrow.train.take(rows))
    sizes = [file.path.stat().st_size // file.records for file in wide.train.files]
    narrow_sizes = [file.path.stat().st_size // file.records for file in narrow.train.files]
    assert {w - n for w, n in zip(sizes, narrow_sizes, strict=True)} == {2 * 16}


def rows_of(config: ShardConfig, workspace: Workspace, split: str = "train") -> np.ndarray:
    build(config, workspace)
    rows = getattr(open_shards(config.name, workspace), split)
    return rows.take(np.arange(len(rows)))


@pytest.mark.parametrize(
    ("objective", "tokenizer", "length", "stored"),
    [
        ("mlm", "wordpiece", 128, 128),
        ("clm", "bpe", 128, 128),
        ("span_corruption", "t5", 512, 568),
        ("span_corruption", "t5", 64, 70),
        ("denoising", "bpe", 128, 128),
    ],
)
def test_stored_sequence_length_depends_on_the_objective(
    config: ShardConfig,
    workspace: Workspace,
    objective: str,
    tokenizer: str,
    length: int,
    stored: int,
) -> None:
    config = changed(config, objective=objective, tokenizer=tokenizer, max_seq_length=length)
    counts = build(config, workspace).manifest.counts
    shards = open_shards("small", workspace)
    assert counts["row_length"] == shards.row_length == stored
    assert (shards.objective, shards.max_seq_length, shards.line_by_line) == (
        objective, length, False,
    )  # fmt: skip
    vocabulary = vocabulary_of(load(tokenizer, workspace))
    made = create_objective(objective, ObjectiveSettings(length), vocabulary)
    batch = made.batch(shards.train.take(np.arange(2)), 0, 0)
    assert batch["input_ids"].shape == (2, length)


def test_mlm_and_clm_shards_hold_the_same_sequences(
    config: ShardConfig, workspace: Workspace
) -> None:
    masked = rows_of(config, workspace)
    following = rows_of(changed(config, name="next", objective="clm"), workspace)
    np.testing.assert_array_equal(masked, following)


@pytest.mark.parametrize("tokenizer", ["unigram", "bpe"])
def test_clm_shards_add_an_end_token_if_the_tokenizer_adds_none(
    config: ShardConfig, workspace: Workspace, tmp_path: Path, tokenizer: str
) -> None:
    load(tokenizer, workspace).copy_to(tmp_path / "endless", ends=False)
    config = changed(config, objective="clm", tokenizer=tokenizer)
    copied = changed(config, name="copied", tokenizer=str(tmp_path / "endless"))
    np.testing.assert_array_equal(rows_of(copied, workspace), rows_of(config, workspace))


@pytest.mark.parametrize("tokenizer", ["unigram", "bpe", "wordpiece"])
def test_denoising_shards_mark_the_end_of_each_sentence_with_padding(
    config: ShardConfig, workspace: Workspace, tmp_path: Path, tokenizer: str
) -> None:
    lines = Path(config.corpus.path).read_text("utf-8").splitlines()
    paragraphs = [" ".join(lines[n : n + 5]) for n in range(0, len(lines), 5)]
    (tmp_path / "five.txt").write_text("\n".join(paragraphs), "utf-8")
    corpus = {"source": "files", "path": str(tmp_path / "five.txt"), "validation_percent": 20}
    config = changed(config, objective="denoising", tokenizer=tokenizer, corpus=corpus)
    stream = rows_of(config, workspace).reshape(-1)
    known = load(tokenizer, workspace)
    expected = expected_tokens(config, workspace, "train")
    unmarked = stream[stream != known.pad_id]
    assert unmarked.tolist() == expected[: len(unmarked)]
    after_marks = stream[1:][stream[:-1] == known.pad_id]
    begins = [known.readable(int(number)).strip()[:1] for number in after_marks]
    assert all(first.isupper() or first in "<[" for first in begins)
    documents = np.count_nonzero(stream == known.sep_id)
    assert abs(np.count_nonzero(stream == known.pad_id) - 5 * documents) <= 5
    assert open_shards("small", workspace).token_counts[known.pad_id] == 0


def stored_masks(rows: Rows) -> list[list[int] | None]:
    """Returns the attention mask of each record; None for one without."""
    masks: list[list[int] | None] = []
    for file in rows.files:
        content, offsets = file.path.read_bytes(), list(walk(file.path))
        for start, end in pairwise(offsets):
            features = parse_example(content[start + 12 : end - 4])
            kind, parts = features.get("attention_mask", (INT64, []))
            assert kind == INT64
            masks.append(decode_varint_lists([b"".join(parts)])[0].tolist() if parts else None)
    return masks


@pytest.mark.parametrize("record_format", ["bytes", "int64"])
def test_line_by_line_shards_hold_one_sequence_per_line(
    config: ShardConfig, workspace: Workspace, record_format: str
) -> None:
    config = changed(config, line_by_line=True, max_seq_length=24, record_format=record_format)
    counts = build(config, workspace).manifest.counts
    shards = open_shards("small", workspace)
    tokenizer = load("unigram", workspace)
    texts = list(open_corpus(config.corpus, workspace).documents("train"))
    assert len(shards.train) == len(texts) == counts["train_rows"]
    cut = 0
    for row, text in zip(shards.train.take(np.arange(len(texts))), texts, strict=True):
        ids = tokenizer.encode(text).tolist()
        kept = ids if len(ids) <= 24 else [*ids[:23], tokenizer.sep_id]
        cut += len(ids) - len(kept)
        assert row.tolist() == kept + [tokenizer.pad_id] * (24 - len(kept))
    masks = stored_masks(shards.train)
    if record_format == "int64":
        rows = shards.train.take(np.arange(len(texts)))
        np.testing.assert_array_equal(masks, rows != tokenizer.pad_id)
    else:
        assert masks == [None] * len(texts)
    assert 0 < cut <= counts["tokens_dropped"]
    assert shards.line_by_line and shards.token_counts[tokenizer.pad_id] == 0


def test_line_by_line_splits_documents_and_skips_blank_lines(
    config: ShardConfig, workspace: Workspace, text: Path
) -> None:
    lines = rows_of(changed(config, line_by_line=True, split="train"), workspace)
    text_of_all = "\n  \n".join(text.read_text("utf-8").splitlines())
    whole = text.parent / "whole.txt"
    whole.write_text(text_of_all, "utf-8")
    corpus = {"source": "files", "path": str(whole), "text_unit": "file"}
    corpus["validation_path"] = str(text)
    config = changed(config, name="whole", line_by_line=True, split="train", corpus=corpus)
    rows = rows_of(config, workspace)
    assert len(rows) == 600 and set(map(tuple, lines)) <= set(map(tuple, rows))


def test_tokenizer_without_the_objectives_special_tokens_is_refused_before_reading_text(
    config: ShardConfig, workspace: Workspace
) -> None:
    missing = {"source": "files", "path": "/nowhere.txt"}
    for objective, tokenizer, lacks in (
        ("mlm", "t5", "mask token"),
        ("denoising", "t5", "mask token"),
        ("span_corruption", "bpe", "<extra_id_0>"),
    ):
        wrong = changed(
            config, objective=objective, tokenizer=tokenizer, corpus=missing, max_seq_length=64
        )
        with pytest.raises(ConfigError, match=lacks) as caught:
            build(wrong, workspace)
        assert caught.value.field == "tokenizer"


def test_line_by_line_is_refused_for_clm(config: ShardConfig, workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="only for masked language modelling") as caught:
        build(changed(config, objective="clm", line_by_line=True), workspace)
    assert caught.value.field == "line_by_line"


def test_sequences_too_short_for_a_masked_span_are_refused(
    config: ShardConfig, workspace: Workspace
) -> None:
    short = changed(config, objective="span_corruption", tokenizer="t5", max_seq_length=8)
    with pytest.raises(ConfigError) as caught:
        build(short, workspace)
    assert caught.value.field == "max_seq_length"


def test_leftovers_of_a_killed_build_are_removed(
    config: ShardConfig, workspace: Workspace, tmp_path: Path
) -> None:
    long_ago = time.time() - 3600
    left, other = tmp_path / ".place.1234.draft", tmp_path / ".mine.1234.draft"
    for folder in (left, other):
        folder.mkdir()
        (folder / "rows").write_text("x")
        os.utime(folder, (long_ago, long_ago))
    build(changed(config, output_dir=str(tmp_path / "place")), workspace)
    assert not left.exists()
    assert other.exists()  # Its owner is unknown.


class Notes(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str, **fields: object) -> None:
        self.lines.append(message)


@pytest.fixture
def damaged(config: ShardConfig, tmp_path: Path) -> ShardConfig:
    """A build of several parts in this process; one of the second file can't be read."""
    path = write_damaged(tmp_path / "damaged")
    corpus = CorpusConfig(path=str(path), drop_overlapping_validation=False)
    return changed(config, corpus=corpus, part_mb=0.01, workers=1)


def test_build_that_skips_parts_goes_on_after_those_finished_before(
    damaged: ShardConfig, workspace: Workspace
) -> None:
    with pytest.raises(CorpusError, match=r"b\.txt is not UTF-8"):
        build(damaged, workspace)
    reporter = Notes()
    skipping = changed(damaged, skip_failing_parts=True)
    built = build(skipping, workspace, reporter)
    assert any("parts were finished before; they are kept" in line for line in reporter.lines)
    assert built.manifest.counts["parts_skipped"] == 1
    whole = build(changed(skipping, name="whole"), workspace, other := Notes())
    assert not any("finished before" in line for line in other.lines)
    assert whole.manifest.files == built.manifest.files
    assert whole.manifest.counts == built.manifest.counts


def test_parts_of_other_versions_of_packages_are_built_again(
    damaged: ShardConfig, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CorpusError):
        build(damaged, workspace)
    monkeypatch.setattr("core.parts.versions.version", lambda package: "0.0")
    reporter = Notes()
    build(changed(damaged, skip_failing_parts=True), workspace, reporter)
    assert not any("finished before" in line for line in reporter.lines)
