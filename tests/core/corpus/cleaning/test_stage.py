"""The stage `clean`: workers, stops, errors, its artifact and the stages that read it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import CleanConfig, CorpusConfig, Workspace
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.corpus.cleaning import parts
from core.corpus.cleaning.stage import REPORT_FILE, clean, derive_name
from core.corpus.previewing import preview_apart
from core.corpus.reading import open_corpus
from core.errors import ConfigError, CorpusError, RunError
from core.parts.pool import count_workers, open_pool
from core.publishing.card_cleaning import describe_cleaning
from core.publishing.card_notes import CardNotes
from core.publishing.cards import shards_card
from core.records.events import Reporter, RunStopped
from core.shards.build import build
from core.tokenizer.training import train as train_tokenizer
from core.workspace.manifests import hash_file
from tests.core.corpus.cleaning.support import (
    all_documents,
    clean_config,
    documents_of,
    pages,
    write_documents,
)
from tests.core.runs.support import processes_with, stop_worker
from tests.texts import sentences

ROOT = Path(__file__).parents[4]
ALL_STEPS: dict[str, object] = {
    "gopher": True, "gopher_min_stop_words": None, "gopher_repetition": True, "c4": True,
    "fineweb": True, "boilerplate_lines": True, "languages": "en", "min_language_probability": 0,
    "min_characters": 700, "max_characters": 20_000, "replace_emails": True,
    "replace_phones": True, "replace_ip_addresses": True,
}  # fmt: skip


def short_lines() -> list[str]:
    """Lines that C4 keeps and FineWeb finds short."""
    lines = [line for line in sentences(2000, seed=6) if len(line.split()) >= 5]
    return [line for line in lines if len(line) <= 30]


def mixed_documents() -> list[str]:
    """Documents that each step has to do with."""
    good = pages(300)
    return [
        *(f"Share this page with all of your friends today.\n{text}" for text in good[:60]),
        *good[60:],
        *good[:30],
        *(text.replace(text.split()[9], "else", 1) for text in good[100:140]),
        *(f"{text}\nWrite to bob{number}@site.org or call +47 22 33 44 {number} or 8.8.4.{number}."
          for number, text in enumerate(pages(20, seed=1), 10)),
        *(text.replace("a", "Ã©") for text in pages(5, seed=2)),
        *(f"{text}\nThis is a line with a {{ in it." for text in pages(5, seed=3)),
        *(text.replace("e", "e\u0301") for text in pages(5, seed=5)),
        *("\n".join(lines) for lines in zip(*[iter(short_lines())] * 20, strict=False)),
        *pages(4, seed=7, lines=3),
        *("Too short." for _ in range(3)),
        *(f"{line}\n" * 12 for line in pages(3, seed=4, lines=1)),
    ]  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "text.jsonl", mixed_documents())


class Stopping(Reporter):
    """Asks for a stop after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def stop_requested(self) -> Any:
        self.looks -= 1
        return "save" if self.looks < 0 else None


