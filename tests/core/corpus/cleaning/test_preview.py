"""The preview of cleaning: before and after, and the rule that removed a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import CorpusConfig, Workspace, preview_cleaning
from core.corpus.cleaning import preview
from core.corpus.previewing import preview_cleaning_apart
from core.errors import ConfigError, CorpusError
from tests.core.corpus.cleaning.support import clean_config, pages, write_documents

PAGES = pages(20)
TEXTS = [
    *PAGES,
    PAGES[3],
    PAGES[4].replace(PAGES[4].split()[7], "else", 1),
    "Too short to keep.",
    f"{pages(1, seed=1)[0]}\nWrite to bob@site.org.",
]
OPTIONS = {"gopher": True, "gopher_min_stop_words": None, "replace_emails": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "text.jsonl", TEXTS)


def test_preview_shows_each_document_before_and_after(path: Path, tmp_path: Path) -> None:
    seen = preview_cleaning(clean_config(path, **OPTIONS), workspace=Workspace(tmp_path))
    assert [one.before for one in seen.documents] == TEXTS
    assert [one.after for one in seen.documents[:20]] == PAGES
    equal, similar, short, email = seen.documents[20:]
    assert (equal.step, equal.explanation) == ("exact_duplicates", "Repeats document 4")
    assert (similar.step, similar.explanation) == ("near_duplicates", "Repeats document 5")
    assert (short.step, short.rule) == ("gopher", "gopher_min_words")
    assert short.explanation == "Minimum words: 4 is below 50"
    assert not (equal.after or similar.after or short.after)
    assert email.after.endswith("Write to name@example.com.")
    assert (email.changed_by, email.step) == (["replace_emails"], "")
    assert seen.summary["documents"] == 21
    assert seen.summary["read"]["documents"] == len(TEXTS)
    assert seen.summary["steps"]["gopher"]["removed_by"] == {"gopher_min_words": 1}


def test_preview_in_a_subprocess_is_the_same(path: Path, tmp_path: Path) -> None:
    config, workspace = clean_config(path, **OPTIONS), Workspace(tmp_path)
    apart = preview_cleaning_apart(config, 200, workspace)
    assert apart == preview_cleaning(config, workspace=workspace)


def test_preview_reads_only_the_sample(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, workspace = clean_config(path), Workspace(tmp_path)
    assert len(preview_cleaning(config, 5, workspace).documents) == 5
    monkeypatch.setattr(preview, "_MOST_BYTES", 1)
    assert len(preview_cleaning(config, 5, workspace).documents) == 1


def test_frequent_lines_of_the_sample_are_removed(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "text.jsonl", [f"{text}\nShare" for text in PAGES])
    config = clean_config(path, boilerplate_lines=True)
    seen = preview_cleaning(config, workspace=Workspace(tmp_path))
    assert [one.after for one in seen.documents] == PAGES
    assert seen.documents[0].changed_by == ["boilerplate_lines"]


def test_errors_of_the_corpus_are_those_of_a_run(path: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for show in (
        lambda config: preview_cleaning(config, 5, workspace),
        lambda config: preview_cleaning_apart(config, 5, workspace),
    ):
        with pytest.raises(CorpusError, match=r"missing\.jsonl"):
            show(clean_config(tmp_path / "missing.jsonl"))
        with pytest.raises(ConfigError, match="'xx' can't be identified"):
            show(clean_config(path, languages="xx"))
        missing = CorpusConfig(corpus_name="nothing").model_dump()
        with pytest.raises(ConfigError, match="'nothing' was not found"):
            show(clean_config(path, corpus=missing))


@pytest.mark.parametrize(
    ("name", "value"),
    [("sample", -1), ("sample", 0), ("sample", 1.5), ("sample", True), ("sample", "5"),
     ("config", CorpusConfig()), ("workspace", "folder")],
)  # fmt: skip
def test_wrong_argument_is_named(path: Path, tmp_path: Path, name: str, value: object) -> None:
    arguments = {"config": clean_config(path), "sample": 5, "workspace": Workspace(tmp_path)}
    for show in (preview_cleaning, preview_cleaning_apart):
        with pytest.raises(ConfigError) as caught:
            show(**{**arguments, name: value})
        error = caught.value
        assert error.field == name
        assert error.received[:7] == repr(value)[:7]
        assert error.expected and error.fix
