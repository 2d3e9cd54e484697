"""A corpus of several named sources."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from core import CleanConfig, CorpusConfig, NamedSource, Workspace, load_sources
from core.__main__ import build_parser, main
from core.cli.fields import stage_values
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.corpus.cleaning.preview import preview_cleaning
from core.corpus.cleaning.stage import clean
from core.corpus.parts import PartCounts
from core.corpus.previewing import preview_apart
from core.corpus.reading import open_corpus, preview
from core.errors import ConfigError, CorpusError, ShardError
from core.records.events import Reporter
from core.runs.commands import shell_line
from core.shards.build import build
from core.tokenizer.training import train as train_tokenizer
from tests.core.corpus.cleaning.support import documents_of, pages
from tests.texts import sentences


class Notes(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str, **fields: Any) -> None:
        self.lines.append(message)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sources: web has 300 documents, code has 120."""
    lines = sentences(420, seed=3)
    (tmp_path / "web.txt").write_text("\n".join(lines[:300]))
    (tmp_path / "code.txt").write_text("\n".join(lines[300:]))
    return tmp_path


def several(folder: Path, **values: Any) -> CorpusConfig:
    named = [NamedSource(name=name, path=str(folder / f"{name}.txt")) for name in ("web", "code")]
    return CorpusConfig(**{"sources": named, **values})


def labelled(config: CorpusConfig, workspace: Workspace) -> list[tuple[str, str, str]]:
    return [tuple(one) for one in open_corpus(config, workspace).sourced_documents()]


def parsed(line: str) -> CorpusConfig:
    options = build_parser().parse_args(["tokenizer", *shlex.split(line)])
    return TokenizerConfig.parse(stage_values(options, TokenizerConfig)).corpus


def test_sources_are_read_in_order_and_documents_know_theirs(
    folder: Path, workspace: Workspace
) -> None:
    found = labelled(several(folder), workspace)
    assert [source for _, source, _ in found] == ["web"] * 300 + ["code"] * 120
    assert {source for split, source, _ in found if split == "validation"} == {"web", "code"}
    turned = several(folder).model_copy(update={"sources": several(folder).sources[::-1]})
    assert [source for _, source, _ in labelled(turned, workspace)] == ["code"] * 120 + [
        "web"
    ] * 300


def test_same_documents_are_held_out_of_one_source_and_of_all(
    folder: Path, workspace: Workspace
) -> None:
    shared = "A line of exactly twenty words that all sources repeat so often that it should be "
    shared += "dropped from the held-out documents"
    with (folder / "code.txt").open("a") as file:
        file.writelines(f"\n{shared} number {number}" for number in range(40))
    with (folder / "web.txt").open("a") as file:
        file.writelines(f"\n{shared} again {number}" for number in range(40))
    for drops in (False, True):
        config = several(folder, drop_overlapping_validation=drops, validation_percent=20)
        whole = labelled(config, workspace)
        for name in ("web", "code"):
            only = config.model_copy(update={"only": name})
            assert labelled(only, workspace) == [one for one in whole if one[1] == name]


def test_documents_of_sources_are_counted_separately(folder: Path, workspace: Workspace) -> None:
    notes = Notes()
    corpus = open_corpus(several(folder), workspace, notes)
    list(corpus.documents("train"))
    counts = corpus.source_counts
    assert {name: one["documents"] for name, one in counts.items()} == {"web": 300, "code": 120}
    assert sum(one["bytes"] for one in counts.values()) == corpus.counts["bytes"]
    assert any(line.startswith("Source web: 300 documents") for line in notes.lines)
    # A later pass, perhaps of another process, finds the counts.
    assert open_corpus(several(folder), workspace).source_counts == counts


