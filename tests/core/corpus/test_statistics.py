"""The analysis of a corpus, and its sample."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from core import AnalyseConfig, CleanConfig, CorpusConfig, NamedSource, TokenizerConfig, Workspace
from core.__main__ import main
from core.corpus.cleaning.session import SessionPool
from core.corpus.cleaning.stage import clean
from core.corpus.previewing import analyse_apart, sample_apart
from core.corpus.sampling import Limits, sample_corpus
from core.corpus.scripts import script_of
from core.corpus.statistics import CorpusStatistics, analyse_corpus
from core.errors import ConfigError, CorpusError
from core.tokenizer.training import train
from tests.core.corpus.cleaning.support import pages, write_documents

PAGES = pages(40)
# Sizes of samples are in UTF-8.
SMALL = Limits(bytes=20_000)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def files(path: Path, **values: Any) -> CorpusConfig:
    return CorpusConfig(source="files", path=str(path), **values)


@pytest.fixture
def noisy(tmp_path: Path) -> CorpusConfig:
    """Two sources with planted duplicates, lines, scripts and errors."""
    web = [
        *[f"{text}\nShare this page" for text in PAGES[:20]],
        *PAGES[20:25], PAGES[20], PAGES[21], PAGES[22].replace(PAGES[22].split()[9], "else", 1),
        "Die schÃ¶ne MÃ¼hle am Bach, und die schÃ¶ne Stadt am MeÃŸner See.",
        "Here is one \ufffd and a bell \x07 and &amp; more of it.",
    ]  # fmt: skip
    books = [PAGES[23], *PAGES[25:], "Сегодня хорошая погода, и река течёт к морю. ☀"]
    sources = {"web": web, "books": books}
    for name, texts in sources.items():
        write_documents(tmp_path / f"{name}.jsonl", texts)
    return CorpusConfig(
        sources=tuple(
            NamedSource(name=name, path=str(tmp_path / f"{name}.jsonl")) for name in sources
        )
    )


def planted(corpus: CorpusConfig) -> list[str]:
    lines = [line for one in corpus.sources for line in Path(one.path).read_text().splitlines()]
    return [json.loads(line)["text"] for line in lines]


def test_analysis_finds_what_was_planted(noisy: CorpusConfig, workspace: Workspace) -> None:
    found = analyse_corpus(noisy, workspace)
    assert [(one.name, one.documents, one.share) for one in found.sources] == [
        ("web", 30, 1.0), ("books", 17, 1.0)
    ]  # fmt: skip
    assert found.documents == 47 and found.share == 1.0
    assert found.duplicates["exact"]["documents"] == 3
    assert found.duplicates["exact"]["of_other_sources"] == 1
    assert found.duplicates["near"]["documents"] == 1
    assert found.lines[0] == {"line": "Share this page", "documents": 20, "share": 20 / 47}
    scripts = {one["name"]: one for one in found.scripts}
    assert scripts["Latin"]["is_main"] and scripts["Cyrillic"]["documents"] == 1
    assert "о" in scripts["Cyrillic"]["examples"] and scripts["Symbols"]["examples"] == "☀"
    problems = {one["problem"]: one for one in found.encoding}
    assert {name: one["documents"] for name, one in problems.items()} == {
        "replacement_characters": 1, "mojibake": 1, "html_entities": 1, "control_characters": 1
    }  # fmt: skip
    assert "schÃ¶ne" in problems["mojibake"]["example"]
    assert "\\x07" in problems["control_characters"]["example"]
    assert sum(one["documents"] for one in found.histogram) == 47
    assert found.lengths["longest"] == max(map(len, planted(noisy)))
    assert {one["language"] for one in found.languages} >= {"en", "ru"}
    words = sum(len(text.split()) for text in PAGES)
    assert found.tokens["method"] == "words" and found.tokens["total"] > 1.3 * words
    hours = list(found.hours["by_size"].values())
    assert hours == sorted(hours)


@pytest.mark.long
def test_analysis_in_subprocesses_is_the_same(noisy: CorpusConfig, workspace: Workspace) -> None:
    apart = analyse_apart(AnalyseConfig(corpus=noisy), workspace).to_dict()
    here = analyse_corpus(noisy, workspace).to_dict()
    for name in ("seconds", "hours"):
        del apart[name], here[name]
    assert apart == here


def test_tokenizer_counts_the_tokens(tmp_path: Path, workspace: Workspace) -> None:
    corpus = files(write_documents(tmp_path / "a.jsonl", PAGES))
    settings = {"algorithm": "byte_level_bpe", "vocab_size": 400, "corpus": corpus, "workers": 1}
    train(TokenizerConfig(name="words", **settings), workspace)
    found = analyse_corpus(corpus, workspace, tokenizer="words")
    assert (found.tokens["method"], found.tokens["vocab_size"]) == ("tokenizer", 400)
    guessed = analyse_corpus(corpus, workspace).tokens["total"]
    # This small vocabulary needs more tokens than a usual one.
    assert guessed < found.tokens["total"] < 2 * guessed


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_large_file_is_read_at_places_all_over_it(
    tmp_path: Path, workspace: Workspace, suffix: str
) -> None:
    lines = [f"{number} {'word ' * 40}" for number in range(8000)]
    if suffix == "jsonl":
        lines = [json.dumps({"id": "x" * 100, "text": line}) for line in lines]
    path = tmp_path / f"long.{suffix}"
    path.write_text("\n".join(lines), "utf-8")
    [sample] = sample_corpus(files(path), workspace, Limits(bytes=600_000))
    numbers = [int(text.split()[0]) for text in sample.texts]
    assert numbers == sorted(numbers)
    assert len({number // 1000 for number in numbers}) == 8
    assert 550_000 < sample.read_bytes < 650_000
    # Stretches that are read whole make the estimate exact.
    assert len(numbers) / (sample.share or 0) == pytest.approx(8000, rel=0.02)


def test_even_sample_has_documents_of_all_places(tmp_path: Path, workspace: Workspace) -> None:
    path = tmp_path / "long.txt"
    path.write_text("\n".join(f"{number} {'word ' * 40}" for number in range(8000)), "utf-8")
    limits = Limits(documents=64, is_even=True)
    [sample] = sample_corpus(files(path), workspace, limits)
    numbers = [int(text.split()[0]) for text in sample.texts]
    assert len(numbers) == 64
    assert len({number // 250 for number in numbers}) == 32


def test_limits_count_for_all_sources_together(noisy: CorpusConfig, workspace: Workspace) -> None:
    samples = sample_corpus(noisy, workspace, SMALL)
    assert [one.name for one in samples] == ["web", "books"]
    assert all(one.texts and not one.is_whole for one in samples)
    assert sum(len(text.encode()) for one in samples for text in one.texts) < 30_000
    late = sample_corpus(noisy, workspace, Limits(seconds=0.0))
    assert [len(one.texts) for one in late] == [1, 1]


def test_limit_of_documents_is_that_of_the_corpus(tmp_path: Path, workspace: Workspace) -> None:
    path = write_documents(tmp_path / "a.jsonl", PAGES)
    [sample] = sample_corpus(files(path, limit=7), workspace)
    assert sample.texts == PAGES[:7] and sample.share == 1.0


def test_file_that_cannot_be_read_is_named(tmp_path: Path, workspace: Workspace) -> None:
    write_documents(tmp_path / "a.jsonl", PAGES[:5])
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(b'{"text": "caf\xe9 au lait"}\n' * 3)
    found = analyse_corpus(files(tmp_path / "*.jsonl"), workspace)
    assert found.documents == 5
    [source] = found.sources
    assert source.unreadable == 1 and "b.jsonl is not UTF-8" in source.error
    assert source.share is not None and source.share < 1
    with pytest.raises(CorpusError, match=r"b\.jsonl is not UTF-8"):
        analyse_corpus(files(bad), workspace)


def test_file_without_the_column_is_named(tmp_path: Path, workspace: Workspace) -> None:
    write_documents(tmp_path / "a.jsonl", PAGES[:5])
    (tmp_path / "b.jsonl").write_text('{"body": "words"}\n' * 3)
    config = files(tmp_path, text_column="text")
    for analyse in (analyse_corpus, analysed_apart):
        [source] = analyse(config, workspace).sources
        assert (source.sampled_documents, source.unreadable) == (5, 1)
        assert "text" in source.error and "b.jsonl" in source.error


def test_source_that_cannot_be_read_is_named(tmp_path: Path, workspace: Workspace) -> None:
    write_documents(tmp_path / "a.jsonl", PAGES[:5])
    (tmp_path / "b.jsonl").write_text('{"body": "words"}\n' * 3)
    named = [NamedSource(name=name, path=str(tmp_path / f"{name}.jsonl"), text_column="text")
             for name in "abc"]  # fmt: skip
    for analyse in (analyse_corpus, analysed_apart):
        found = analyse(CorpusConfig(sources=tuple(named)), workspace)
        assert [(one.name, one.sampled_documents) for one in found.sources] == [
            ("a", 5), ("b", 0), ("c", 0)
        ]  # fmt: skip
        assert found.documents == 5 and found.share is None
        assert "Source b" in found.sources[1].error and "Source c" in found.sources[2].error
        with pytest.raises((ConfigError, CorpusError), match="Source b"):
            analyse(CorpusConfig(sources=tuple(named[1:])), workspace)


def test_cleaned_corpus_of_several_sources_is_one_of_several(
    tmp_path: Path, workspace: Workspace
) -> None:
    parts = {"P": PAGES[:20], "Q": PAGES[20:30]}
    for name, texts in {**parts, "r": PAGES[30:]}.items():
        write_documents(tmp_path / f"{name}.jsonl", texts)
    both = tuple(NamedSource(name=one, path=str(tmp_path / f"{one}.jsonl")) for one in parts)
    clean(CleanConfig(name="PQ", corpus=CorpusConfig(sources=both), workers=1), workspace)
    old = NamedSource(name="old", source="corpus", corpus_name="PQ")
    corpus = CorpusConfig(sources=(old, NamedSource(name="r", path=str(tmp_path / "r.jsonl"))))
    samples = sample_apart(corpus, workspace, Limits())
    assert samples == sample_corpus(corpus, workspace, Limits())
    assert [one.name for one in samples] == ["old", "r"]
    assert set(samples[0].texts) <= set(PAGES[:30]) and len(samples[1].texts) == 10
    assert [one.name for one in analysed_apart(corpus, workspace).sources] == ["old", "r"]
    pool = SessionPool(workspace)
    try:
        seen = pool.preview(pool.open(corpus, 20), CleanConfig(corpus=corpus))
    finally:
        pool.close()
    assert len(seen.documents) == 20


def analysed_apart(config: CorpusConfig, workspace: Workspace) -> CorpusStatistics:
    return analyse_apart(AnalyseConfig(corpus=config), workspace)


def test_compressed_file_is_read_up_to_the_limit(tmp_path: Path, workspace: Workspace) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\n".join(PAGES).encode()))
    [whole] = sample_corpus(files(path), workspace)
    assert whole.share == 1.0
    [part] = sample_corpus(files(path), workspace, Limits(bytes=1000))
    assert part.share is not None and part.share < 1.0


@pytest.mark.parametrize(
    ("character", "script"),
    [("a", "Latin"), ("ß", "Latin"), ("ж", "Cyrillic"), ("한", "Hangul"), ("漢", "Han"),
     ("か", "Hiragana"), ("ع", "Arabic"), ("5", ""), (".", ""), ("\u0301", ""), ("☀", "Symbols"),
     ("🙂", "Symbols"), ("\U00010330", "Other")],
)  # fmt: skip
def test_script_of_a_character(character: str, script: str) -> None:
    assert script_of(character) == script


def test_wrong_argument_is_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="can't be analysed"):
        analyse_corpus("text.txt", workspace)  # type: ignore[arg-type]


def test_command_line_prints_the_analysis(
    noisy: CorpusConfig, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    added = [f"--add={one.name}={one.path}" for one in noisy.sources]
    command = ["analyse", *added, "--workspace", str(workspace.root)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Read all of the corpus: 47 documents" in shown
    assert "Exact duplicates: 3 documents (6.38 %), 1 of other sources" in shown
    assert main([*command, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values.keys() == CorpusStatistics.__dataclass_fields__.keys()
