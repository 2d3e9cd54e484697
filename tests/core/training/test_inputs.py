"""Checkpoints that a run may start from, and incompatible ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from core.__main__ import build_parser
from core.artifacts.finding import with_family
from core.cli.fields import stage_values
from core.config.preflight import PreflightConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.families.gpt2 import Gpt2Architecture
from core.models import hf
from core.tokenizer.loading import StudioTokenizer, load
from core.training.inputs import TrainingInputs, open_inputs, resolve_checkpoint
from core.workspace.manifests import Manifest, write_manifest
from core.workspace.workspace import Workspace
from tests.checkpoints import write_checkpoint, write_writer
from tests.core.training.test_trainer import make_inputs


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def twin_of(tokenizer: StudioTokenizer, folder: Path) -> StudioTokenizer:
    """A tokenizer of the same size with two tokens swapped."""
    tokenizer.copy_to(folder)
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    words = values["model"]["vocab"]
    words[-1], words[-2] = words[-2], words[-1]
    path.write_text(json.dumps(values), "utf-8")
    return StudioTokenizer(folder)


def say(checkpoint: Path, tokenizer: str) -> None:
    """Writes a manifest that names the tokenizer of a checkpoint."""
    inputs = {"shards": "", "tokenizer": tokenizer}
    write_manifest(checkpoint, Manifest("model", checkpoint.name, "", inputs=inputs))


def opened(workspace: Workspace, checkpoint: Path, **values: object) -> TrainingInputs:
    config = {"preset": "custom", "shards": "rows", "checkpoint": str(checkpoint), **values}
    return open_inputs(TrainConfig(**config), workspace)


@pytest.mark.parametrize("evaluate_only", [False, True])
def test_checkpoint_trained_with_another_tokenizer_is_refused(
    workspace: Workspace, tmp_path: Path, evaluate_only: bool
) -> None:
    tokenizer = load("words", workspace)
    twin = twin_of(tokenizer, tmp_path / "twin")
    assert twin.vocab_size == tokenizer.vocab_size
    checkpoint = write_checkpoint(tmp_path / "model", twin)
    say(checkpoint, twin.fingerprint)
    with pytest.raises(ConfigError, match="trained with another tokenizer") as raised:
        opened(workspace, checkpoint, evaluate_only=evaluate_only)
    assert raised.value.field == "checkpoint"
    assert tokenizer.fingerprint in raised.value.expected
    assert twin.fingerprint in raised.value.received


def test_checkpoint_trained_with_the_same_tokenizer_is_accepted(
    workspace: Workspace, tmp_path: Path
) -> None:
    """The fingerprint may differ, as that of a decoder's copy, or be unknown."""
    tokenizer = load("words", workspace)
    checkpoint = write_checkpoint(tmp_path / "model", tokenizer)
    assert opened(workspace, checkpoint).checkpoint == checkpoint
    for fingerprint in (tokenizer.fingerprint, "of the decoder's copy", ""):
        say(checkpoint, fingerprint)
        assert opened(workspace, checkpoint).checkpoint == checkpoint
    unknown = write_checkpoint(tmp_path / "unknown", tokenizer)
    for content in ("{}", '{"start_url": "/"}', None):
        (unknown / "manifest.json").unlink(missing_ok=True)
        if content is not None:
            (unknown / "manifest.json").write_text(content)
        assert opened(workspace, unknown).checkpoint == unknown


def piece_of(text: str) -> bytes:
    """Returns a piece of a SentencePiece model, with a score and a type."""
    inner = b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x15\0\0\0\0\x18\x01"
    return b"\x0a" + bytes([len(inner)]) + inner


def write_older_files(folder: Path, kind: str, tokens: dict[int, str]) -> None:
    """Replaces a checkpoint's tokenizer by a file of an older format."""
    for path in folder.glob("tokenizer*.json"):
        path.unlink()
    listed = [tokens[number] for number in sorted(tokens)]
    if kind == "vocab.txt":
        (folder / kind).write_text("".join(f"{token}\n" for token in listed), "utf-8")
    elif kind == "vocab.json":
        ids = {token: number for number, token in tokens.items()}
        (folder / kind).write_text(json.dumps(ids), "utf-8")
    elif kind == "sentencepiece.bpe.model":  # XLM-RoBERTa's ids are one higher.
        listed = ["<unk>", "<s>", "</s>", *listed[4:]]
        (folder / kind).write_bytes(b"".join(map(piece_of, listed)))
    else:
        (folder / kind).write_bytes(b"".join(map(piece_of, listed)))


@pytest.mark.parametrize(
    "kind", ["tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model"]
)
def test_tokens_beside_a_checkpoint_of_other_programs_must_be_the_shards(
    workspace: Workspace, tmp_path: Path, kind: str
) -> None:
    tokenizer = load("words", workspace)
    twin = twin_of(tokenizer, tmp_path / "twin")
    own, other = (
        write_checkpoint(tmp_path / name, one)
        for name, one in (("own", tokenizer), ("other", twin))
    )
    if kind != "tokenizer.json":
        write_older_files(own, kind, tokenizer.tokens)
        write_older_files(other, kind, twin.tokens)
    assert opened(workspace, own).checkpoint == own
    with pytest.raises(ConfigError, match="trained with another tokenizer") as raised:
        opened(workspace, other)
    assert "2 of the shards' tokens" in raised.value.received


def test_relative_folder_is_recorded_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports" / "mini").mkdir(parents=True)
    workspace = Workspace(tmp_path / "workspace")
    for named, written in (
        ("exports/mini", str(tmp_path / "exports" / "mini")),
        ("they/words", "they/words"),
        ("", ""),
    ):
        config = TrainConfig(shards="rows", checkpoint=named)
        assert resolve_checkpoint(config, workspace).checkpoint == written


