"""Tests that the counted words depend on the text and the limit of memory alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.config.tokenizer import TokenizerConfig
from core.corpus.reading import open_corpus
from core.errors import CorpusError, TokenizerError
from core.parts.pool import open_pool
from core.records.events import Reporter, RunStopped
from core.tokenizer.bpe import BytePairCounter
from core.tokenizer.count_files import BUCKETS, count_in_file, read_buckets, write_counts
from core.tokenizer.counters import WordCounter, WordTally, counts_file
from core.tokenizer.counting import count_corpus, count_part, count_texts
from core.tokenizer.merged_counts import BucketSummary, CountLimits, find_level, merge_counts
from core.tokenizer.sentencepiece import SentencepieceCounter
from core.tokenizer.training import train
from core.tokenizer.unigram import UnigramCounter
from core.tokenizer.wordpiece import WordpieceCounter
from core.workspace.workspace import Workspace
from tests.core.runs.support import wait_for

# 3,000 words fit, and 100,000 characters.
LITTLE_MEMORY_GB = 0.004
COUNTERS: list[WordCounter] = [
    UnigramCounter(), SentencepieceCounter(2, lowercase=True), BytePairCounter(),
    WordpieceCounter(lowercase=True, strip_accents=None),
]  # fmt: skip
ALGORITHMS = ["unigram", "sentencepiece_unigram", "byte_level_bpe", "wordpiece"]
_TRAIN = """
import sys
from core import TokenizerConfig, Workspace, train_tokenizer
train_tokenizer(TokenizerConfig.model_validate_json(sys.argv[1]), Workspace(sys.argv[2]))
"""


def lines() -> list[str]:
    """Lines with about 7,000 different words in two scripts."""
    chance = random.Random(0)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randrange(2, 9))) for _ in range(9000)]
    words += ["".join(chr(0xAC00 + chance.randrange(60)) for _ in range(3)) for _ in range(6000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [" ".join(chance.choices(words, weights, k=40)) for _ in range(700)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    path.write_text("\n".join(lines()), "utf-8")
    return path


def config_of(path: Path, name: str, **values: Any) -> TokenizerConfig:
    return TokenizerConfig.parse(
        {
            "name": name,
            "corpus": {"source": "files", "path": str(path)},
            "preset": "custom",
            "vocab_size": 500,
            "sentinels": 2,
            "part_mb": 0.03,
            **values,
        }
    )


def merged(paths: list[Path], folder: Path, limits: CountLimits) -> dict[str, int]:
    reporter = Reporter()
    return merge_counts(paths, folder, limits, partial(open_pool, 1, reporter), reporter)


def finished_parts(workspace: Workspace) -> dict[str, int]:
    """Returns when each finished part was written."""
    paths = workspace.cache.glob("parts/tokenizer-*/[0-9]*/part.json")
    return {str(path): path.stat().st_mtime_ns for path in paths}


def has_advanced(workspace: Workspace, before: int, run: subprocess.Popen[bytes]) -> bool:
    return len(finished_parts(workspace)) > before or run.poll() is not None


@pytest.mark.slow(3)
@pytest.mark.parametrize("counter", COUNTERS, ids=ALGORITHMS)
def test_parts_in_any_order_have_the_counts_of_the_training_documents(
    path: Path, tmp_path: Path, counter: WordCounter
) -> None:
    corpus = open_corpus(config_of(path, "any").corpus, Workspace(tmp_path / "workspace"))
    parts = corpus.parts(30_000)
    assert len(parts) > 5
    random.Random(1).shuffle(parts)
    paths = []
    for part in parts:
        folder = tmp_path / str(part.number)
        folder.mkdir()
        files = count_part(counter, 1e-3, 1, part, folder)["files"]
        paths += [folder / counts_file(number) for number in range(files)]
    assert len(paths) > len(parts), "the memory is too small for a part"
    training = list(corpus.documents("train"))
    assert merged(paths, tmp_path, CountLimits.of(1)) == count_texts(training, counter)
    limits = CountLimits(words=2000, characters=20_000)
    sample = merged(paths, tmp_path, limits)
    assert 500 < len(sample) < 2500
    assert merged(paths[::-1], tmp_path, limits) == sample
    whole = tmp_path / "whole"
    write_counts(whole, count_texts(training, counter))
    assert merged([whole], tmp_path, limits) == sample


def test_two_vocabularies_of_a_text_can_be_trained_at_the_same_time(
    path: Path, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    config, counter, cache = config_of(path, "one", workers=1), COUNTERS[0], workspace.cache
    corpus = open_corpus(config.corpus, workspace)
    with count_corpus(config, counter, corpus, cache / "parts", Reporter()) as (first, _):
        with count_corpus(config, counter, corpus, cache / "parts", Reporter()) as (second, _):
            assert second == first
        assert len(list((cache / "parts").glob("tokenizer-*/"))) == 1
    assert finished_parts(workspace) == {}


def test_sample_keeps_the_limits_the_alphabet_and_the_total_count(tmp_path: Path) -> None:
    chance = random.Random(0)
    words = Counter("".join(chance.choices("abcdefgh", k=7)) for _ in range(30_000))
    words.update({"the": 900, "xéz": 1})
    write_counts(tmp_path / "words", words)
    sample = merged([tmp_path / "words"], tmp_path, CountLimits(words=5000, characters=10**6))
    assert 4200 < len(sample) < 5200
    assert sum(sample.values()) == pytest.approx(words.total(), rel=0.05)
    assert sample["the"] == 900
    assert set("".join(sample)) == set("".join(words))
    shorter = merged([tmp_path / "words"], tmp_path, CountLimits(words=10**6, characters=14_000))
    assert sum(map(len, shorter)) == pytest.approx(14_000, rel=0.1)


def test_level_depends_on_words_and_characters() -> None:
    summary = BucketSummary(Counter({1: 100, 50: 10}), Counter({1: 700, 50: 70}))
    assert find_level(summary, CountLimits(110, 770)) == 1
    assert find_level(summary, CountLimits(60, 770)) == 2
    assert find_level(summary, CountLimits(110, 420)) == 2
    assert find_level(summary, CountLimits(1, 770)) > 50


def test_file_of_counts_keeps_all_words(tmp_path: Path) -> None:
    words = {"": 1, "a": 2**40, "\n": 3, "한국": 4, "\U0001f642" * 900: 5, "\ud800": 6, "\0": 7}
    write_counts(tmp_path / "words", words)
    found = dict(read_buckets(tmp_path / "words", range(BUCKETS)))
    assert found == words
    reversed_words = dict(reversed(words.items()))
    write_counts(tmp_path / "again", reversed_words)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "words").read_bytes()
    assert count_in_file(tmp_path / "words")[0] == len(words)


def test_damaged_file_of_counts_is_named(tmp_path: Path) -> None:
    write_counts(tmp_path / "words", {"word": 1})
    data = (tmp_path / "words").read_bytes()
    for damaged in (data[:-1], data[:50], b"x" + data[1:]):
        (tmp_path / "words").write_bytes(damaged)
        with pytest.raises(TokenizerError, match="damaged") as caught:
            merged([tmp_path / "words"], tmp_path, CountLimits.of(1))
        assert str(tmp_path / "words") in caught.value.received


def test_full_memory_moves_counts_to_files(tmp_path: Path) -> None:
    tally = WordTally(BytePairCounter(), tmp_path, memory_gb=1e-5)
    for text in lines()[:50]:
        tally.add(text)
    files = tally.close()
    assert files > 3 and len(list(tmp_path.iterdir())) == files


def test_part_that_cannot_be_read_is_named_and_can_be_skipped(path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes() * 4)
    data[600_000] = 0xFF
    bad = tmp_path / "bad.txt"
    bad.write_bytes(data)
    workspace = Workspace(tmp_path / "workspace")
    settings = {"algorithm": "byte_level_bpe", "workers": 1, "vocab_size": 300, "part_mb": 0.1}
    corpus = {
        "source": "files",
        "path": str(bad),
        "validation_path": str(path),
        "drop_overlapping_validation": False,
    }
    with pytest.raises(CorpusError, match=r"bad\.txt \(bytes \d+,\d+ to 6\d\d,\d+\)"):
        train(config_of(bad, "bad", corpus=corpus, **settings), workspace)
    assert finished_parts(workspace)
    skipping = config_of(bad, "good", corpus=corpus, skip_failing_parts=True, **settings)
    reporter = Notes()
    assert train(skipping, workspace, reporter).manifest.counts["parts_skipped"] == 1
    assert any("parts were finished before; they are kept" in line for line in reporter.lines)


class Notes(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str, **fields: object) -> None:
        self.lines.append(message)


class StopAfterPart(Reporter):
    unit = ""

    def progress(self, done, total=None, unit="", note="", eta=None):  # type: ignore[no-untyped-def]
        self.unit = unit

    def stop_requested(self):  # type: ignore[no-untyped-def]
        return "abort" if self.unit == "parts" else None


def test_stopped_training_goes_on_after_its_finished_parts(path: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    settings = {"algorithm": "byte_level_bpe", "workers": 1}
    with pytest.raises(RunStopped):
        train(config_of(path, "stopped", **settings), workspace, StopAfterPart())
    kept = finished_parts(workspace)
    assert kept
    with pytest.raises(TokenizerError, match="too small for a vocabulary"):
        train(config_of(path, "stopped", vocab_size=60_000, **settings), workspace)
    found = finished_parts(workspace)
    assert len(found) > len(kept) and {name: found[name] for name in kept} == kept
    stopped = train(config_of(path, "stopped", **settings), workspace)
    assert not finished_parts(workspace)
    expected = train(config_of(path, "whole", part_mb=64, **settings), workspace)
    assert stopped.fingerprint == expected.fingerprint


def test_parts_of_other_versions_of_packages_are_counted_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "workspace")
    config = config_of(path, "stopped", algorithm="byte_level_bpe", workers=1)
    with pytest.raises(RunStopped):
        train(config, workspace, StopAfterPart())
    monkeypatch.setattr("core.parts.versions.version", lambda package: "0.0")
    reporter = Notes()
    train(config, workspace, reporter)
    assert not any("finished before" in line for line in reporter.lines)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_number_of_processes_does_not_change_the_tokenizer(
    path: Path, tmp_path: Path, algorithm: str
) -> None:
    workspace = Workspace(tmp_path)
    files = set()
    # Starting processes takes the most time.
    for workers in (1, 2, 8) if algorithm == "unigram" else (1, 2):
        config = config_of(path, f"w{workers}", algorithm=algorithm, workers=workers,
                           memory_gb=LITTLE_MEMORY_GB)  # fmt: skip
        files.add((train(config, workspace).path / "tokenizer.json").read_bytes())
    config = config_of(path, "large", algorithm=algorithm, part_mb=64, memory_gb=LITTLE_MEMORY_GB)
    files.add((train(config, workspace).path / "tokenizer.json").read_bytes())
    assert len(files) == 1
    assert not finished_parts(workspace)


@pytest.mark.long
def test_killed_training_goes_on_after_its_finished_parts(path: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    expected = train(config_of(path, "expected", algorithm="wordpiece"), workspace)
    settings = config_of(path, "killed", algorithm="wordpiece", workers=2, part_mb=0.01)
    command = [sys.executable, "-c", _TRAIN, settings.model_dump_json(), str(workspace.root)]
    kept: dict[str, int] = {}
    for _ in range(3):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for(partial(has_advanced, workspace, len(kept), run))
        # Its process group has the processes of the pool, too.
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        found = finished_parts(workspace)
        assert {name: found[name] for name in kept} == kept
        kept = found
    assert kept
    subprocess.run(command, check=True)
    killed = workspace.folder("tokenizer") / "killed" / "tokenizer.json"
    assert killed.read_bytes() == (expected.path / "tokenizer.json").read_bytes()
    assert not finished_parts(workspace)