def outcome(corpus: Any) -> dict[str, str]:
    return {
        str(path.relative_to(corpus.path)): hash_file(path)
        for path in sorted(corpus.path.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


@pytest.mark.long
@pytest.mark.slow(30)
def test_number_of_workers_does_not_change_the_result(
    text: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 40_000)
    made = {
        workers: clean(
            clean_config(text, name=f"C{workers}", workers=workers, **ALL_STEPS), workspace
        )
        for workers in (1, 3)
    }
    assert len(list((made[1].path / "train").iterdir())) > 5
    assert outcome(made[1]) == outcome(made[3])
    assert made[1].fingerprint == made[3].fingerprint
    counts = made[1].manifest.counts
    for step, found in counts["steps"].items():
        assert found["removed_documents"] + found["changed_documents"], step
    removed = sum(found["removed_documents"] for found in counts["steps"].values())
    kept = counts["train_documents"] + counts["validation_documents"]
    assert counts["read"]["documents"] == len(mixed_documents()) == removed + kept


@pytest.mark.long
def test_size_of_parts_does_not_change_the_documents(
    text: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = clean(clean_config(text, **ALL_STEPS), workspace)
    monkeypatch.setattr(parts, "PART_BYTES", 7_000)
    small = clean(clean_config(text, **{**ALL_STEPS, "name": "small"}), workspace)
    for split in ("train", "validation"):
        assert documents_of(whole, split) == documents_of(small, split)
    assert whole.manifest.counts == small.manifest.counts
    report = [json.loads((one.path / REPORT_FILE).read_text("utf-8")) for one in (whole, small)]
    assert report[0] == report[1]


def test_report_has_counts_and_examples(text: Path, workspace: Workspace) -> None:
    corpus = clean(clean_config(text, **ALL_STEPS), workspace)
    report = json.loads((corpus.path / REPORT_FILE).read_text("utf-8"))
    assert {name: report[name] for name in ("read", "steps")} == {
        name: corpus.manifest.counts[name] for name in ("read", "steps")
    }
    assert report["examples"].keys() == report["steps"].keys()
    emails = report["examples"]["replace_emails"]
    assert len(emails) == 3
    assert "bob10@site.org" in emails[0]["before"] and "bob10" not in emails[0]["after"]
    copies = {one["document"]: one for one in report["examples"]["exact_duplicates"]}
    documents = mixed_documents()
    for number, one in copies.items():
        repeated = int(one["explanation"].split()[2])
        assert documents[number - 1] == documents[repeated - 1] and repeated < number
    assert all(len(one["before"]) < 310 for found in report["examples"].values() for one in found)


def test_only_chosen_steps_run(text: Path, workspace: Workspace) -> None:
    off = {"exact_duplicates": False, "near_duplicates": False, "fix_encoding": False}
    corpus = clean(clean_config(text, unicode_form="none", **off), workspace)
    assert sorted(all_documents(corpus)) == sorted(mixed_documents())
    assert corpus.manifest.counts["steps"] == {}
    limited = clean(clean_config(text, **{"name": "L", "min_characters": 400, **off}), workspace)
    steps = limited.manifest.counts["steps"]
    assert steps.keys() == {"unicode_form", "length"}
    assert steps["length"]["removed_by"].keys() == {"min_characters"}
    assert all(len(text) >= 400 for text in all_documents(limited))


def test_split_is_that_of_the_source(text: Path, workspace: Workspace) -> None:
    before = open_corpus(clean_config(text).corpus, workspace)
    corpus = clean(clean_config(text, near_duplicates=False, fix_encoding=False), workspace)
    distinct = list(dict.fromkeys(before.documents("validation")))
    assert documents_of(corpus, "validation") == distinct
    after = open_corpus(CorpusConfig(corpus_name="C"), workspace)
    assert list(after.documents("validation")) == distinct
    assert list(after.documents("train")) == documents_of(corpus, "train")
    labelled = list(after.labelled_documents())
    assert [text for split, text in labelled if split == "validation"] == distinct


def test_single_document_has_no_validation_split(tmp_path: Path, workspace: Workspace) -> None:
    path = write_documents(tmp_path / "one.jsonl", pages(1))
    corpus = clean(clean_config(path), workspace)
    assert documents_of(corpus, "train") == pages(1)
    assert not (corpus.path / "validation").exists()
    read = open_corpus(CorpusConfig(corpus_name="C"), workspace)
    assert list(read.documents("train")) == pages(1)
    with pytest.raises(CorpusError, match="too few documents"):
        list(read.documents("validation"))


@pytest.mark.parametrize(("workers", "looks"), [(1, 0), (1, 4), (2, 4)])
@pytest.mark.slow
def test_stop_leaves_nothing_behind(
    text: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, workers: int, looks: int
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 40_000)
    with pytest.raises(RunStopped):
        clean(clean_config(text, workers=workers), workspace, Stopping(looks))
    assert not list(workspace.folder("corpus").iterdir())


def test_cleaning_that_leaves_nothing_names_the_step(tmp_path: Path, workspace: Workspace) -> None:
    path = write_documents(tmp_path / "short.jsonl", [f"Text {place}." for place in range(20)])
    with pytest.raises(CorpusError, match="Gopher quality rules removed 20") as caught:
        clean(clean_config(path, gopher=True), workspace)
    assert caught.value.field == "gopher"
    with pytest.raises(CorpusError, match="Length removed 20") as caught:
        clean(clean_config(path, min_characters=100), workspace)
    assert caught.value.field == "min_characters"
    assert not list(workspace.folder("corpus").iterdir())


def test_errors_come_before_cleaning(text: Path, workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="'xx' can't be identified"):
        clean(clean_config(text, languages="xx"), workspace)
    with pytest.raises(ConfigError, match="corpus 'missing' was not found") as caught:
        clean(clean_config(text, against="missing"), workspace)
    assert caught.value.field == "against"
    clean(clean_config(text), workspace)
    with pytest.raises(ConfigError, match="'C' is taken"):
        clean(clean_config(text), workspace)
    with pytest.raises(ConfigError, match="minhash_bands has an invalid value"):
        CleanConfig(minhash_bands=0)


def die(_: object) -> None:
    os._exit(3)


def fail(_: object) -> None:
    raise CorpusError("It failed", expected="this", received="that", fix="nothing", field="path")


def interrupted(number: int) -> int:
    raise TimeoutError(number)


@pytest.mark.long
@pytest.mark.slow
def test_failing_workers_are_reported() -> None:
    with (
        pytest.raises(RunError, match="ended unexpectedly") as caught,
        open_pool(2, Reporter()) as run,
    ):
        list(run(die, [1, 2]))
    assert caught.value.field == "workers"
    with pytest.raises(CorpusError) as failed, open_pool(2, Reporter()) as run:
        list(run(fail, [1, 2]))
    assert failed.value.to_dict() == {
        "problem": "It failed", "expected": "this", "received": "that", "fix": "nothing",
        "field": "path",
    }  # fmt: skip
    with pytest.raises(TimeoutError), open_pool(2, Reporter()) as run:
        list(run(interrupted, [1]))


UNGUARDED = """
from core import CleanConfig, CorpusConfig, Workspace, clean
corpus = CorpusConfig(path={path!r})
print(clean(CleanConfig(corpus=corpus, name="S"), Workspace({root!r})).name)
"""


@pytest.mark.long
def test_script_without_a_guard_cleans(text: Path, workspace: Workspace, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(path=str(text), root=str(workspace.root)))
    ended = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout.split() == ["S"], ended.stderr
    assert count_workers(3) == 3 and count_workers(None) >= 1


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from core.parts.pool import open_pool\n"
        "from core.records.events import Reporter\n"
        "if __name__ == '__main__':\n"
        "    with open_pool(2, Reporter()) as run:\n"
        "        for one in run(abs, [1, 2, 3]):\n"
        "            print(one, flush=True)\n"
        "        time.sleep(600)\n"
    )
    script = tmp_path / "pool.py"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    for _ in range(3):
        process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(200):
        if not any(Path(f"/proc/{child}/stat").exists() for child in children):
            return
        time.sleep(0.1)
    raise AssertionError("the workers outlive their parent")


def test_damaged_corpus_is_reported_by_file(text: Path, workspace: Workspace) -> None:
    corpus = clean(clean_config(text), workspace)
    read = CorpusConfig(corpus_name="C")
    file = next((corpus.path / "train").iterdir())
    data = file.read_bytes()
    for name, change, said in (
        ("train", lambda: file.write_bytes(data[:-1]), "bytes, not"),
        ("train", lambda: file.unlink(), "is missing"),
        ("validation", lambda: (file.write_bytes(data), (corpus.path / "validation" / "x.jsonl")
                                .write_text("{}")), "is not one of its files"),
    ):  # fmt: skip
        change()
        with pytest.raises(CorpusError, match=said) as caught:
            open_corpus(read, workspace)
        assert name in caught.value.received and caught.value.field == "corpus_name"
    (corpus.path / "validation" / "x.jsonl").unlink()
    middle = len(data) // 2
    file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(CorpusError, match=r"is damaged.*has a wrong checksum"):
        open_corpus(read, workspace)


def test_missing_corpus_is_named(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="corpus 'nothing' was not found") as caught:
        open_corpus(CorpusConfig(corpus_name="nothing"), workspace)
    assert caught.value.field == "corpus_name"
    with pytest.raises(ConfigError, match=r"No corpus was named. Expected: .* Received: nothing"):
        open_corpus(CorpusConfig(source="corpus"), workspace)


@pytest.mark.slow(9)
def test_cleaned_corpus_can_be_previewed_and_cleaned_again(
    text: Path, workspace: Workspace
) -> None:
    first = clean(clean_config(text), workspace)
    seen = preview_apart(CorpusConfig(corpus_name="C"), workspace)
    assert seen.samples[0] == documents_of(first, "train")[0][:2000]
    assert seen.documents == first.manifest.counts["train_documents"]
    again = clean(CleanConfig(corpus=CorpusConfig(corpus_name="C"), workers=1), workspace)
    assert again.name == "C-clean" and again.manifest.inputs == {"corpus": first.fingerprint}
    assert documents_of(again, "train") == documents_of(first, "train")
    assert again.fingerprint != first.fingerprint  # The report differs.
    read = open_corpus(CorpusConfig(corpus_name=again.name), workspace)
    assert read.cleaning["cleaning"]["source"]["path"] == str(text)


@pytest.mark.parametrize(
    ("corpus", "name"),
    [
        ({"source": "docs"}, "docs-clean"),
        ({"path": "/data/my texts.jsonl"}, "my-texts.jsonl-clean"),
        ({"path": "data/*.txt"}, "txt-clean"),
        ({"dataset_name": "owner/words"}, "words-clean"),
        ({"corpus_name": "C"}, "C-clean"),
    ],
)
def test_names_are_derived_from_the_source(corpus: dict[str, str], name: str) -> None:
    assert derive_name(CleanConfig(corpus=CorpusConfig.parse(corpus))) == name


def test_card_of_shards_has_the_summary_of_cleaning(text: Path, workspace: Workspace) -> None:
    first = clean(clean_config(text), workspace)
    corpus = CorpusConfig(corpus_name="C")
    made = train_tokenizer(TokenizerConfig(name="T", corpus=corpus, vocab_size=80), workspace)
    shards = build(ShardConfig(corpus=corpus, tokenizer="T", max_seq_length=32), workspace)
    assert made.manifest.inputs["corpus"] == first.fingerprint
    assert shards.manifest.inputs["corpus"] == first.fingerprint
    card = shards_card(shards.manifest, CardNotes("me/rows"))
    removed = first.manifest.counts["steps"]["exact_duplicates"]["removed_documents"]
    assert f"| Exact duplicates | {removed} | 0 |" in card
    assert f"{len(mixed_documents())} documents were cleaned" in card
    assert "text files provided by its author" in card
    assert "| Near duplicates | Bands | 14 | 0 |" in card
    assert "could not be read" not in card
    for foreign in (None, 5, {"steps": 3}, {"steps": {"c4": "<b>", "x": {}}, "read": []}):
        shards.manifest.counts["cleaning"] = foreign
        assert "<b>" not in shards_card(shards.manifest, CardNotes("me/rows"))


def test_card_has_rules_sources_and_skipped_parts() -> None:
    foreign = "<b>[x](y)|\n# z"
    steps = {"gopher": {"removed_documents": 3, "changed_documents": 0,
                        "removed_by": {"gopher_min_words": 3, foreign: "<i>"},
                        "thresholds": {"gopher_min_words": 50, "gopher_max_words": foreign}},
            }  # fmt: skip
    sources = {"web": {"read": {"documents": 9}, "train_documents": 5, "validation_documents": 1},
               foreign: None}  # fmt: skip
    card = describe_cleaning(
        {"read": {"documents": 9}, "steps": steps, "sources": sources, "parts_skipped": 2}
    )
    assert "| Gopher quality rules | Minimum words | 50 | 3 |" in card
    assert "The text is incomplete: 2 parts could not be read." in card
    assert "| web | 9 | 5 | 1 |" in card
    escaped = r"&lt;b\>\[x\](y)\| \# z"
    assert f"| Gopher quality rules | Maximum words | {escaped} | 0 |" in card
    assert f"| {escaped} | unknown | unknown | unknown |" in card
    assert "<b>" not in card and "<i>" not in card


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "home")
    yield workspace
    if workspace.root.exists():
        stop_worker(workspace)


def studio(workspace: Workspace, *arguments: str, code: int = 0) -> Any:
    """Runs a command with --json and returns its value."""
    ended = subprocess.run(
        [sys.executable, "-m", "core", *arguments, "--json", "--workspace", str(workspace.root)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.slow(90)
def test_cleaned_corpus_is_trained_on_by_the_command_line(text: Path, home: Workspace) -> None:
    told = studio(
        home, "clean", "--path", str(text), "--name", "C", "--workers", "2", "--c4",
        "--min-characters", "400", "--no-gopher", "--c4-min-line-words", "none",
    )  # fmt: skip
    assert (told["state"], Path(told["artifact"]).name) == ("done", "C")
    assert told["metrics"]["steps"]["c4"]["removed_by"]["c4_curly_brackets"] == 5
    assert not processes_with(str(home.root).encode() + b"\0spawn")
    read = ["--source", "corpus", "--corpus", "C"]
    studio(home, "tokenizer", *read, "--vocab-size", "80", "--name", "T")
    rows = studio(home, "shards", "--corpus", "C", "--tokenizer", "T", "--max-seq-length", "32",
                  "--name", "R")  # fmt: skip
    assert rows["metrics"]["cleaning"]["corpus"] == "C"
    assert rows["metrics"]["train_documents"] == told["metrics"]["train_documents"]
    model = studio(
        home, "train", "--shards", "R", "--num-train-steps", "3", "--num-hidden-layers", "1",
        "--hidden-size", "16", "--num-attention-heads", "2", "--intermediate-size", "32",
    )  # fmt: skip
    assert model["state"] == "done" and model["metrics"]["eval_loss"] > 0
    failed = studio(home, "clean", "--path", str(text), "--name", "C", code=2)
    assert failed["error"]["field"] == "name"


@pytest.mark.slow(10)
def test_command_line_shows_what_each_step_did(text: Path, home: Workspace) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "core", "clean", "--path", str(text), "--name", "C"]
        + ["--workers", "1", "--c4", "--workspace", str(home.root)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    steps = home.find("corpus", "C").manifest.counts["steps"]
    removed, changed = (steps["c4"][f"{what}_documents"] for what in ("removed", "changed"))
    assert removed
    assert f"C4 rules: documents removed {removed}, changed {changed}\n" in ended.stderr