def test_gpt2_continues_with_a_tokenizer_without_padding(
    workspace: Workspace, tmp_path: Path
) -> None:
    shards = tmp_path / "shards"
    shutil.copytree(workspace.folder("shards") / "rows", shards)
    (shards / "manifest.json").unlink()
    for path in (shards / "tokenizer").glob("*.json"):
        text = path.read_text("utf-8").replace("<pad>", "<fill>")
        path.write_text(text.replace("pad_token", "fill_token"), "utf-8")
    tokenizer = StudioTokenizer(shards / "tokenizer")
    assert tokenizer.pad_id is None and tokenizer.sep_id
    checkpoint = write_writer(tmp_path / "model", tokenizer, "gpt2")
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    (checkpoint / "config.json").write_text(json.dumps({**config, "pad_token_id": None}), "utf-8")
    inputs = opened(workspace, checkpoint, shards=str(shards), family="gpt2")
    assert inputs.architecture.pad_token_id == tokenizer.sep_id


def test_decoder_takes_the_padding_of_the_tokenizer(workspace: Workspace, tmp_path: Path) -> None:
    """Published decoders name none, and never attend to it."""
    tokenizer = load("words", workspace)
    checkpoint = write_writer(tmp_path / "llama", tokenizer, "llama")
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    (checkpoint / "config.json").write_text(json.dumps({**config, "pad_token_id": None}), "utf-8")
    inputs = opened(workspace, checkpoint, family="llama")
    assert inputs.architecture.pad_token_id == tokenizer.pad_id != tokenizer.sep_id


def test_model_of_another_family_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    """The family may be a default; runs that started this way may resume."""
    gpt2 = write_writer(tmp_path / "gpt2", load("words", workspace), "gpt2")
    for name in ("checkpoint", "model_config_path"):
        values = {"preset": "custom", "shards": "rows", name: str(gpt2)}
        for given in ({}, {"family": "bert"}):
            with pytest.raises(ConfigError, match="belongs to another family") as raised:
                open_inputs(TrainConfig(**values, **given), workspace)
            assert raised.value.field == "family"
            assert raised.value.fix.startswith("set family to gpt2")
        resumed = open_inputs(TrainConfig(**values), workspace, resumed=True)
        assert resumed.architecture.model_type == "gpt2"


def test_resumed_run_does_not_need_its_initial_checkpoint(
    workspace: Workspace, tmp_path: Path
) -> None:
    tokenizer = load("words", workspace)
    saved = write_checkpoint(tmp_path / "saved", tokenizer)
    config = TrainConfig(preset="custom", shards="rows", checkpoint="deleted")
    with pytest.raises(ConfigError, match="The model 'deleted' was not found"):
        open_inputs(config, workspace, resumed=True)
    inputs = open_inputs(config, workspace, resumed=True, own=saved)
    assert inputs.checkpoint == saved
    assert inputs.architecture == opened(workspace, saved).architecture


def test_dimensions_that_contradict_a_checkpoint_are_refused(
    workspace: Workspace, tmp_path: Path
) -> None:
    tokenizer = load("words", workspace)
    checkpoint = write_checkpoint(tmp_path / "mini", tokenizer)
    found = hf.read_architecture(checkpoint)
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"):
        own = getattr(found, name)
        opened(workspace, checkpoint, **{name: own})
        with pytest.raises(ConfigError, match="contradicts the checkpoint") as raised:
            opened(workspace, checkpoint, **{name: own + 1})
        assert raised.value.field == name
        assert str(own) in raised.value.expected
    with pytest.raises(ConfigError, match="contradicts the checkpoint"):
        opened(workspace, checkpoint, model_config_path=str(checkpoint))


def test_unset_family_follows_from_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "studio")
    cached = tmp_path / "models--me--cached"
    folders = workspace.folder("model") / "mine", cached / "snapshots" / "1"
    for folder in folders:
        folder.mkdir(parents=True)
        hf.write_config(folder, Gpt2Architecture(64, 16, 1, 2, 32, 18, 1))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    path = str(folders[0] / "config.json")
    for values, family in (
        ({"checkpoint": "mine"}, "gpt2"),
        ({"checkpoint": str(folders[0])}, "gpt2"),
        ({"checkpoint": "me/cached"}, "gpt2"),
        ({"model_config_path": path}, "gpt2"),
        ({"checkpoint": "mine", "family": "bert"}, "bert"),
        ({"checkpoint": "nowhere", "model_config_path": path}, "roberta"),
        ({"model_config_path": str(tmp_path)}, "roberta"),
        ({}, "roberta"),
    ):
        assert TrainConfig(**with_family(values, workspace)).family == family, values
    # A queued run may name a folder that does not exist yet; the Hub is not contacted.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for words in (
        ["train", "--after", "run", "--checkpoint", "exports/best"],
        ["preflight", "--vocab-size", "64", "--checkpoint", "exports/best"],
    ):
        options = build_parser().parse_args([*words, "--workspace", str(workspace.root)])
        model = TrainConfig if words[0] == "train" else PreflightConfig
        assert "family" not in stage_values(options, model), words
    words = ["preflight", "--preset", "flax", "--model-config", path]
    options = build_parser().parse_args([*words, "--workspace", str(workspace.root)])
    config = PreflightConfig.parse(stage_values(options, PreflightConfig))
    assert (config.family, config.learning_rate) == ("gpt2", 5e-3)
