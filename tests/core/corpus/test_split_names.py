import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import data_files

from core.config.corpus import CorpusConfig
from core.corpus.files import FilesSource
from core.corpus.split_names import KEYWORDS, splits_of
from core.errors import CorpusError


def opened(path: Path | str, **settings: object) -> FilesSource:
    config = CorpusConfig.parse({"source": "files", "path": str(path), **settings})
    return FilesSource(config, by_split=True)


def read(path: Path | str, part: str = "train", **settings: object) -> list[str]:
    return list(opened(path, **settings).documents(part))


def write(folder: Path, *names: str) -> Path:
    """Writes files that contain their names."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.table({"text": [name]}), path)
        elif name.endswith((".jsonl", ".json")):
            path.write_text(json.dumps({"text": name}) + "\n")
        else:
            path.write_text(name)
    return folder


def test_keywords_are_those_of_datasets() -> None:
    assert {
        str(split): tuple(words) for split, words in data_files.SPLIT_KEYWORDS.items()
    } == KEYWORDS


@pytest.mark.parametrize(
    "names",
    [
        ["data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet",
         "data/test-00000-of-00001.parquet", "data/unsupervised-00000-of-00001.parquet"],
        ["data/train/a.txt", "data/dev/a.txt", "data/test/a.txt"],
        ["en/train/a.jsonl", "en/valid/a.jsonl", "en/eval/a.jsonl"],
        ["train.txt", "val.txt", "test.txt", "urls.txt"],
        ["wiki.train.txt", "wiki.valid.txt", "wiki.testing.txt"],
        ["my_training_set-0.csv.txt", "my_dev_set-0.txt", "my evaluation 1.txt"],
    ],
)  # fmt: skip
def test_only_training_files_are_trained_on(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path, *names)
    by_datasets = data_files.get_data_patterns(str(tmp_path))
    found = data_files.DataFilesDict.from_patterns(by_datasets, str(tmp_path))
    expected = {split: [str(Path(one).relative_to(tmp_path)) for one in found[split]]
                for split in ("train", "validation")}  # fmt: skip
    assert expected == {"train": names[:1], "validation": names[1:2]}
    source = opened(tmp_path)
    assert {split: list(source.documents(split)) for split in expected} == expected
    skipped = source.report.describe_skipped()
    assert all(name in skipped for name in names[2:])
    assert "1 for train, 1 for validation" in source.report.describe_files()[0]


def test_names_that_only_contain_such_words_are_all_read(tmp_path: Path) -> None:
    names = ["contest.txt", "dev-diary.txt", "latest.txt", "test-drive.txt"]
    assert read(write(tmp_path / "a", *names)) == names
    assert read(write(tmp_path / "b", "extra.txt", "train.txt")) == ["extra.txt", "train.txt"]


def test_names_within_a_program_are_no_splits(tmp_path: Path) -> None:
    names = ["link_training.c", "init_test.c", "main.c", "memory.c", "threads.c"]
    assert read(write(tmp_path, *names)) == sorted(names)


def test_test_file_beside_other_files_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "corpus.txt", "test.txt", "dev/a.txt")
    assert read(tmp_path) == ["corpus.txt"] == read(f"{tmp_path}/**/*.txt")
    assert read(tmp_path, "validation") == ["dev/a.txt"]
    assert read(f"{tmp_path}/te*.txt") == ["test.txt"] == read(tmp_path / "test.txt")


def test_test_files_are_read_if_they_are_named(tmp_path: Path) -> None:
    write(tmp_path / "test", "test-1.txt", "test-2.txt")
    assert read(tmp_path / "test") == ["test-1.txt", "test-2.txt"]
    assert read(f"{tmp_path}/test/test-*") == ["test-1.txt", "test-2.txt"]
    assert read(f"{tmp_path}/test/*") == ["test-1.txt", "test-2.txt"]
    with pytest.raises(CorpusError, match="no files for training"):
        read(write(tmp_path / "corpus", "test-1.txt", "test-2.txt"))


def test_validation_path_replaces_the_split_of_that_name(tmp_path: Path) -> None:
    write(tmp_path, "train.txt", "validation.txt", "test.txt", "other/mine.txt")
    chosen = {"validation_path": str(tmp_path / "other" / "mine.txt")}
    assert read(tmp_path, **chosen) == ["train.txt"]
    assert read(tmp_path, "validation", **chosen) == ["other/mine.txt"]


def test_members_of_archives_have_splits(tmp_path: Path) -> None:
    names = ["data/test/a.txt", "data/train/a.txt", "data/train/b.txt"]
    pack(tmp_path / "a.tar.gz", names)
    assert read(tmp_path / "a.tar.gz") == names[1:]
    assert splits_of(["a.tar.gz/" + name for name in names]) == ["test", "train", "train"]


def pack(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name in names:
            data = name.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "zip"])
def test_archives_are_read_beside_other_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"b.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("b/1.txt", "b/2.txt", "LICENSE.txt"):
                archive.writestr(name, name)
    else:
        pack(path, ["b/2.txt", "b/1.txt", "LICENSE.txt", "image.png"])
    write(tmp_path, "a.txt", "LICENSE.txt", "README.txt")
    assert read(tmp_path) == ["a.txt", "b/1.txt", "b/2.txt"]
    assert "LICENSE.txt" in opened(tmp_path).report.describe_skipped()
    write(tmp_path, "b/1.txt", "b/2.txt")
    assert read(tmp_path) == ["a.txt", "b/1.txt", "b/2.txt"]
    assert f"b.{suffix}: its members are in the same folder" in (
        opened(tmp_path).report.describe_skipped()
    )


def test_archive_of_notes_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "notes.zip", "w") as archive:
        for name in ("README.md", "notes/a.md", "notes/b.md", "notes/.obsidian/app.css"):
            archive.writestr(name, name)
        for name in ("x", "y", "z"):
            archive.writestr(f"notes/.git/{name}", name)
    assert read(tmp_path / "notes.zip") == ["notes/a.md", "notes/b.md"]


@pytest.mark.parametrize("data", ["torn", "no tar", "torn.gz"])
def test_damaged_tar_archive_is_refused(tmp_path: Path, data: str) -> None:
    whole = pack(tmp_path / "a.tar", ["a.txt", "b.txt"]).read_bytes()
    path = tmp_path / ("c.tar.gz" if data.endswith("gz") else "c.tar")
    path.write_bytes({"torn": whole[:1100], "no tar": b"text\n" * 200,
                      "torn.gz": gzip.compress(whole)[:-20]}[data])  # fmt: skip
    with pytest.raises(CorpusError, match=r"c\.tar(\.gz)? can't be read"):
        read(path)


def test_tar_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 300_000_000
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(CorpusError, match="too large after decompression") as caught:
        read(path)
    assert caught.value.field == "max_unpack_ratio"


def test_compressed_json_is_read_beside_other_files(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.json", "c.txt", "LICENSE.txt")
    assert read(tmp_path) == ["a.jsonl", "c.txt"]
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(b'{"text": "d"}\n{"text": "e"}\n'))
    assert read(tmp_path) == ["a.jsonl", "b.json", "c.txt", "d", "e"]
    assert read(f"{tmp_path}/*.json*") == ["a.jsonl", "b.json", "d", "e"]
    (tmp_path / "d.json.gz").unlink()
    assert read(f"{tmp_path}/*.json*") == ["a.jsonl", "b.json"]


def test_licence_is_not_the_corpus_beside_json(tmp_path: Path) -> None:
    assert read(write(tmp_path, "LICENSE.txt", "README.txt", "b.json")) == ["b.json"]
    (tmp_path / "b.json").unlink()
    assert read(tmp_path) == ["LICENSE.txt", "README.txt"]


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 31337\n".format("0" * 64)


@pytest.mark.parametrize("name", ["a.parquet", "a.txt", "a.jsonl.gz", "a.zip", "a.tar.gz", "a.csv",
                                  "a.arrow", "in.zip/a.parquet"])  # fmt: skip
def test_git_lfs_pointer_is_refused_with_the_command(tmp_path: Path, name: str) -> None:
    archive, _, member = name.partition("/")
    if member:
        with zipfile.ZipFile(tmp_path / archive, "w") as opened_archive:
            opened_archive.writestr(member, POINTER)
    else:
        (tmp_path / name).write_text(POINTER)
    with pytest.raises(CorpusError, match=r"Git LFS pointer.*31,337 bytes.*git lfs") as caught:
        read(tmp_path)
    assert name in caught.value.problem


def test_datasets_saved_to_disk_are_read(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = {split: Dataset.from_dict({"text": [f"{split} {n}" for n in range(5)], "n": [*range(5)]})
            for split in ("train", "validation", "test")}  # fmt: skip
    DatasetDict(rows).save_to_disk(str(tmp_path / "all"))
    rows["train"].save_to_disk(str(tmp_path / "one"), num_shards=2)
    (tmp_path / "one" / "cache-0.arrow").write_bytes(b"a cache")
    expected = [f"train {n}" for n in range(5)]
    assert read(tmp_path / "one") == expected == read(tmp_path / "all")
    assert read(tmp_path / "all", "validation") == [f"validation {n}" for n in range(5)]
    (tmp_path / "one" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(CorpusError, match=r"is incomplete.*data-00001-of-00002\.arrow"):
        read(tmp_path / "one")


def test_arrow_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    table = pa.table({"meta": [{"body": "one"}, {"body": None}, {"body": "two"}], "n": [1, 2, 3]})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert read(path, text_column="meta.body") == ["one", "", "two"]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorpusError, match=r"a\.arrow can't be read as Arrow"):
        read(path, text_column="meta.body")
