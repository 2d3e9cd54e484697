"""The Data tab in a real browser: uploads, the preview, the upload zone."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.corpus import CorpusConfig
from core.store import Store
from core.workspace.workspace import Workspace
from tests.texts import write_sentences
from tests.ui.browser import Visitor, running_app, visiting
from ui.parts import upload_zone as uploads

_SECONDS = 60.0

pytestmark = [pytest.mark.slow(20), pytest.mark.long]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("studio") / "workspace")


@pytest.fixture(scope="module")
def visit(workspace: Workspace) -> Iterator[Any]:
    with running_app(workspace.root) as url, visiting(url) as open_tab:
        yield open_tab


@pytest.fixture
def visitor(visit: Any) -> Iterator[Visitor]:
    one: Visitor = visit("/#corpus")
    one.pick("corpus-source", "My files")
    yield one
    assert not one.errors
    one.page.close()


def upload(visitor: Visitor, *paths: Path) -> None:
    zone = visitor.page.locator("#corpus-upload input[type=file]")
    zone.first.set_input_files([str(path) for path in paths])


def listed(visitor: Visitor, *texts: str) -> None:
    """Waits until the list of uploaded files contains all texts."""
    files = visitor.page.locator("#corpus-files")
    visitor.wait_for(
        lambda: all(text in files.inner_text() for text in texts), _SECONDS, " and ".join(texts)
    )


def path_of(visitor: Visitor) -> str:
    return str(visitor.field("corpus-path").input_value())


def look(visitor: Visitor) -> str:
    visitor.page.locator("#corpus-look").click()
    shown = visitor.page.locator("#corpus-preview .ps-documents, #corpus-preview .ps-error")
    shown.first.wait_for()
    return str(visitor.page.locator("#corpus-preview").inner_text())


def test_removed_uploads_are_no_longer_read(
    visitor: Visitor, workspace: Workspace, tmp_path: Path
) -> None:
    first = write_sentences(tmp_path / "first.txt", 20)
    second = write_sentences(tmp_path / "second.txt", 10, seed=1)
    upload(visitor, first, second)
    # At once, while the files are on their way.
    assert "30\ndocuments" in look(visitor)
    listed(visitor, "2 of 2", "first.txt", "second.txt", "Add more files")
    folder = Path(path_of(visitor))
    assert sorted(one.name for one in folder.iterdir()) == ["first.txt", "second.txt"]
    assert "30\ndocuments" in look(visitor)
    visitor.page.locator("#corpus-upload .file-preview tr", has_text="first").get_by_role(
        "button"
    ).click()
    listed(visitor, "1 of 1", "second.txt")
    assert path_of(visitor).endswith("second.txt")
    assert not folder.exists()
    visitor.settle(_SECONDS)
    look(visitor)  # What was shown before may still be there.
    visitor.see(visitor.page.locator("#corpus-preview"), "10\ndocuments")
    visitor.page.locator("#corpus-upload").get_by_role("button", name="Clear").click()
    visitor.wait_for(lambda: not path_of(visitor), _SECONDS, "the path is empty")
    assert not list(workspace.uploads.iterdir())
    assert visitor.page.locator("#corpus-preview .ps-documents").count() == 0


def test_a_bad_file_is_named_and_the_others_are_read(visitor: Visitor, tmp_path: Path) -> None:
    good = write_sentences(tmp_path / "good.txt", 12)
    bad, picture = tmp_path / "bad.txt", tmp_path / "picture.png"
    bad.write_bytes("Grüße aus Köln, schöne Bücher für Überall\n".encode("cp1252") * 5)
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    upload(visitor, good, bad, picture)
    listed(visitor, "1 of 3", "bad.txt is not UTF-8", "picture.png has an unsupported file type")
    assert "12\ndocuments" in look(visitor)
    visitor.show_all_settings("corpus")
    visitor.type("corpus-encoding", "cp1252")
    visitor.field("corpus-encoding").press("Enter")
    listed(visitor, "2 of 3")


def test_preview_is_cleared_when_another_source_is_chosen(visitor: Visitor, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    rows = [{"id": n, "review": f"text {n}"} for n in range(5)]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (tmp_path / "other.txt").write_text("one\n")
    upload(visitor, path)
    listed(visitor, "1 of 1")
    said = look(visitor)
    assert re.search(r"rows\.jsonl\.gz: jsonl, gzip, \S+, column review", said)
    visitor.pick("corpus-source", "Hugging Face dataset")
    visitor.page.get_by_text("No preview yet").wait_for()
    assert visitor.page.locator("#corpus-preview .ps-documents").count() == 0


def test_the_upload_zone_shows_all_its_text_and_its_buttons_have_names(
    visitor: Visitor, tmp_path: Path
) -> None:
    for width in (390, 1280):
        visitor.page.set_viewport_size({"width": width, "height": 900})
        zone = visitor.page.locator("#corpus-upload button.upload-container").first
        # In one call, for the page may move between two.
        box, text = zone.evaluate(
            "one => [one, one.querySelector('.wrap')].map((part) => part.getBoundingClientRect())"
        )
        assert text["y"] >= box["y"]
        assert text["y"] + text["height"] <= box["y"] + box["height"]
        assert zone.locator(".wrap").evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    upload(visitor, write_sentences(tmp_path / "a.txt", 5))
    listed(visitor, "1 of 1")
    visitor.page.get_by_role("button", name="Upload files", exact=True).wait_for()
    assert not visitor.page.locator('[aria-label="common.upload"]').count()


def test_an_open_corpus_of_a_language_fills_in_the_form(visitor: Visitor) -> None:
    chooser = visitor.page.locator("#corpus-open")
    assert chooser.is_hidden()
    visitor.pick("corpus-source", "Hugging Face dataset")
    chooser.get_by_label("Well-known open corpora").select_option(label="Korean")
    corpora = chooser.get_by_role("listitem")
    visitor.wait_for(lambda: corpora.count() >= 3, _SECONDS, "the corpora are listed")
    visitor.see(corpora.filter(has_text="CulturaX"), "needs a login")
    chooser.get_by_role("button", name="Use a sample of FineWeb-2").press("Enter")
    name = visitor.field("corpus-dataset_name")
    visitor.wait_for(lambda: name.input_value() == "HuggingFaceFW/fineweb-2", _SECONDS, "its name")
    assert visitor.field("corpus-dataset_config").input_value() == "kor_Hang"
    visitor.see(chooser, "first 10,000 documents", "Nothing is downloaded")
    assert visitor.field("corpus-limit").input_value() == "10000"
    # The form can be read: what remains to be said is about the network.
    visitor.page.locator("#corpus-look").click()
    visitor.see(visitor.page.locator("#tab-corpus"), "Hub")
    assert "can't be read" not in visitor.page.locator("body").inner_text()
    visitor.pick("corpus-source", "My files")
    chooser.wait_for(state="hidden")


def test_uploads_that_a_queued_run_reads_are_kept(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    path = write_sentences(tmp_path / "a.txt", 5)
    kept = uploads.keep_uploads([str(path)], CorpusConfig(source="files"), workspace)
    store = Store.open(workspace)
    store.add_request("submit", {"config": {"corpus": {"path": kept.path}}})
    uploads.remove_upload(str(kept.folder), workspace)
    assert kept.folder.exists()
    number = store.pending_requests()[0].id
    store.finish_request(number)
    store.close()
    uploads.remove_upload(str(tmp_path), workspace)
    assert tmp_path.exists()
    uploads.remove_upload(str(kept.folder), workspace)
    assert not kept.folder.exists()
    assert path.exists()
