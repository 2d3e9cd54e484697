"""Tests that what the system refuses is told by its cause, whatever was being read or written."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import ConfigError, CorpusError
from core.messages.system_errors import advice_for

READ_WITH_A_LIMIT = """
import json, os, resource, sys
from core.config import CorpusConfig
from core.corpus.files import FilesSource
from core.errors import StudioError
import pyarrow.parquet
limit, path = sys.argv[1:]
source = FilesSource(CorpusConfig(source="files", path=path))
list(source.documents("train"))
if limit == "sizes":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096,) * 2)
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1,) * 2)
try:
    list(source.documents("train"))
except StudioError as error:
    print(json.dumps(error.to_dict()))
"""


def raised(error: OSError) -> dict[str, str]:
    try:
        try:
            raise error
        except OSError as caught:
            raise CorpusError("Reading x failed", fix="repair the file or exclude it") from caught
    except CorpusError as told:
        return told.to_dict()


@pytest.mark.parametrize("code", [28, 122, 27], ids=["full", "quota", "size limit"])
def test_full_disk_is_named_by_its_folder(code: int, tmp_path: Path) -> None:
    told = raised(OSError(code, os.strerror(code), str(tmp_path / "gone" / "a.txt")))
    assert "exclude" not in told["fix"]
    assert str(tmp_path) in told["received"] and "free" in told["fix"]


def test_full_temporary_folder_is_answered_with_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = raised(OSError(28, os.strerror(28), str(tmp_path / "a")))
    assert "TMPDIR" in told["fix"] and str(tmp_path) in told["received"]
    # Nobody knows where it was: both places are named.
    told = raised(OSError(28, os.strerror(28)))
    assert "TMPDIR" in told["fix"] and str(tmp_path) in told["received"]


def test_open_files_names_and_rights_get_their_own_advice(tmp_path: Path) -> None:
    assert "ulimit" in raised(OSError(24, os.strerror(24)))["fix"]
    assert "shorter" in raised(OSError(36, os.strerror(36), str(tmp_path / ("x" * 300))))["fix"]
    told = raised(PermissionError(13, os.strerror(13), "/root/a.txt"))
    assert "rights" in told["fix"] and "/root/a.txt" in told["received"]


def test_words_of_a_library_are_recognised_and_other_errors_keep_their_advice() -> None:
    assert advice_for(RuntimeError("IoError: No space left on device (os error 28)")) is not None
    assert advice_for(ValueError("a text about No spaces")) is None
    told = raised(FileNotFoundError(2, os.strerror(2), "a.txt"))
    assert told["fix"] == "repair the file or exclude it"
    with pytest.raises(ConfigError) as caught:
        raise ConfigError("A value is wrong", fix="choose another")
    assert caught.value.fix == "choose another"


def test_an_error_keeps_its_advice_only_if_it_knows_the_cause() -> None:
    refusals = {}
    for knows_cause in (True, False):
        try:
            raise OSError(24, os.strerror(24))
        except OSError:
            fix = "check that it is the right file, and free space"
            refusals[knows_cause] = CorpusError("x", fix=fix, knows_cause=knows_cause).fix
    assert refusals[True].endswith("free space") and "ulimit" in refusals[False]


@pytest.mark.parametrize(("limit", "helps"), [("sizes", "TMPDIR"), ("files", "ulimit -n")])
def test_corpus_that_the_system_does_not_let_be_read_is_not_called_damaged(
    limit: str, helps: str, tmp_path: Path
) -> None:
    table = pa.table({"text": [f"Row {number} has words of its own." for number in range(9000)]})
    pq.write_table(table, tmp_path / "plain.parquet", compression="none")
    path = tmp_path / "rows.parquet.gz"
    path.write_bytes(gzip.compress((tmp_path / "plain.parquet").read_bytes()))
    command = [sys.executable, "-c", READ_WITH_A_LIMIT, limit, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = json.loads(said)
    assert helps in told["fix"] and "exclude" not in told["fix"], told