def test_parts_in_order_hold_the_documents_of_all_sources(
    folder: Path, workspace: Workspace
) -> None:
    for config in (several(folder), several(folder, only="code")):
        corpus = open_corpus(config, workspace)
        parts = corpus.parts(2_000)
        assert len({part.source for part in parts}) == len(corpus.source_names) < len(parts)
        read, counts = [], []
        for part in parts:
            one = PartCounts()
            read += [(split, part.source, found.text) for split, found in part.documents(one)]
            counts.append((part.split, PartCounts.from_json(one.to_json())))
        assert read == labelled(config, workspace)
        assert "code.txt" in parts[-1].describe() and "source code" in parts[-1].describe()
        counted = open_corpus(config, Workspace(folder / f"other-{len(parts)}"))
        counted.record_parts(counts)
        assert counted.source_counts == open_corpus(config, workspace).source_counts


def test_source_may_have_its_own_validation_files(folder: Path, workspace: Workspace) -> None:
    (folder / "held.txt").write_text("\n".join(sentences(9, seed=8)))
    own = NamedSource(
        name="own", path=str(folder / "web.txt"), validation_path=str(folder / "held.txt")
    )
    config = CorpusConfig(sources=[own, NamedSource(name="code", path=str(folder / "code.txt"))])
    found = labelled(config, workspace)
    assert sum(split == "train" for split, source, _ in found if source == "own") == 300
    assert sum(split == "validation" for split, source, _ in found if source == "own") == 9
    assert 0 < sum(split == "validation" for split, source, _ in found if source == "code") < 60
    assert open_corpus(config, workspace).holds_out


def test_file_that_a_source_holds_out_is_trained_on_by_none(
    folder: Path, workspace: Workspace
) -> None:
    data = folder / "data"
    data.mkdir()
    for name in ("web", "code"):
        (folder / f"{name}.txt").rename(data / f"{name}.txt")
    (data / "held.txt").write_text("\n".join(sentences(9, seed=8)))
    (folder / "link.txt").symlink_to(data / "held.txt")
    own = NamedSource(
        name="own", path=str(data / "web.txt"), validation_path=str(folder / "link.txt")
    )
    everything = NamedSource(name="everything", path=str(data))
    notes = Notes()
    found = list(open_corpus(CorpusConfig(sources=[everything, own]), workspace, notes)
                 .sourced_documents())  # fmt: skip
    held_out = {text for split, source, text in found if source == "own" and split == "validation"}
    assert len(held_out) == 9
    assert held_out.isdisjoint(text for split, _, text in found if split == "train")
    assert sum(source == "everything" for _, source, _ in found) == 420
    assert any("everything: 1 files are not trained on" in line for line in notes.lines)
    with pytest.raises(ConfigError, match="Source more: No training file remains"):
        more = NamedSource(name="more", path=str(data / "held.txt"))
        open_corpus(CorpusConfig(sources=[own, more]), workspace)


def test_counts_of_some_parts_are_not_taken_for_those_of_a_source(
    folder: Path, workspace: Workspace
) -> None:
    (folder / "held.txt").write_text("\n".join(sentences(9, seed=8)))
    own = NamedSource(
        name="own", path=str(folder / "web.txt"), validation_path=str(folder / "held.txt")
    )
    config = CorpusConfig(sources=[own, NamedSource(name="code", path=str(folder / "code.txt"))])
    corpus = open_corpus(config, workspace)
    counts = []
    for part in corpus.parts(splits=("validation",)):
        counts.append((part.split, PartCounts()))
        list(part.documents(counts[-1][1]))
    corpus.record_parts(counts)
    later = open_corpus(config, workspace)
    list(later.documents("train"))
    assert later.source_counts["own"]["train_documents"] == 300


def test_limits_apply_to_each_source(folder: Path, workspace: Workspace) -> None:
    limited = NamedSource(name="web", path=str(folder / "web.txt"), limit=7)
    config = CorpusConfig(
        sources=[limited, NamedSource(name="code", path=str(folder / "code.txt"))], limit=50
    )
    names = [source for _, source, _ in labelled(config, workspace)]
    assert (names.count("web"), names.count("code")) == (7, 50)


