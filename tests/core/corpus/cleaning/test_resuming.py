"""An interrupted cleaning continues after its finished parts, with the same result."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from core import Workspace
from core.config.clean import CleanConfig
from core.corpus.cleaning import parts, work_folder
from core.corpus.cleaning.part_task import SPOOLED, PartResult, PartTask, run_once
from core.corpus.cleaning.parts import write_batch
from core.corpus.cleaning.stage import clean
from core.corpus.cleaning.work_folder import open_work_folder
from core.errors import CorpusError, RunError
from core.records.events import Reporter, RunStopped, StopMode
from core.runs.disk_usage import measure_disk_usage
from core.workspace.manifests import Artifact
from tests.core.corpus.cleaning.support import (
    all_documents,
    batch_of,
    clean_config,
    pages,
    write_documents,
)
from tests.core.corpus.cleaning.test_stage import ALL_STEPS, mixed_documents, outcome
from tests.texts import sentences


class Listening(Reporter):
    """Remembers what it is told; asks for a stop at a step."""

    def __init__(self, stop_at: str = "", mode: StopMode = "save") -> None:
        self.stop_at = stop_at
        self.mode = mode
        self.notes: list[str] = []
        self.messages: list[str] = []
        self.seconds_left: list[float | None] = []

    def progress(
        self,
        done: float,
        total: float | None = None,
        unit: str = "",
        note: str = "",
        eta_seconds: float | None = None,
    ) -> None:
        self.notes.append(note)
        self.seconds_left.append(eta_seconds)

    def note(self, message: str, **fields: object) -> None:
        self.messages.append(message)

    def warn(self, message: str, **fields: object) -> None:
        self.messages.append(message)

    def stop_requested(self) -> StopMode | None:
        begun = [note for note in self.notes if self.stop_at and note.startswith(self.stop_at)]
        return self.mode if len(begun) >= 3 else None


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_BYTES", 20_000)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    return write_documents(folder / "text.jsonl", mixed_documents()[::2])


class Whole(NamedTuple):
    """A cleaning without an interruption."""

    corpus: Artifact
    seconds: float
    reporter: Listening


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    started, reporter = time.monotonic(), Listening()
    corpus = clean(config_of(text), Workspace(tmp_path_factory.mktemp("whole")), reporter)
    return Whole(corpus, time.monotonic() - started, reporter)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def config_of(text: Path, **values: object) -> CleanConfig:
    return clean_config(text, **{**ALL_STEPS, **values})


def saved_in(workspace: Workspace) -> list[Path]:
    return sorted((workspace.cache / "cleaning").iterdir())


def in_child(work: Callable[[], object], seconds: float) -> int:
    """Runs a function in a process that is killed after so many seconds; returns its status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        work()
    finally:
        os._exit(0)


@pytest.mark.long
def test_cleaning_killed_at_random_times_gives_the_same_files(
    text: Path, workspace: Workspace, whole: Whole
) -> None:
    expected, seconds, _ = whole
    generator = random.Random(0)
    killed = sum(
        in_child(lambda: clean(config_of(text), workspace), generator.uniform(0.02, seconds / 10))
        == signal.SIGKILL
        for _ in range(10)
    )
    assert killed
    corpus = (
        workspace.find("corpus", "C", field="name")
        if (workspace.folder("corpus") / "C").exists()
        else clean(config_of(text), workspace)
    )
    assert outcome(corpus) == outcome(expected)
    assert corpus.manifest.counts == expected.manifest.counts
    assert corpus.fingerprint == expected.fingerprint


@pytest.mark.long
@pytest.mark.parametrize("step", ["normalising", "filtering", "writing"])
def test_stopped_cleaning_continues_in_the_same_pass(
    text: Path, workspace: Workspace, whole: Whole, step: str
) -> None:
    expected = whole.corpus
    with pytest.raises(RunStopped):
        clean(config_of(text), workspace, Listening(step))
    assert not list(workspace.folder("corpus").iterdir())
    (folder,) = saved_in(workspace)
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*.result.npz")}
    assert finished
    seen: dict[Path, int] = {}

    class Looking(Listening):
        def progress(self, *values: float | str | None, **more: float) -> None:
            for path in finished:
                if path.exists():
                    seen[path] = path.stat().st_mtime_ns

    reporter = Looking()
    corpus = clean(config_of(text), workspace, reporter)
    assert seen == finished
    assert any("Continuing after the finished parts" in line for line in reporter.messages)
    assert outcome(corpus) == outcome(expected)
    assert corpus.manifest.counts == expected.manifest.counts
    assert not saved_in(workspace)


