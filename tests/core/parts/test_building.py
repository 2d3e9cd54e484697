"""Tests that shards have the same bytes for any number of processes, and after kills."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from core import CorpusConfig, ShardConfig, TokenizerConfig, Workspace, build_shards
from core.errors import CorpusError
from core.tokenizer.training import train
from tests.core.runs.support import wait_for
from tests.texts import SCRIPTS, write_scripts

pytestmark = pytest.mark.long
PART_MB = 0.05
_KILLS = 10
_BUILD = """
import sys
from core import ShardConfig, Workspace, build_shards
build_shards(ShardConfig.model_validate_json(sys.argv[1]), Workspace(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a tokenizer, and texts in four scripts beside it."""
    folder = tmp_path_factory.mktemp("home")
    write_scripts(folder, 400_000)
    workspace = Workspace(folder / "workspace")
    corpus = CorpusConfig(path=str(folder / "*.txt"))
    train(
        TokenizerConfig(name="words", corpus=corpus, algorithm="byte_level_bpe", vocab_size=600),
        workspace,
    )
    return folder


def config(home: Path, script: str, name: str, **fields: object) -> ShardConfig:
    values = {
        "name": name, "corpus": CorpusConfig(path=str(home / f"{script}.txt")),
        "tokenizer": "words", "preset": "custom", "max_seq_length": 64, "shard_size": 100,
        "part_mb": PART_MB,
    }  # fmt: skip
    return ShardConfig(**{**values, **fields})


def workspace_with_tokenizer(home: Path, folder: Path) -> Workspace:
    """Makes a workspace of a test's own, with the tokenizer of `home`."""
    workspace = Workspace(folder / "workspace")
    tokenizers = Workspace(home / "workspace").folder("tokenizer")
    shutil.copytree(tokenizers, workspace.folder("tokenizer"))
    return workspace


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def has_advanced(workspace: Workspace, before: int, build: subprocess.Popen[bytes]) -> bool:
    return len(finished_parts(workspace)) > before or build.poll() is not None


def finished_parts(workspace: Workspace) -> dict[str, int]:
    """Returns when each finished part was written."""
    paths = workspace.cache.glob("parts/*/[0-9]*/part.json")
    return {str(path): path.stat().st_mtime_ns for path in paths}


@pytest.mark.parametrize("script", SCRIPTS)
def test_number_of_processes_does_not_change_the_shards(home: Path, script: str) -> None:
    workspace = Workspace(home / "workspace")
    # Starting processes takes the most time.
    one, *others = [
        hashes(build_shards(config(home, script, f"{script}-{n}", workers=n), workspace).path)
        for n in ((1, 2, 8) if script == "dna" else (1, 2))
    ]
    assert all(other == one for other in others) and len(one) > 10
    assert not finished_parts(workspace)


def test_part_size_leaves_all_but_one_incomplete_sequence(home: Path) -> None:
    workspace = Workspace(home / "workspace")
    small = build_shards(config(home, "english", "small", workers=1), workspace).manifest.counts
    whole = build_shards(
        config(home, "english", "whole", workers=1, part_mb=64), workspace
    ).manifest.counts
    small, whole = dict(small), dict(whole)
    small.pop("reading"), whole.pop("reading")
    assert small == whole and small["tokens_dropped"] < 2 * 64


@pytest.mark.parametrize(
    "script",
    [one if one == "dna" else pytest.param(one, marks=pytest.mark.thorough) for one in SCRIPTS],
)
def test_killed_build_goes_on_after_its_finished_parts(home: Path, script: str) -> None:
    workspace = Workspace(home / "workspace")
    small = {"part_mb": 0.01}
    expected = hashes(
        build_shards(config(home, script, f"{script}-expected", **small), workspace).path
    )
    killed = f"{script}-killed"
    settings = config(home, script, killed, workers=2, **small)
    command = [sys.executable, "-c", _BUILD, settings.model_dump_json(), str(workspace.root)]
    seed = time.time_ns()
    print("seed", seed)
    chance = random.Random(seed)
    kept: dict[str, int] = {}
    for _ in range(_KILLS):
        build = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for(partial(has_advanced, workspace, len(kept), build))
        time.sleep(chance.uniform(0, 0.1))
        # Its process group has the processes of the pool, too.
        os.killpg(build.pid, signal.SIGKILL)
        build.wait()
        if (workspace.folder("shards") / killed).exists():
            break
        found = finished_parts(workspace)
        assert {name: found[name] for name in kept} == kept
        kept = found
    if not (workspace.folder("shards") / killed).exists():
        assert kept
        subprocess.run(command, check=True)
    assert hashes(workspace.folder("shards") / killed) == expected
    assert not finished_parts(workspace)


@pytest.mark.parametrize("row", [0, 1, 150, 5000])
@pytest.mark.parametrize("bad", ['{"text": bad}', '{"text": 5}'])
def test_bad_row_of_json_lines_loses_only_its_part(
    home: Path, tmp_path: Path, row: int, bad: str
) -> None:
    text = (home / "english.txt").read_text("utf-8")
    rows = [json.dumps({"text": line}) for line in text.splitlines() * 3][:6000]
    rows[row] = bad
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    corpus = CorpusConfig(path=str(tmp_path / "a.jsonl"))
    workspace = workspace_with_tokenizer(home, tmp_path)
    settings = {"corpus": corpus, "workers": 1, "part_mb": 0.1}
    with pytest.raises(CorpusError, match=r"is not a JSON object|doesn't contain text"):
        build_shards(config(home, "english", "bad", **settings), workspace)
    built = build_shards(
        config(home, "english", "bad", skip_failing_parts=True, **settings), workspace
    )
    counts = built.manifest.counts
    assert counts["parts_skipped"] == 1
    assert 4000 < counts["train_documents"] + counts["validation_documents"] < 6000


def test_part_that_cannot_be_read_is_named_and_can_be_skipped(home: Path, tmp_path: Path) -> None:
    workspace = Workspace(home / "workspace")
    data = bytearray((home / "english.txt").read_bytes() * 2)
    data[600_000] = 0xFF
    bad = tmp_path / "bad.txt"
    bad.write_bytes(data)
    corpus = CorpusConfig(path=str(bad))
    with pytest.raises(CorpusError, match=r"bad\.txt \(bytes 5\d\d,\d+ to 6\d\d,\d+\)"):
        build_shards(config(home, "english", "bad", corpus=corpus, workers=2), workspace)
    built = build_shards(
        config(home, "english", "bad", corpus=corpus, workers=2, skip_failing_parts=True),
        workspace,
    )
    assert built.manifest.counts["parts_skipped"] == 1
    assert built.manifest.counts["bytes"] < len(data) - 40_000


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_part_at_the_beginning_that_cannot_be_read_can_be_skipped(
    home: Path, tmp_path: Path, suffix: str
) -> None:
    lines = (home / "english.txt").read_bytes().splitlines()[:6000]
    if suffix == ".jsonl":
        lines = [b'{"text": ' + json.dumps(line.decode()).encode() + b"}" for line in lines]
    bad = tmp_path / f"bad{suffix}"
    bad.write_bytes(b"\n".join([lines[0], lines[1][:-4] + b"\xff" + lines[1][-4:], *lines[2:]]))
    workspace = workspace_with_tokenizer(home, tmp_path)
    settings = {"corpus": CorpusConfig(path=str(bad)), "workers": 1, "part_mb": 0.1}
    with pytest.raises(CorpusError, match="is not UTF-8"):
        build_shards(config(home, "english", "bad", **settings), workspace)
    built = build_shards(
        config(home, "english", "bad", skip_failing_parts=True, **settings), workspace
    )
    counts = built.manifest.counts
    assert counts["parts_skipped"] == 1
    assert 200_000 < counts["bytes"] < 350_000
