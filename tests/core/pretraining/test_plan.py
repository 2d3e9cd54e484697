"""Tests the plan of pretraining: what follows from a text, and what speaks against it."""

from __future__ import annotations

import itertools
import random
import textwrap
from pathlib import Path

import pytest

from core.config.corpus import CorpusConfig
from core.config.named_source import NamedSource
from core.config.pretrain import PretrainConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.families import families_of_objective
from core.pretraining import PretrainPlan, plan_pretraining, readable
from core.pretraining.explain import explain_automatic
from core.pretraining.plan import few_steps
from core.pretraining.reading import why_paragraphs
from core.pretraining.start import config_of
from core.records.events import Reporter
from core.shards.build import build
from core.training.inputs import open_inputs
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs

_WORDS = (
    "the old house by sea sleeps while a small captain reads letters in winter and night".split()
)


class Recording(Reporter):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str, **fields: object) -> None:
        self.warnings.append(message)


def write_text(path: Path, documents: int) -> str:
    generator = random.Random(0)
    lines = [" ".join(generator.choices(_WORDS, k=14)) + "." for _ in range(documents)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def test_a_text_gets_settings_with_reasons_and_no_warning(
    workspace: Workspace, tmp_path: Path
) -> None:
    plan = plan_pretraining(config_of(write_text(tmp_path / "text.txt", 4000)), workspace)
    assert plan.warnings == ()
    assert plan.num_train_steps >= 200 and plan.seconds > 0
    values = {one.field: one.value for one in plan.settings}
    assert values["vocab_size"] < 2_500 and values["max_seq_length"] == 64
    assert values["per_replica_batch_size"] <= 32
    assert all(one.reason for one in plan.settings)
    assert plan.look.language == "English" and plan.look.words == 4000 * 14


def test_files_of_any_encoding_and_width_are_read_without_a_setting(
    workspace: Workspace, tmp_path: Path
) -> None:
    book = tmp_path / "book.asc"
    words = "le garçon a été très élégant et déjà là, où il s'ennuyait sans père ni mère".split()
    chosen = random.Random(1).choices(words, k=6000)
    book.write_bytes(textwrap.fill(" ".join(chosen), 70).encode("cp1252"))
    plan = plan_pretraining(config_of(str(book)), workspace)
    assert any("CP1252" in remark for remark in plan.look.remarks)
    assert {one.field: one.value for one in plan.settings}["text_unit"] == "paragraph"
    reading, _ = readable(config_of(str(book)).corpus, workspace)
    assert (reading.encoding, reading.text_unit) == ("auto", "paragraph")
    # What is set stays.
    own = {"source": "files", "path": str(book), "encoding": "cp1252", "text_unit": "line"}
    given, _ = readable(CorpusConfig.parse(own), workspace)
    assert (given.encoding, given.text_unit) == ("cp1252", "line")
    several = NamedSource(name="web", path=str(book))
    named, _ = readable(CorpusConfig(sources=(several,)), workspace)
    [source] = named.sources
    assert source.encoding == "auto"


def test_text_without_spaces_is_counted_in_letters(workspace: Workspace, tmp_path: Path) -> None:
    verses = tmp_path / "verses.txt"
    verses.write_text(
        "\n".join("白雲高卷嶂烟收滿目江山四望幽"[number % 9 :] for number in range(4000))
    )
    look = plan_pretraining(config_of(str(verses)), workspace).look
    assert look.words is None and look.amount == (look.letters, "letters")


def test_unread_text_that_outweighs_the_data_is_named(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    (folder / "src").mkdir(parents=True)
    write_text(folder / "notes.txt", 200)
    for name, documents in (("main.c", 2500), ("memory.c", 1500)):
        write_text(folder / "src" / name, documents)
    (folder / "picture.png").write_bytes(bytes(1 << 16))
    plan = plan_pretraining(config_of(str(folder)), workspace)
    assert any("src/main.c" in remark and "**/*.c" in remark for remark in plan.look.remarks)
    program = plan_pretraining(config_of(f"{folder}/**/*.c"), workspace).look
    assert program.words == 4000 * 14 and not program.remarks


@pytest.mark.parametrize(
    ("lines", "blanks", "reason"),
    [
        (textwrap.wrap("a ship sails to the far island and " * 200, 72), 0, "end at a width"),
        ([f"hey {'what ' * (number % 13)}are you doing" for number in range(300)], 0, ""),
        ([f"[{number}] notice: worker init ok state {number % 7}" for number in range(300)], 1, ""),
        (["the", "ship", "sails", "."] * 100, 0, "a line is a word"),
        ([f"DET the {number % 50}" for number in range(300)], 12, "a line is a word"),
        ([f"Anna{number}" for number in range(300)], 0, ""),
        ([f"滿目江山四望幽，白雲高卷嶂烟收{number}。" for number in range(100)], 25, ""),
        (["def run(self):", "    self.ship.sail()", "    return to port"] * 100, 100, "about 3"),
        ([f"Document {number} is a line" for number in range(300)], 299, ""),
        (["다음 날 아침에 그는 바다로 갔다. 배는 섬으로 갔다."] * 100, 0, ""),
    ],
)
def test_lines_that_are_parts_of_documents_are_recognised(
    lines: list[str], blanks: int, reason: str
) -> None:
    found = why_paragraphs(lines, blanks)
    assert reason in found and bool(found) == bool(reason)


def test_more_minutes_never_let_a_model_of_the_same_size_read_less(
    workspace: Workspace, tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.txt", 4000)
    short, *longer = [
        plan_pretraining(config_of(text, minutes=minutes), workspace)
        for minutes in (0.2, 2.0, 20.0)
    ]
    assert sequences_of(longer[0]) > sequences_of(short)
    for before, after in itertools.pairwise([short, *longer]):
        # Batches of twice the size leave half the steps, and those of a last, smaller batch.
        assert after.size != before.size or sequences_of(after) > 0.95 * sequences_of(before)


def test_small_part_of_a_large_text_is_planned_by_its_steps(
    workspace: Workspace, tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.txt", 40_000)
    plan = plan_pretraining(config_of(text, minutes=0.01), workspace)
    short = plan_pretraining(config_of(text, minutes=0.005), workspace)
    epochs = [one.value for one in plan.settings if one.field == "num_train_epochs"]
    assert 0 < epochs[0] < 0.1
    assert short.num_train_steps < 0.7 * plan.num_train_steps


def sequences_of(plan: PretrainPlan) -> int:
    batches = [one.value for one in plan.settings if one.field == "per_replica_batch_size"]
    return int(plan.num_train_steps * batches[0])


def test_too_small_and_random_texts_are_said_before_the_start(
    workspace: Workspace, tmp_path: Path
) -> None:
    small = plan_pretraining(config_of(write_text(tmp_path / "small.txt", 40)), workspace)
    assert "too small" in small.warnings[0].sentence
    few = few_steps(20, {"minutes": 15.0})
    assert few.with_flags().endswith("200 are the least. What helps: --minutes 15")
    replies = tmp_path / "replies.jsonl"
    replies.write_text('{"text": "ok then"}\n{"text": "no"}\n' * 10_000)
    repeated = plan_pretraining(config_of(str(replies)), workspace)
    assert "too small" in repeated.warnings[0].sentence
    assert all(one.field != "text_unit" for one in repeated.settings)
    letters = random.Random(0).choices("acgt", k=300_000)
    noise = tmp_path / "noise.txt"
    noise.write_text("\n".join("".join(letters[at : at + 100]) for at in range(0, 300_000, 100)))
    noisy = plan_pretraining(config_of(str(noise)), workspace)
    assert any("random" in one.sentence for one in noisy.warnings)
    assert noisy.look.language == ""


def test_text_in_another_encoding_is_said_to_teach_nothing(
    workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("日本語の文章です\n".encode("cp932") * 5000)
    corpus = {"path": str(path), "encoding": "utf-8", "encoding_errors": "replace"}
    plan = plan_pretraining(PretrainConfig.parse({"corpus": corpus}), workspace)
    assert not plan.is_learnable and "--encoding" in plan.warnings[0].with_flags()
    right = {"path": str(path), "encoding": "cp932"}
    assert plan_pretraining(PretrainConfig.parse({"corpus": right}), workspace).is_learnable


def test_a_vocabulary_too_large_for_the_text_is_warned_of(
    workspace: Workspace, tmp_path: Path
) -> None:
    corpus = CorpusConfig(source="files", path=write_text(tmp_path / "text.txt", 4000))
    found = explain_automatic("tokenizer", TokenizerConfig(corpus=corpus), workspace)
    assert {one.field for one in found.settings} >= {"vocab_size"} and not found.warnings
    large = TokenizerConfig(corpus=corpus, vocab_size=30_000)
    [warning] = explain_automatic("tokenizer", large, workspace).warnings
    assert warning.changes == {"vocab_size": None}
    unfit = TokenizerConfig(corpus=corpus, family="gpt2", algorithm="wordpiece")
    [warning] = explain_automatic("tokenizer", unfit, workspace).warnings
    assert "llama.cpp" in warning.sentence
    assert warning.changes == {"algorithm": "byte_level_bpe"}
    shards = explain_automatic("shards", ShardConfig(corpus=corpus), workspace)
    assert [one.value for one in shards.settings if one.field == "max_seq_length"] == [64]


def test_few_steps_are_warned_of_with_the_change_that_helps(tmp_path: Path) -> None:
    workspace = make_inputs(tmp_path)
    short = TrainConfig(shards="rows", num_train_steps=20)
    warnings = explain_automatic("train", short, workspace).warnings
    [few] = [one for one in warnings if "20 training steps" in one.sentence]
    assert few.changes == {"num_train_steps": None}
    automatic = TrainConfig(shards="rows", num_train_steps=None)
    found = explain_automatic("train", automatic, workspace)
    assert not [one for one in found.warnings if "training steps" in one.sentence]
    values = {one.field: one.value for one in found.settings}
    assert values["num_train_epochs"] > 1
    # Made here, for its shards: a decoder with another tokenizer than llama.cpp's.
    decoder = explain_automatic("train", TrainConfig(shards="rows", family="gpt2"), workspace)
    [misfit] = [warning.sentence for warning in decoder.warnings if "GGUF" in warning.sentence]
    assert "not Unigram" in misfit and "--algorithm byte_level_bpe" in misfit
    reporter = Recording()
    open_inputs(TrainConfig(shards="rows", family="gpt2"), workspace, reporter)
    assert reporter.warnings == [f"{misfit}."]


def test_encoder_on_shards_for_decoders_is_warned_of(tmp_path: Path) -> None:
    workspace = make_inputs(tmp_path)
    text = CorpusConfig(source="files", path=str(tmp_path / "text.txt"))
    shards = ShardConfig(
        name="written", preset="custom", corpus=text, tokenizer="words", objective="clm",
        max_seq_length=16,
    )  # fmt: skip
    build(shards, workspace, Reporter())
    decoder = families_of_objective("clm")[0]
    for family, count in (("roberta", 1), ("gpt2", 0)):
        config = TrainConfig(shards="written", family=family, num_train_steps=300)
        warnings = explain_automatic("train", config, workspace).warnings
        others = [one for one in warnings if "writes no text" in one.sentence]
        assert [one.changes for one in others] == [{"family": decoder}] * count
    usual = TrainConfig(shards="rows", family="gpt2", num_train_steps=300)
    warnings = explain_automatic("train", usual, workspace).warnings
    assert not any("writes no text" in one.sentence for one in warnings)