def test_progress_shows_parts_bytes_and_the_time_left(whole: Whole) -> None:
    filtering = [note for note in whole.reporter.notes if note.startswith("filtering")]
    assert filtering[1].startswith("filtering, part 2 of ") and filtering[1].endswith(" kB")
    assert any(whole.reporter.seconds_left)


def test_saved_parts_are_kept_apart_and_counted(text: Path, workspace: Workspace) -> None:
    with pytest.raises(RunStopped):
        clean(config_of(text), workspace, Listening("filtering"))
    assert measure_disk_usage(workspace).parts["other"] > text.stat().st_size / 2
    reporter = Listening("normalising", "abort")
    with pytest.raises(RunStopped):
        clean(config_of(text, gopher_min_words=10, name="D"), workspace, reporter)
    assert not any("Continuing" in line for line in reporter.messages)
    assert len(saved_in(workspace)) == 2


@pytest.mark.long
@pytest.mark.parametrize("pattern", ["filtered-000001.npz", "normalized-000000.npy", "spool.json"])
def test_damaged_part_starts_the_cleaning_over(
    text: Path, workspace: Workspace, whole: Whole, pattern: str
) -> None:
    with pytest.raises(RunStopped):
        clean(config_of(text), workspace, Listening("filtering"))
    (folder,) = saved_in(workspace)
    path = folder / pattern
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    reporter = Listening()
    corpus = clean(config_of(text), workspace, reporter)
    assert any(
        "Starting over" in line and "missing or damaged" in line for line in reporter.messages
    )
    assert outcome(corpus) == outcome(whole.corpus)


def break_down(task: PartTask) -> PartResult:
    raise ZeroDivisionError("nothing to divide by")


def test_failing_part_is_named_with_its_source_and_documents(tmp_path: Path) -> None:
    task = PartTask(tmp_path, 4, "data/*.jsonl")
    batch = batch_of(pages(30)).take(np.arange(30) >= 10)
    write_batch(task.texts(SPOOLED), batch)
    with pytest.raises(CorpusError, match=r"Part 5 of data/\*.jsonl \(documents 11 to 30\)") as one:
        run_once("normalized", break_down, task)
    assert "ZeroDivisionError" in one.value.received


def test_cleanings_at_the_same_time_use_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_work_folder(tmp_path, "recipe") as one, open_work_folder(tmp_path, "recipe") as two:
        assert one.path.name == "recipe" != two.path.name
    assert [path.name for path in tmp_path.iterdir()] == ["recipe"]
    monkeypatch.setattr(work_folder, "_ABANDONED_SECONDS", -1)
    with open_work_folder(tmp_path, "other"):
        assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Two files, of which the second can't be read to its end."""
    write_documents(tmp_path / "a.jsonl", sentences(3000))
    path = write_documents(tmp_path / "b.jsonl", sentences(3000, seed=1))
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:-2], '{"text": ', lines[-1]]) + "\n", "utf-8")
    return tmp_path / "*.jsonl"


def test_unreadable_part_is_named_and_skipped_after_those_finished_before(
    broken: Path, workspace: Workspace
) -> None:
    with pytest.raises(CorpusError) as caught:
        clean(clean_config(broken), workspace)
    assert "b.jsonl" in caught.value.problem and "bytes" in caught.value.problem
    reporter = Listening()
    counts = clean(
        clean_config(broken, skip_failing_parts=True), workspace, reporter
    ).manifest.counts
    assert any("parts were finished before; they are kept" in line for line in reporter.messages)
    assert counts["parts_skipped"] == 1
    assert 3000 < counts["read"]["documents"] < 6000


def truncated(folder: Path, lines: int) -> Path:
    """A compressed file without its end; of many lines, the first can be read."""
    folder.mkdir()
    text = "".join(f"{random.Random(n).random()}\n" for n in range(lines))
    data = gzip.compress(text.encode())
    (folder / "z.txt.gz").write_bytes(data[:-2000])
    return folder / "z.txt.gz"