def test_file_of_sources_is_read_relative_to_its_folder(folder: Path) -> None:
    file = folder / "corpus.toml"
    file.write_text(
        '[web]\npath = "data/*.txt"\ntext_unit = "file"\n\n[wiki]\ndataset_name = "a/b"\n'
        'dataset_config = "en"\ndataset_revision = "v2"\nlimit = 10\n\n'
        '[old]\ncorpus_name = "C"\n\n[python]\nsource = "docs"\n\n'
        '[far]\npath = "https://example.org/a.jsonl"\n'
    )
    web, wiki, old, python, far = load_sources(file)
    assert (web.path, web.text_unit) == (f"{folder}/data/*.txt", "file")
    assert (wiki.source, wiki.dataset_config, wiki.dataset_revision) == ("hub", "en", "v2")
    assert wiki.limit == 10
    assert (old.source, old.corpus_name) == ("corpus", "C")
    assert (python.source, python.name) == ("docs", "python")
    assert far.path == "https://example.org/a.jsonl"
    assert parsed(f"--corpus {file}").sources == (web, wiki, old, python, far)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["names no source"]),
        ("[web\n", ["isn't TOML", "line 1"]),
        ('path = "a"\n', ["the key path outside of a source"]),
        ('[web]\npaht = "a"\n', ["unknown key in the source web: paht", "path"]),
        ('[web]\npath = ["a", "b"]\n', ["wrong value in the source web: path"]),
        ("[web]\n", ["empty source web"]),
        ('[web]\npath = "a"\ndataset_name = "b"\n', ["source web", "ambiguous"]),
        ('[web]\npath = "a"\nlimit = 0\n', ["source web", "limit"]),
        ('[web]\npath = "a"\nlimit = true\n', ["wrong value in the source web: limit", "whole"]),
        ('[web]\npath = "a"\nlimit = "5"\n', ["wrong value in the source web: limit", "whole"]),
        ('["a b"]\npath = "a"\n', ["source a b", "name"]),
        ('[web]\npath = "a"\n[web.more]\npath = "b"\n', ["unknown key in the source web: more"]),
        ('[web]\npath = "a"\n[web]\npath = "b"\n', ["isn't TOML", "web"]),
    ],
)
def test_wrong_file_of_sources_names_file_source_and_key(
    text: str, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "corpus.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_sources(file)
    assert all(word in str(caught.value) for word in ["corpus.toml", *words]), caught.value


def test_missing_file_of_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml can't be read"):
        load_sources(tmp_path / "nowhere.toml")


def test_repeated_flag_adds_sources() -> None:
    config = parsed(
        "--add web='data/*.txt' --add wiki=hub:a/b:en@v2 --add old=corpus:C --add python=docs: "
        "--only web,old"
    )
    kinds = {one.name: one.source for one in config.sources}
    assert kinds == {"web": "files", "wiki": "hub", "old": "corpus", "python": "docs"}
    wiki = config.sources[1]
    assert (wiki.dataset_name, wiki.dataset_config, wiki.dataset_revision) == ("a/b", "en", "v2")
    assert config.names_only == ["web", "old"]
    assert config.source == "several"


def test_flags_of_one_source_are_those_of_each_added_one() -> None:
    config = parsed("--add a=x --add '{\"name\": \"b\", \"path\": \"y\", \"encoding\": \"cp949\"}' "
                    "--encoding utf-16 --text-unit file")  # fmt: skip
    assert [one.encoding for one in config.sources] == ["utf-16", "cp949"]
    assert {one.text_unit for one in config.sources} == {"file"}
    config = parsed("--add a=hub:o/a --add b=hub:o/b:en@v2 --dataset-config ko "
                    "--dataset-revision v1")  # fmt: skip
    stated = [(one.dataset_config, one.dataset_revision) for one in config.sources]
    assert stated == [("ko", "v1"), ("en", "v2")]


@pytest.mark.parametrize(
    "line",
    [
        "--add web='data/*.txt' --add wiki=hub:a/b:en@v2 --add old=corpus:C --add python=docs:",
        "--add a=x --add b=y --text-unit file --only b --limit 3",
        "--corpus C --only web",
    ],
)
def test_shown_command_makes_the_same_sources(line: str) -> None:
    config = TokenizerConfig(corpus=parsed(line))
    words = shlex.split(shell_line("tokenizer", config))[3:]
    assert parsed(shlex.join(words[1:])) == config.corpus
    assert CorpusConfig.parse(config.corpus.model_dump(mode="json")) == config.corpus


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--corpus web --source hub", ["--corpus has no effect with --source hub"]),
        ("--add a=x --source docs", ["--add has no effect with --source docs"]),
        ("--add a=x --path y", ["ambiguous"]),
        ("--add a=x --add A=y", ["Two sources are named a"]),
        ("--add x", ["A source can't be read", "'x'"]),
        ("--add 'a b=x'", ["A source can't be read"]),
        ("--add ü=x", ["A source can't be read", "a-z and A-Z"]),
        ('--add \'{"path": "x"\'', ["A source can't be read", "JSON"]),
        ("--source several", ["The corpus has no sources"]),
        ("--add a=x --only b", ["The corpus has no source 'b'", "one of a"]),
        ("--path x --only b", ["only needs a corpus with several sources"]),
    ],
)
def test_wrong_flags_are_explained(line: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(line)
    assert all(word in str(caught.value) for word in words), caught.value


def test_flags_of_one_source_are_refused_beside_a_file(folder: Path) -> None:
    (folder / "corpus.toml").write_text('[web]\npath = "web.txt"\n')
    with pytest.raises(ConfigError, match="--text-unit has no effect on the sources of"):
        parsed(f"--corpus {folder}/corpus.toml --text-unit file")


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_source_without_text_is_named(content: str, folder: Path, workspace: Workspace) -> None:
    (folder / "code.txt").write_text(content)
    with pytest.raises(CorpusError, match=r"^Source code: .*code.txt contains no text"):
        open_corpus(several(folder), workspace)
    with pytest.raises(CorpusError, match=r"^Source code: "):
        preview(several(folder), workspace)


def test_missing_source_is_named(folder: Path, workspace: Workspace) -> None:
    (folder / "web.txt").unlink()
    with pytest.raises(CorpusError, match=r"^Source web: No file matches"):
        open_corpus(several(folder), workspace)


def test_preview_shows_documents_of_each_source(folder: Path, workspace: Workspace) -> None:
    for seen in (
        preview(several(folder), workspace, documents=4),
        preview_apart(several(folder), workspace, documents=4),
    ):
        assert seen.sources == ["web", "web", "code", "code"]
        assert {name: one["documents"] for name, one in seen.by_source.items()} == {
            "web": 300,
            "code": 120,
        }
        assert seen.documents == 420
        assert seen.reading[0].startswith("Source web: Read")
    cleaned = preview_cleaning(CleanConfig(corpus=several(folder)), 10, workspace)
    code = set((folder / "code.txt").read_text().splitlines())
    assert sum(one.before in code for one in cleaned.documents) == 5


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two sources with equal and similar documents, cleaned as C."""
    tmp_path = tmp_path_factory.mktemp("cleaned")
    workspace = Workspace(tmp_path / "workspace")
    texts = pages(160, seed=1)
    similar = [text.replace(text.split()[9], "else", 1) for text in texts[10:20]]
    sources = {"zoo": texts[:100], "art": [*texts[:10], *similar, *texts[100:]]}
    named = []
    for name, found in sources.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found))
        named.append(NamedSource(name=name, path=str(path)))
    clean(CleanConfig(corpus=CorpusConfig(sources=named), name="C", workers=1), workspace)
    return workspace


def test_cleaning_finds_duplicates_across_sources_and_keeps_them_apart(cleaned: Workspace) -> None:
    artifact = cleaned.find("corpus", "C")
    counts = artifact.manifest.counts
    zoo, art = counts["sources"]["zoo"], counts["sources"]["art"]
    assert list(counts["sources"]) == ["zoo", "art"]
    assert (zoo["read"]["documents"], art["read"]["documents"]) == (100, 80)
    assert zoo["removed"].get("exact_duplicates", 0) + art["removed"]["exact_duplicates"] == 10
    assert zoo["removed"].get("near_duplicates", 0) + art["removed"]["near_duplicates"] == 10
    kept = sum(one[f"{split}_documents"] for one in (zoo, art) for split in ("train", "validation"))
    assert kept == 160
    by_relation = counts["steps"]["exact_duplicates"]["removed_by"]
    assert by_relation == {"of another source": 10}
    assert {path.name for path in (artifact.path / "train").iterdir()} == {"zoo", "art"}
    read = open_corpus(CorpusConfig(corpus_name="C"), cleaned)
    assert read.source_names == ["zoo", "art"]
    assert list(read.documents("train")) == [
        text for name in ("zoo", "art") for text in documents_of(artifact, f"train/{name}")
    ]


def test_each_source_of_a_cleaned_corpus_can_be_used_alone(cleaned: Workspace) -> None:
    whole = labelled(CorpusConfig(corpus_name="C"), cleaned)
    for name in ("zoo", "art"):
        alone = labelled(CorpusConfig(corpus_name="C", only=name), cleaned)
        assert alone == [one for one in whole if one[1] == name]
        assert {split for split, _, _ in alone} == {"train", "validation"}
    with pytest.raises(ConfigError, match=r"The corpus C has no source 'web'.*zoo, art"):
        open_corpus(CorpusConfig(corpus_name="C", only="web"), cleaned)


def test_cleaned_corpus_can_be_one_of_several_sources(cleaned: Workspace, folder: Path) -> None:
    config = CorpusConfig(sources=["old=corpus:C", f"web={folder}/web.txt"])
    found = labelled(config, cleaned)
    before = labelled(CorpusConfig(corpus_name="C"), cleaned)
    old = sorted((split, text) for split, source, text in found if source == "old")
    assert old == sorted((split, text) for split, _, text in before)


def test_source_that_cleaning_empties_is_named(folder: Path, workspace: Workspace) -> None:
    (folder / "code.txt").write_text("x\ny\nz\n")
    config = CleanConfig(corpus=several(folder), name="C", min_characters=5, workers=1)
    with pytest.raises(CorpusError, match="no training document of the source code"):
        clean(config, workspace)


def test_source_whose_documents_are_all_held_out_needs_no_other_rules(
    folder: Path, workspace: Workspace
) -> None:
    (folder / "code.txt").write_text(held_out_document(folder, workspace))
    config = CleanConfig(
        corpus=several(folder), name="C", exact_duplicates=False, near_duplicates=False, workers=1
    )
    with pytest.raises(CorpusError, match="The source code has no training document") as raised:
        clean(config, workspace)
    assert "lower validation_percent" in raised.value.fix


def test_cleaned_source_without_held_out_documents_is_to_be_cleaned_again(
    folder: Path, workspace: Workspace
) -> None:
    train_tokenizer(TokenizerConfig(corpus=several(folder), vocab_size=80, name="words"), workspace)
    lines = (folder / "code.txt").read_text().splitlines()
    training = {text for split, _, text in labelled(several(folder), workspace) if split == "train"}
    (folder / "code.txt").write_text("\n".join([one for one in lines if one in training][:20]))
    clean(CleanConfig(corpus=several(folder), name="C", workers=1), workspace)
    corpus = CorpusConfig(source="corpus", corpus_name="C", only="code")
    with pytest.raises(ShardError, match="single validation sequence") as raised:
        build(ShardConfig(corpus=corpus, tokenizer="words", max_seq_length=16), workspace)
    assert "clean with a larger validation_percent" in raised.value.fix


def test_counts_of_a_tokenizer_leave_out_the_skipped_file(
    folder: Path, workspace: Workspace
) -> None:
    (folder / "code.txt").rename(folder / "code-1.txt")
    data = gzip.compress("\n".join(sentences(300, seed=1)).encode())
    (folder / "code-2.txt.gz").write_bytes(data[:-100])
    sources = [
        NamedSource(name="web", path=str(folder / "web.txt")),
        NamedSource(name="code", path=str(folder / "code*")),
    ]
    config = TokenizerConfig(
        corpus=CorpusConfig(sources=sources), vocab_size=80, skip_failing_parts=True
    )
    counts = train_tokenizer(config, workspace).manifest.counts
    assert counts["files_skipped"] == 1
    documents = {name: one["documents"] for name, one in counts["sources"].items()}
    assert documents == {"web": 300, "code": 120}
    assert counts["corpus"]["documents"] == 420


def held_out_document(folder: Path, workspace: Workspace) -> str:
    return next(
        text for split, _, text in labelled(several(folder), workspace) if split == "validation"
    )


def test_shards_count_tokens_by_source_and_can_take_one(folder: Path, workspace: Workspace) -> None:
    words = TokenizerConfig(corpus=several(folder), vocab_size=80, name="words")
    tokenizer = train_tokenizer(words, workspace).manifest.counts
    assert tokenizer["sources"]["web"]["documents"] == 300

    def shards(**values: Any) -> dict[str, Any]:
        config = ShardConfig(
            corpus=several(folder, only=values.get("only", "")), tokenizer="words",
            max_seq_length=16, name=values.get("name", values.get("only", "all")),
            part_mb=values.get("part_mb", 64), workers=1,
        )  # fmt: skip
        return build(config, workspace).manifest.counts

    whole = shards()
    sources = whole["sources"]
    tokens = sum(one[f"{split}_tokens"] for one in sources.values() for split in
                 ("train", "validation"))  # fmt: skip
    packed = whole["train_tokens"] + whole["validation_tokens"] + whole["tokens_dropped"]
    assert tokens == packed
    assert sum(one["bytes"] for one in sources.values()) == whole["bytes"]
    assert shards(only="code")["sources"] == {"code": sources["code"]}
    assert shards(name="again", part_mb=0.003)["sources"] == sources


def test_source_whose_documents_are_all_held_out_is_named(
    folder: Path, workspace: Workspace
) -> None:
    train_tokenizer(TokenizerConfig(corpus=several(folder), vocab_size=80, name="words"), workspace)
    (folder / "code.txt").write_text(held_out_document(folder, workspace))
    config = ShardConfig(corpus=several(folder), tokenizer="words", max_seq_length=16)
    with pytest.raises(ShardError, match="The source code has no training document"):
        build(config, workspace)


@pytest.mark.long
def test_command_line_reports_counts_by_source(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.cli.following._FOLLOW_SECONDS", 0.05)
    (folder / "corpus.toml").write_text('[web]\npath = "web.txt"\n[code]\npath = "code.txt"\n')
    code = main(["clean", "--corpus", str(folder / "corpus.toml"), "--name", "C", "--json",
                 "--workspace", str(folder / "workspace"), "--workers", "1"])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err
    sources = json.loads(said.out)["metrics"]["sources"]
    assert sources["web"]["read"]["documents"] == 300
    assert "Source code: documents read 120" in said.err


def test_damaged_small_file_is_skipped_with_its_part(tmp_path: Path, workspace: Workspace) -> None:
    (tmp_path / "a.txt").write_text("\n".join(sentences(300)))
    data = gzip.compress("\n".join(sentences(300, seed=1)).encode())
    (tmp_path / "z.txt.gz").write_bytes(data[:-100])
    config = CorpusConfig(path=str(tmp_path / "*"))
    with pytest.raises(CorpusError, match=r"z\.txt\.gz can't be read"):
        list(open_corpus(config, workspace).documents("train"))
    corpus = open_corpus(config, workspace, skipped_bytes=1_000)
    assert len(list(corpus.labelled_documents())) == 300
    sources = [NamedSource(name="x", path=str(tmp_path / "z.txt.gz"))]
    with pytest.raises(CorpusError, match=r"^Source x: "):
        open_corpus(CorpusConfig(sources=sources), workspace)


def test_file_of_sources_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    data = '[web]\npath = "web.txt"\n[code]\npath = "code.txt"\n'.encode("utf-8-sig")
    (folder / "corpus.toml").write_bytes(data)
    assert [one.name for one in load_sources(folder / "corpus.toml")] == ["web", "code"]
