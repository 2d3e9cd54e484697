import json
from pathlib import Path
from typing import Any

import pytest

from core.config.tokenizer import TokenizerConfig
from core.corpus.reading import open_corpus
from core.errors import ConfigError, CorpusError, TokenizerError
from core.records.events import Reporter, RunStopped
from core.tokenizer.loading import load
from core.tokenizer.pre_tokenizers import PRE_TOKENIZATIONS
from core.tokenizer.training import derive_name, train
from core.workspace.manifests import Artifact, damaged_files
from core.workspace.workspace import Workspace
from tests.texts import sentences, varied_texts, write_sentences

ALGORITHMS = ("unigram", "byte_level_bpe")


def config_of(path: Path, **settings: Any) -> TokenizerConfig:
    corpus = {"source": "files", "path": str(path), **settings.pop("corpus", {})}
    return TokenizerConfig.parse({"corpus": corpus, "vocab_size": 100, **settings})


def train_on(tmp_path: Path, reporter: Reporter | None = None, **settings: Any) -> Artifact:
    path = write_sentences(tmp_path / "a.txt")
    return train(config_of(path, **settings), Workspace(tmp_path / "workspace"), reporter)


class Recording(Reporter):
    def __init__(self, stop_at: str = "") -> None:
        self.notes: list[str] = []
        self.values: dict[str, float] = {}
        self._stop_at = stop_at

    def progress(self, done, total=None, unit="", note=""):  # type: ignore[no-untyped-def]
        self.notes.append(note)

    def metrics(self, step, values):  # type: ignore[no-untyped-def]
        self.values |= values

    def stop_requested(self):  # type: ignore[no-untyped-def]
        stop = self._stop_at and any(self._stop_at in note for note in self.notes)
        return "abort" if stop else None


@pytest.mark.parametrize(("algorithm", "size"), [("unigram", 100), ("byte_level_bpe", 300)])
def test_trained_tokenizer_is_stored_as_an_artifact(
    tmp_path: Path, algorithm: str, size: int
) -> None:
    artifact = train_on(tmp_path, algorithm=algorithm, vocab_size=size)
    workspace = Workspace(tmp_path / "workspace")
    tokenizer = load(artifact.name, workspace)
    corpus = open_corpus(config_of(tmp_path / "a.txt").corpus, workspace)
    assert artifact.name == f"files-{algorithm}-{size}"
    assert artifact.fingerprint == tokenizer.fingerprint
    assert artifact.manifest.inputs == {"corpus": corpus.fingerprint}
    assert artifact.manifest.config["algorithm"] == algorithm
    assert artifact.manifest.counts["vocab_size"] == tokenizer.vocab_size == size
    assert artifact.manifest.counts["scored_on"] == "validation"
    assert artifact.manifest.counts["corpus"]["documents"] == 400
    assert artifact.manifest.counts["documents"] == len(list(corpus.documents("validation")))
    assert not damaged_files(artifact.path, artifact.manifest)


def test_transformers_loads_the_tokenizer_with_its_special_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for algorithm, size, mask in (("unigram", 100, "[MASK]"), ("byte_level_bpe", 300, "<mask>")):
        artifact = train_on(tmp_path, algorithm=algorithm, vocab_size=size)
        ours = load(str(artifact.path))
        theirs = transformers.AutoTokenizer.from_pretrained(artifact.path)
        assert len(theirs) == size
        for role in ("cls", "sep", "unk", "pad", "mask"):
            assert getattr(theirs, f"{role}_token_id") == getattr(ours, f"{role}_id")
        assert theirs.bos_token_id == ours.cls_id and theirs.eos_token_id == ours.sep_id
        assert theirs.mask_token == mask
        assert theirs.added_tokens_decoder[ours.mask_id].lstrip
        for text in (f"the {mask} river.", "  two\n three  ", ""):
            found = theirs(text)
            assert sorted(found) == ["attention_mask", "input_ids"]
            assert found["input_ids"] == ours.encode(text).tolist()
            decoded = theirs.decode(found["input_ids"], skip_special_tokens=True)
            assert decoded == ours.decode(found["input_ids"])