@pytest.mark.parametrize("lines", [2_000, 30_000])
def test_source_that_is_skipped_as_a_whole_is_an_error(
    tmp_path: Path, workspace: Workspace, lines: int
) -> None:
    bad = truncated(tmp_path / "bad", lines)
    good = write_documents(tmp_path / "a.jsonl", sentences(300))
    sources = [{"name": "a", "path": str(good)}, {"name": "x", "path": str(bad)}]
    for skips in (False, True):
        config = clean_config(good, corpus={"sources": sources}, skip_failing_parts=skips)
        with pytest.raises(CorpusError, match=r"[Ss]ource x") as caught:
            clean(config, workspace)
        assert "z.txt.gz can't be read" in str(caught.value)


def test_damaged_file_of_a_shared_part_is_skipped_alone(
    tmp_path: Path, workspace: Workspace
) -> None:
    bad = truncated(tmp_path / "bad", 2_000)
    (bad.parent / "a.txt").write_text("\n".join(sentences(300)))
    config = clean_config(bad.parent / "*", skip_failing_parts=True)
    reporter = Listening()
    cleaned = clean(config, workspace, reporter)
    assert cleaned.manifest.counts["files_skipped"] == 1
    assert any("A file was skipped" in line and "z.txt.gz" in line for line in reporter.messages)


class Acting(Listening):
    """Does something once, when a step begins."""

    def __init__(self, step: str, act: Callable[[], object]) -> None:
        super().__init__()
        self.step = step
        self.act: Callable[[], object] | None = act

    def progress(self, *values: Any, **more: Any) -> None:
        if self.act and values[3].startswith(self.step):
            act, self.act = self.act, None
            act()


def test_file_that_changes_while_it_is_cleaned_is_an_error(
    tmp_path: Path, workspace: Workspace
) -> None:
    path = write_documents(tmp_path / "a.jsonl", sentences(1000))
    reporter = Acting("reading", lambda: write_documents(path, sentences(1000, seed=1)))
    with pytest.raises(CorpusError, match=r"a\.jsonl has changed while it was read"):
        clean(clean_config(path), workspace, reporter)
    assert not list(workspace.folder("corpus").iterdir())


def test_full_disk_is_explained_and_finished_parts_are_kept(
    text: Path, workspace: Workspace
) -> None:
    """A limit of file sizes stands for the disk."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited = (5_000, unlimited[1])
    reporter = Acting("filtering", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limited))
    try:
        with pytest.raises(RunError, match="A part can't be written") as caught:
            clean(config_of(text), workspace, reporter)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert "the finished parts are kept" in caught.value.fix
    assert len(saved_in(workspace)) == 1


@pytest.mark.long
def test_parts_of_a_killed_worker_are_done_again(
    text: Path, workspace: Workspace, whole: Whole
) -> None:
    def kill() -> None:
        multiprocessing.active_children()[0].kill()

    reporter = Acting("", kill)
    corpus = clean(config_of(text, workers=2), workspace, reporter)
    assert any("A process ended unexpectedly" in line for line in reporter.messages)
    assert outcome(corpus) == outcome(whole.corpus)


def test_part_size_bounds_the_parts_and_does_not_change_the_result(
    tmp_path: Path, workspace: Workspace
) -> None:
    path = write_documents(tmp_path / "a.jsonl", sentences(1500))
    found = []
    for part_mb in (64, 16):
        reporter = Listening()
        name = f"C{part_mb}"
        cleaned = clean(clean_config(path, part_mb=part_mb, name=name), workspace, reporter)
        total = [note.split(" of ")[1] for note in reporter.notes if "part 1 of " in note]
        found.append((cleaned.manifest.counts["read"], all_documents(cleaned), total[-1]))
    assert found[0][:2] == found[1][:2]
    assert int(found[0][2].split(",")[0]) < int(found[1][2].split(",")[0])


def test_parts_of_other_versions_of_packages_are_cleaned_again(
    broken: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CorpusError):
        clean(clean_config(broken), workspace)
    monkeypatch.setattr("core.parts.versions.version", lambda package: "0.0")
    reporter = Listening()
    clean(clean_config(broken, skip_failing_parts=True), workspace, reporter)
    assert not any("finished before" in line for line in reporter.messages)
