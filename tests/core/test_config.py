"""Configs: presets, errors, fingerprints."""

import json
from pathlib import Path

import pytest

from core.config import (
    STAGE_CONFIGS,
    CorpusConfig,
    ShardConfig,
    TokenizerConfig,
    TrainConfig,
    changed_values,
    load_config_file,
)
from core.errors import ConfigError


def test_a_preset_fills_what_nobody_set() -> None:
    config = TrainConfig(preset="flax")
    assert (config.learning_rate, config.adam_beta2, config.warmup_steps) == (3e-4, 0.98, 1000)


def test_what_is_set_wins_over_the_preset() -> None:
    assert TrainConfig(preset="flax", learning_rate=1e-3).learning_rate == 1e-3


def test_the_classic_preset_has_the_numbers_of_the_original_script() -> None:
    config = TrainConfig(preset="classic")
    assert config.learning_rate == 1e-4
    assert config.weight_decay == 1e-3
    assert config.warmup_ratio == 0.05
    assert config.per_replica_batch_size == 8
    assert TokenizerConfig(preset="classic").vocab_size == 10_048
    assert ShardConfig(preset="classic").max_seq_length == 512


@pytest.mark.parametrize("model", STAGE_CONFIGS.values())
def test_every_preset_names_fields_that_exist(model: type) -> None:
    for values in model.presets.values():
        assert set(values) <= set(model.model_fields)


@pytest.mark.parametrize("model", STAGE_CONFIGS.values())
def test_every_field_explains_itself(model: type) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(ConfigError, match="no field sizze"):
        TrainConfig(sizze="mini")


def test_a_value_out_of_bounds_says_expected_and_received() -> None:
    with pytest.raises(ConfigError) as caught:
        ShardConfig(max_seq_length=4)
    assert caught.value.field == "max_seq_length"
    assert "8" in caught.value.expected
    assert "4" in caught.value.received
    assert caught.value.exit_code == 2


def test_a_nested_field_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        TokenizerConfig.parse({"corpus": {"validation_percent": 80}})
    assert caught.value.field == "validation_percent"


def test_the_fingerprint_leaves_the_name_out_and_sees_the_rest() -> None:
    base = TokenizerConfig(name="a").fingerprint()
    assert TokenizerConfig(name="b").fingerprint() == base
    assert TokenizerConfig(name="a", vocab_size=500).fingerprint() != base


def test_changed_values_make_the_same_config_again() -> None:
    config = TokenizerConfig(
        preset="flax", vocab_size=300, corpus=CorpusConfig(source="files", path="a b.txt")
    )
    values = changed_values(config)
    assert values == {
        "preset": "flax",
        "vocab_size": 300,
        "corpus": {"source": "files", "path": "a b.txt"},
    }
    assert TokenizerConfig.parse(values) == config


def test_a_config_survives_json() -> None:
    config = TrainConfig(preset="flax", size="tiny", num_train_steps=7)
    assert TrainConfig.parse(json.loads(json.dumps(config.model_dump(mode="json")))) == config


@pytest.mark.parametrize("content", ["not json", "[1, 2]"])
def test_a_config_file_that_is_not_an_object_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_config_file(file)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json"):
        load_config_file(tmp_path / "nothing.json")
