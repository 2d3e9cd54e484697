import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core.config.corpus import CorpusConfig
from core.corpus.docs import PACKAGES, DocsSource
from core.corpus.docstrings import docstrings
from core.corpus.reading import open_corpus
from core.records.events import Reporter, RunStopped
from core.workspace.workspace import Workspace

ROOT = Path(__file__).parents[3]


class Stopped(Reporter):
    def stop_requested(self):  # type: ignore[no-untyped-def]
        return "abort"


class Unused(Reporter):
    def raise_if_stopped(self) -> None:
        raise AssertionError("the files are read again")


@pytest.fixture
def two_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the package list, which takes long to read, by two small packages."""
    monkeypatch.setattr("core.corpus.docs.PACKAGES", {"click": "click", "jinja2": "jinja2"})
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")


def test_docstrings_of_modules_classes_and_functions_are_read_and_cleaned() -> None:
    source = b'''
"""Module: long enough to be kept."""
class A:
    """Class: long enough to be kept.

    A list:
        Indented further.
    """
    async def f(self):
        """Coroutine: long enough to be kept."""
if True:
    try:
        def g(
            a, b,
        ) -> None:  # A comment.

            r~~~Function: long enough to be kept, a \\ too.~~~
    finally:
        def h():
            """Short."""
        def i():
            """Other: with\\
 an escape \\u00e9 and a quote at its \\"end\\""""
not_one = """A string that is no docstring, however long."""
'''.replace(b"~~~", b"'''")
    found = sorted(docstrings(source, 20))
    names = ["Class", "Coroutine", "Function", "Module", "Other"]
    assert [text.split(":")[0] for text in found] == names
    assert found[2].endswith("a \\ too.")
    assert found[4] == 'Other: with an escape é and a quote at its "end"'
    assert found[0] == "Class: long enough to be kept.\n\nA list:\n    Indented further."


def test_escaped_backslash_does_not_escape_the_closing_quotes() -> None:
    source = b'def f():\n    """This path ends with a backslash: C:\\\\"""\n    return """, """\n'
    assert list(docstrings(source, 20)) == ["This path ends with a backslash: C:\\"]


@pytest.mark.parametrize("source", [b"def f(:", b'"""\xff\xfe"""', b'x = """a\0b"""', b""])
def test_file_that_cannot_be_read_has_no_docstrings(source: bytes) -> None:
    assert list(docstrings(source, 1)) == []


def test_every_documented_package_is_installed_by_the_requirements() -> None:
    """A missing package would give a new machine another corpus."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pending = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    brought: set[str] = set()
    while pending:
        name = canonicalize_name(pending.pop().name)
        if name in brought:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        brought.add(name)
        wanted = [Requirement(text) for text in needs]
        pending += [r for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]
    assert {canonicalize_name(name) for name in PACKAGES} <= brought


@pytest.mark.usefixtures("two_packages")
def test_documents_are_distinct_and_keep_their_order_in_the_cache(tmp_path: Path) -> None:
    first = list(DocsSource(Workspace(tmp_path / "one"), Reporter()).documents("train"))
    other = DocsSource(Workspace(tmp_path / "two"), Reporter())
    assert first == list(other.documents("train"))
    assert len(first) == len(set(first)) > 300
    assert all(len(text) >= 64 and text == text.strip() for text in first)
    again = DocsSource(Workspace(tmp_path / "two"), Unused())
    assert list(again.documents("train")) == first


@pytest.mark.usefixtures("two_packages")
def test_limit_keeps_most_documents_for_training(tmp_path: Path) -> None:
    config = CorpusConfig(limit=100, validation_percent=10)
    documents = list(open_corpus(config, Workspace(tmp_path)).documents("train"))
    assert 75 <= len(documents) <= 98


@pytest.mark.usefixtures("two_packages")
def test_stopped_reading_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(RunStopped):
        DocsSource(Workspace(tmp_path), Stopped())
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.usefixtures("two_packages")
def test_validation_split_shares_almost_no_windows_with_training(tmp_path: Path) -> None:
    corpus = open_corpus(CorpusConfig(validation_percent=30), Workspace(tmp_path))

    def windows(split: str) -> set[tuple[str, ...]]:
        parts = [text.split() for text in corpus.documents(split)]  # type: ignore[arg-type]
        return {tuple(p[n : n + 20]) for p in parts for n in range(len(p) - 19)}

    validation = windows("validation")
    assert len(validation) > 1000
    assert len(validation & windows("train")) <= 0.02 * len(validation)
    assert corpus.counts["validation_dropped"] > 0


def test_documented_packages_are_not_imported() -> None:
    code = (
        "import sys, core.corpus.docs as d; files = d._source_files(d.installed_versions());"
        "assert len(files) > 1000; print(sorted({'tensorflow', 'jax', 'pandas'} & {*sys.modules}))"
    )
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow(60)
@pytest.mark.thorough
def test_installed_documentation_is_large_enough(tmp_path: Path) -> None:
    corpus = open_corpus(CorpusConfig(), Workspace(tmp_path))
    validation_bytes = sum(len(text.encode()) for text in corpus.documents("validation"))
    assert corpus.counts["bytes"] > 25e6
    assert validation_bytes > 0.5e6
