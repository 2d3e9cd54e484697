"""Fingerprints of configs identify stored artifacts, so they never change."""

from typing import Any

import pytest

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.preflight import PreflightConfig
from core.config.push import PushConfig
from core.config.quickstart import QuickstartConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig

FILES = {"source": "files", "path": "data/*.txt", "text_unit": "paragraph", "limit": 100}
_EARLIER_TRAINING = {"size": "mini", "intra_document_masking": False}
_EARLIER_FAST = {
    "per_replica_batch_size": 32,
    "num_train_epochs": 1.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "weight_decay": 0.01,
}
# Config model, values, and their fingerprint in earlier versions.
KNOWN: list[tuple[type[StageConfig], dict[str, Any], str]] = [
    (CorpusConfig, {}, "829daf32f53bb460"),
    (CorpusConfig, FILES, "4f56e1b64456010b"),
    (CorpusConfig, {"dataset_name": "owner/texts", "validation_split": "test"}, "be1ac8a11b78b184"),
    (TokenizerConfig, {}, "d88a982aa1d01262"),
    (TokenizerConfig, {"name": "words", "family": "gpt2"}, "cc4b93431ca63e4e"),
    (TokenizerConfig, {"preset": "flax", "family": "bert", "lowercase": True}, "10db443b7ffe86d6"),
    (
        TokenizerConfig,
        {"corpus": FILES, "vocab_size": 4096, "preset": "custom"},
        "fd4186515aca8b3e",
    ),
    (ShardConfig, {}, "ac89add36ec48c53"),
    (ShardConfig, {"name": "rows", "output_dir": "/data/rows"}, "ac89add36ec48c53"),
    (
        ShardConfig,
        {"preset": "flax", "objective": "span_corruption", "tokenizer": "t5"},
        "6b888e99bb8f5e2d",
    ),
    (ShardConfig, {"corpus": FILES, "max_seq_length": 64, "split": "train"}, "264403b1447635a4"),
    (TrainConfig, {}, "325aa4bc3d22e2ad"),
    (TrainConfig, {"preset": "classic", "shards": "rows", "size": "tiny"}, "23532532dcbe8e6d"),
    (
        TrainConfig,
        {"preset": "flax", "family": "t5", "warmup_ratio": 0.1, "seed": 7},
        "93d2bc756e0bfa8e",
    ),
    (
        TrainConfig,
        {
            "name": "mine",
            "output": "/models/mine",
            "save_steps": 10,
            "eval_steps": 20,
            "eval_on_start": True,
            "logging_steps": 5,
            "save_total_limit": 4,
            "engine": "jax",
            "device": "cpu",
            "damaged_records": "skip",
            "gradient_accumulation_steps": 2,
            "steps_per_execution": 4,
            "remat": True,
            "sharding": "fsdp",
            "num_devices": 8,
            "tpu_name": "pod",
            "tpu_zone": "us-east1-d",
            "gcp_project": "mine",
            "coordinator_address": "host:1234",
            "num_processes": 2,
            "process_id": 1,
            "push_to_hub": True,
            "hub_model_id": "owner/mine",
            "hub_private_repo": False,
            "hub_every_saves": 3,
            "hub_license": "mit",
        },
        "325aa4bc3d22e2ad",
    ),
    (PreflightConfig, {}, "3393d6fe1875346c"),
    (
        PreflightConfig,
        {"topology": "v4-8", "num_devices": 4, "price_per_chip_hour": 1.5},
        "ba93be8c82390300",
    ),
    (PushConfig, {}, "f8cde134d3ff283a"),
    (PushConfig, {"model": "mine", "repo_id": "owner/mine", "private": False}, "1f906999398d99a6"),
    (QuickstartConfig, {}, "baebca2b08bdd496"),
    (
        QuickstartConfig,
        {"size": "mini", "num_train_steps": 20, "engine": "jax"},
        "df32ef32c83427c9",
    ),
]


@pytest.mark.parametrize(("model", "values", "fingerprint"), KNOWN)
def test_fingerprints_equal_those_of_earlier_versions(
    model: type[StageConfig], values: dict[str, Any], fingerprint: str
) -> None:
    assert model.parse(with_earlier_defaults(model, values)).fingerprint() == fingerprint


def with_earlier_defaults(model: type[StageConfig], values: dict[str, Any]) -> dict[str, Any]:
    """Adds the values of what is automatic by default since."""
    corpus = {"validation_percent": 5.0}
    if model is CorpusConfig:
        return {**corpus, **values}
    if model in (TokenizerConfig, ShardConfig):
        classic = {"preset": "classic", **values}
        return {**classic, "corpus": {**corpus, **values.get("corpus", {})}}
    if issubclass(model, TrainConfig):
        is_fast = "preset" not in values
        return {**_EARLIER_TRAINING, **(_EARLIER_FAST if is_fast else {}), **values}
    return values
