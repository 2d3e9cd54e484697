"""Functions of single tabs: uploads, previews and examples."""

import time
from pathlib import Path

import pytest

from core.config.corpus import CorpusConfig
from core.corpus.files import FilesSource
from core.errors import StudioError
from core.shards.examples import with_hole
from core.workspace.workspace import Workspace
from ui import corpus
from ui.parts import upload_zone as uploads


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def uploaded(folder: Path, name: str, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def test_an_uploaded_file_is_kept_in_the_workspace(tmp_path: Path, workspace: Workspace) -> None:
    path = Path(uploads.keep_files([uploaded(tmp_path, "한국어 글.txt", "글")], workspace))
    assert path.is_relative_to(workspace.uploads)
    assert path.read_text("utf-8") == "글"
    workspace.confine(str(path), field="path")


def test_uploaded_files_of_one_name_are_all_kept(tmp_path: Path, workspace: Workspace) -> None:
    files = [uploaded(tmp_path / part, "text.txt", part) for part in ("one", "two")]
    folder = Path(uploads.keep_files(files, workspace))
    assert sorted(path.read_text("utf-8") for path in folder.iterdir()) == ["one", "two"]


def test_uploaded_markdown_is_read_beside_other_files(tmp_path: Path, workspace: Workspace) -> None:
    files = [uploaded(tmp_path, f"{name}", name) for name in ("a.md", "b.txt", "c.md")]
    config = CorpusConfig(source="files", path=uploads.keep_files(files, workspace))
    assert sorted(FilesSource(config).documents("train")) == ["a.md", "b.txt", "c.md"]


def test_uploads_within_one_second_are_kept_apart(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260303-140500")
    paths = [
        Path(uploads.keep_files([uploaded(tmp_path, f"{name}.txt", name)], workspace))
        for name in ("one", "two", "three")
    ]
    assert [path.read_text("utf-8") for path in paths] == ["one", "two", "three"]
    assert len({path.parent for path in paths}) == 3


@pytest.mark.parametrize("name", ["..", ".hidden", "a b.txt", "", "..txt"])
def test_upload_names_are_safe_file_names(name: str) -> None:
    safe = uploads.safe_name(name)
    assert safe == Path(safe).name
    assert not safe.startswith(".")


def test_preview_counts_and_escapes_the_documents(tmp_path: Path, workspace: Workspace) -> None:
    path = uploaded(tmp_path, "text.txt", "<script>alert(1)</script>\n\nTwo words\n")
    shown, _ = corpus._preview(CorpusConfig(source="files", path=path), workspace)
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "<b>2</b><span>documents</span>" in shown
    assert "<b>1</b><span>blank documents skipped</span>" in shown


def test_corpus_description_names_the_dataset_configuration() -> None:
    offered = CorpusConfig(source="hub")
    assert corpus.describe_corpus(offered) == "Salesforce/wikitext wikitext-103-raw-v1"
    assert corpus.describe_corpus(CorpusConfig(dataset_name="me/words")) == "me/words"


def test_a_missing_file_is_refused_before_a_run_is_queued(tmp_path: Path) -> None:
    config = CorpusConfig(source="files", path=str(tmp_path / "missing.txt"))
    with pytest.raises(StudioError) as error:
        corpus._check(config)
    assert error.value.field == "path"


def test_example_is_a_whole_sentence_with_one_mask() -> None:
    text = "The small captain never reads the old letter in winter, while others do."
    sentence = with_hole(text)
    assert sentence.count("{mask}") == 1
    before, after = sentence.split("{mask}")
    assert text.startswith(before) and text.endswith(after) and len(sentence.split()) == 13


@pytest.mark.parametrize("text", ["", "12 34", "a = b + c ; d = e - f ; g = h * i ;" * 5])
def test_text_without_plain_words_gives_no_example(text: str) -> None:
    assert with_hole(text) == ""