def test_files_name_a_class_that_every_transformers_version_knows(tmp_path: Path) -> None:
    folder = train_on(tmp_path).path
    config = json.loads((folder / "tokenizer_config.json").read_text())
    special = json.loads((folder / "special_tokens_map.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["mask_token"] == special["mask_token"]["content"] == "[MASK]"
    assert special["mask_token"]["lstrip"] is True


def test_held_out_documents_are_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "validation.txt").write_text("Xylophonic quizzes.\n" * 50)
    corpus = {"validation_path": str(tmp_path / "validation.txt")}
    for algorithm, size in (("unigram", 100), ("byte_level_bpe", 330)):
        artifact = train_on(tmp_path, algorithm=algorithm, vocab_size=size, corpus=corpus)
        tokens = load(str(artifact.path)).backend.get_vocab()
        assert not any("Xy" in token or "uiz" in token for token in tokens)


def test_vocabulary_too_large_for_the_text_is_refused(tmp_path: Path) -> None:
    for algorithm in ALGORITHMS:
        with pytest.raises(TokenizerError, match="too small for a vocabulary of 20,000") as caught:
            train_on(tmp_path, algorithm=algorithm, vocab_size=20_000)
        assert caught.value.field == "vocab_size"
        assert not list((tmp_path / "workspace" / "tokenizers").glob("*"))
        possible = int(caught.value.expected.split()[2].replace(",", ""))
        artifact = train_on(tmp_path, algorithm=algorithm, vocab_size=possible)
        assert artifact.manifest.counts["vocab_size"] == possible
        with pytest.raises(TokenizerError):
            train_on(tmp_path, algorithm=algorithm, vocab_size=possible + 1, name="more")
        Path(artifact.path).rename(tmp_path / algorithm)


def test_empty_corpus_and_taken_name_are_refused_before_training(tmp_path: Path) -> None:
    train_on(tmp_path, name="mine")
    with pytest.raises(ConfigError, match="taken"):
        train_on(tmp_path, name="mine")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(CorpusError, match="contains no text"):
        train(config_of(tmp_path / "empty.txt"), Workspace(tmp_path / "workspace"))
    assert [a.name for a in Workspace(tmp_path / "workspace").list("tokenizer")] == ["mine"]


def test_default_name_gets_a_number_if_taken(tmp_path: Path) -> None:
    names = [train_on(tmp_path).name for _ in range(2)]
    assert names == ["files-unigram-100", "files-unigram-100-2"]
    splits = {"pre_tokenization": "llama3", "vocab_size": 300}
    named = [derive_name(config_of(tmp_path, algorithm=name, **splits)) for name in ALGORITHMS]
    assert named == ["files-unigram-300", "files-byte_level_bpe-llama3-300"]


def test_single_document_is_scored_on_itself(tmp_path: Path) -> None:
    artifact = train_on(tmp_path, corpus={"text_unit": "file"})
    assert artifact.manifest.counts["scored_on"] == "train"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_progress_and_scores_are_reported(tmp_path: Path, algorithm: str) -> None:
    reporter = Recording()
    train_on(tmp_path, reporter, algorithm=algorithm, vocab_size=300)
    assert any("counting words" in note for note in reporter.notes)
    assert reporter.values["tokens_per_word"] >= 1
    assert 0 < reporter.values["tokens_per_byte"] < 1


@pytest.mark.parametrize(
    ("algorithm", "stop_at"),
    [
        ("unigram", "counting words"),
        ("unigram", "choosing tokens"),
        ("byte_level_bpe", "counting words"),
    ],
)
def test_stopped_training_leaves_no_artifact(
    tmp_path: Path, algorithm: str, stop_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.tokenizer.counting._DOCUMENTS_BETWEEN_REPORTS", 10)
    with pytest.raises(RunStopped):
        train_on(tmp_path, Recording(stop_at), algorithm=algorithm, vocab_size=300)
    assert not list((tmp_path / "workspace").glob("tokenizers/*"))


def test_text_in_several_scripts_round_trips(tmp_path: Path) -> None:
    lines = [f"{text} 강물은 흐른다 {n} 河水流动 नदी" for n, text in enumerate(sentences(100))]
    (tmp_path / "a.txt").write_text("\n".join(lines), "utf-8")
    for algorithm in ALGORITHMS:
        config = config_of(tmp_path / "a.txt", algorithm=algorithm, vocab_size=300)
        artifact = train(config, Workspace(tmp_path / "workspace"))
        tokenizer = load(str(artifact.path))
        assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines


LANGUAGES = {
    "english": "The ferry left at half past nine; nobody waved. Was it the 14th already?",
    "norwegian": "Båten gikk klokka halv ti, og ingen vinket. Æsj, så kald sjøen er på våren!",
    "korean": "배는 아홉 시 반에 떠났다. 아무도 손을 흔들지 않았어요… 바다가 정말 차갑네!",
}


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "wordpiece"},
        {"algorithm": "wordpiece", "lowercase": True},
        {"algorithm": "sentencepiece_unigram"},
        {"algorithm": "sentencepiece_unigram", "lowercase": True},
        *(
            {"algorithm": "byte_level_bpe", "pre_tokenization": name, "vocab_size": 600}
            for name in PRE_TOKENIZATIONS
        ),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_transformers_gives_the_same_ids(tmp_path: Path, settings: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    numbered = [f"{line} {number}" for number in range(20) for line in LANGUAGES.values()]
    if "pre_tokenization" in settings:
        numbered += varied_texts() * 2
    (tmp_path / "a.txt").write_text("\n".join(numbered), "utf-8")
    config = config_of(tmp_path / "a.txt", **{"vocab_size": 220, **settings})
    artifact = train(config, Workspace(tmp_path / "workspace"))
    ours = load(str(artifact.path))
    theirs = transformers.AutoTokenizer.from_pretrained(artifact.path)
    assert isinstance(theirs, transformers.PreTrainedTokenizerFast)
    assert len(theirs) == ours.vocab_size == config.vocab_size
    for role in ("sep", "unk", "pad", "mask"):
        assert getattr(theirs, f"{role}_token_id") == getattr(ours, f"{role}_id")
    assert theirs.eos_token_id == ours.sep_id
    others = varied_texts() if "pre_tokenization" in settings else []
    for text in (*LANGUAGES.values(), "  two\n three  ", "", "a <extra_id_0> b [MASK].", *others):
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == ids.tolist()
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
        if text in LANGUAGES.values():
            assert ours.unk_id not in ids
