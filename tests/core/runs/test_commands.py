"""Tests that the displayed commands reproduce the settings of the form."""

import shlex
from pathlib import Path

import pytest

from core import CleanConfig, CorpusConfig, ShardConfig, TokenizerConfig, TrainConfig, Workspace
from core.__main__ import build_parser
from core.cli.fields import config_values
from core.cli.following import stop_line
from core.config.base import StageConfig
from core.runs.commands import python_lines, shell_line
from core.stages.registry import STAGES

CONFIGS = [
    ("tokenizer", TokenizerConfig()),
    (
        "tokenizer",
        TokenizerConfig(
            preset="flax",
            vocab_size=300,
            corpus=CorpusConfig(source="files", path='it\'s a "file".txt', limit=5),
        ),
    ),
    ("shards", ShardConfig(tokenizer="x", corpus=CorpusConfig(drop_overlapping_validation=False))),
    (
        "shards",
        ShardConfig(corpus=CorpusConfig(source="docs", path="a.txt", dataset_name="me/words")),
    ),
    ("tokenizer", TokenizerConfig(corpus=CorpusConfig(source="hub"))),
    ("shards", ShardConfig(corpus=CorpusConfig(corpus_name="C"))),
    (
        "clean",
        CleanConfig(
            corpus=CorpusConfig(path="a.txt"),
            gopher=True,
            gopher_min_words=None,
            workers=2,
            exact_duplicates=False,
            gopher_stop_words="er og",
            against="a, b",
        ),
    ),
    ("tokenizer", TokenizerConfig(corpus=CorpusConfig(dataset_name="me/words"))),
    ("shards", ShardConfig(corpus=CorpusConfig(dataset_name="me/words", dataset_config="de"))),
    (
        "train",
        TrainConfig(preset="flax", warmup_steps=None, evaluate_only=True, model_config_path="c"),
    ),
    ("train", TrainConfig(shards="s", learning_rate=2e-3, num_train_steps=10)),
    ("train", TrainConfig(preset="flax", intra_document_masking=None)),
]


def test_stop_command_names_a_workspace_other_than_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_HOME", str(tmp_path / "home"))
    assert stop_line(Workspace(), "run") == "python -m core runs stop run"
    words = shlex.split(stop_line(Workspace(tmp_path / "else where"), "run"))
    options = build_parser().parse_args(words[3:])
    assert (options.run, options.workspace) == ("run", str(tmp_path / "else where"))


@pytest.mark.parametrize(("stage", "config"), CONFIGS)
def test_shell_command_gives_the_same_config(stage: str, config: StageConfig) -> None:
    words = shlex.split(shell_line(stage, config))
    assert words[:3] == ["python", "-m", "core"]
    options = build_parser().parse_args(words[3:])
    model = STAGES[stage].config
    assert model.parse(config_values(options, model)) == config


def test_text_flags_override_the_source_of_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(TokenizerConfig(corpus=CorpusConfig(limit=5)).model_dump_json())
    for flags, expected in (
        (["--path", "a.txt"], ("files", "a.txt", 5)),
        (["--dataset-name", "me/words"], ("hub", "", 5)),
        (["--limit", "6"], ("docs", "", 6)),
    ):
        options = build_parser().parse_args(["tokenizer", "--config", str(file), *flags])
        corpus = TokenizerConfig.parse(config_values(options, TokenizerConfig)).corpus
        assert (corpus.source, corpus.path, corpus.limit) == expected, flags


def test_dataset_flag_drops_the_dataset_configuration_of_a_config_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(TokenizerConfig(corpus=CorpusConfig(source="hub")).model_dump_json())
    for flags, expected in (
        ([], "wikitext-103-raw-v1"),
        (["--dataset-name", "me/words"], ""),
        (["--dataset-name", "me/words", "--dataset-config", "de"], "de"),
        (["--dataset-config", "wikitext-2-raw-v1"], "wikitext-2-raw-v1"),
    ):
        options = build_parser().parse_args(["tokenizer", "--config", str(file), *flags])
        corpus = TokenizerConfig.parse(config_values(options, TokenizerConfig)).corpus
        assert corpus.dataset_config == expected, flags
    named = CorpusConfig(dataset_name="me/words", dataset_config="de")
    file.write_text(TokenizerConfig(corpus=named).model_dump_json())
    for flags, expected in ((["--dataset-name", "me/words"], "de"), (["--limit", "3"], "de")):
        options = build_parser().parse_args(["tokenizer", "--config", str(file), *flags])
        corpus = TokenizerConfig.parse(config_values(options, TokenizerConfig)).corpus
        assert corpus.dataset_config == expected, flags


def test_flag_overrides_a_conflicting_value_of_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(TrainConfig(preset="flax", num_train_steps=50).model_dump_json())
    for flags, expected in (
        ([], (1000, 50)),
        (["--warmup-ratio", "0.2"], (None, 50)),
        (["--num-train-epochs", "2"], (1000, None)),
        (["--warmup-ratio", "0.2", "--warmup-steps", "7"], (7, 50)),
    ):
        options = build_parser().parse_args(["train", "--config", str(file), *flags])
        config = TrainConfig.parse(config_values(options, TrainConfig))
        assert (config.warmup_steps, config.num_train_steps) == expected, flags


@pytest.mark.parametrize(("stage", "config"), CONFIGS)
def test_python_code_gives_the_same_config(stage: str, config: StageConfig) -> None:
    lines = python_lines(stage, config, "some where").splitlines()
    calls: list[tuple[object, ...]] = []
    names: dict[str, object] = {}
    exec(lines[0], names)
    function = lines[2].split("= ", 1)[1].split("(")[0]
    names[function] = lambda *arguments: calls.append(arguments)
    exec(lines[2], names)
    assert calls[0][0] == config
    assert repr(calls[0][1]) == repr(Workspace("some where"))
