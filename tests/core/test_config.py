"""Configs: presets, errors, fingerprints."""

import json
import math
import os
import re
import threading
from pathlib import Path

import pytest

from core.config.corpus import CorpusConfig
from core.config.options import choices_of, help_of
from core.config.presets import write_up_of
from core.config.push import PushConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.config.values import changed_values, load_config_file
from core.errors import ConfigError
from core.stages.registry import STAGES


def test_preset_fills_in_unset_fields() -> None:
    config = TrainConfig(preset="flax")
    assert (config.learning_rate, config.adam_beta2, config.warmup_steps) == (3e-4, 0.98, 1000)


def test_set_value_overrides_the_preset() -> None:
    assert TrainConfig(preset="flax", learning_rate=1e-3).learning_rate == 1e-3


def test_warmup_ratio_overrides_the_warmup_steps_of_the_preset() -> None:
    config = TrainConfig(preset="flax", warmup_ratio=0.1)
    assert (config.warmup_steps, config.warmup_ratio) == (None, 0.1)
    both = TrainConfig(preset="flax", warmup_ratio=0.1, warmup_steps=1000)
    assert both.warmup_steps == 1000
    for one in (config, both):
        assert TrainConfig.parse(changed_values(one)) == one


def test_classic_preset_has_the_values_of_the_original_script() -> None:
    config = TrainConfig(preset="classic")
    assert config.learning_rate == 1e-4
    assert config.weight_decay == 1e-3
    assert config.warmup_ratio == 0.05
    assert config.per_replica_batch_size == 8
    assert TokenizerConfig(preset="classic").vocab_size == 10_048
    assert ShardConfig(preset="classic").max_seq_length == 512


@pytest.mark.parametrize("model", [stage.config for stage in STAGES.values()])
def test_every_preset_names_existing_fields(model: type) -> None:
    assert set(model.preset_fields()) <= set(model.model_fields)
    for preset in model.presets:
        variants = choices_of(model.model_fields[model.variant])
        assert set(model.presets[preset].variants) <= set(variants)
        for variant in variants:
            model(**{"preset": preset, model.variant: variant})


def numbers_of(command: str) -> dict[str, float]:
    """The numbers of an original command, by flag."""
    return {name: float(value) for name, value in re.findall(r"--(\w+)=([\d.e-]+)", command)}


@pytest.mark.parametrize("family", ["roberta", "bert", "gpt2", "t5", "bart"])
def test_flax_preset_has_the_values_of_the_familys_write_up(family: str) -> None:
    write_up = write_up_of("flax", family)
    config = TrainConfig(preset="flax", family=family)
    assert write_up is not None
    said = numbers_of(write_up.command)
    ours = {
        "per_device_train_batch_size": config.per_replica_batch_size,
        "learning_rate": config.learning_rate,
        "warmup_steps": config.warmup_steps,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "num_train_epochs": config.num_train_epochs,
        "weight_decay": config.weight_decay,
    }
    # Options that the command omits have the script's defaults.
    defaults = {"adam_beta2": 0.999, "num_train_epochs": 3, "weight_decay": 0}
    if family == "t5":
        assert said.pop("weight_decay") == 0.001  # The script applies it with AdamW only.
    assert ours == {"adam_beta1": 0.9, **defaults, **{n: said[n] for n in ours if n in said}}
    assert (config.optimizer == "adafactor") == ("--adafactor" in write_up.command)
    objective = {"gpt2": "clm", "t5": "span_corruption", "bart": "denoising"}.get(family, "mlm")
    rows = ShardConfig(preset="flax", objective=objective).max_seq_length
    assert rows == said.get("max_seq_length", said.get("block_size"))


def test_flax_preset_trains_each_familys_tokenizer() -> None:
    def of(family: str) -> tuple[str, int]:
        config = TokenizerConfig(preset="flax", family=family)
        return config.algorithm, config.vocab_size

    assert of("roberta") == of("bart") == ("byte_level_bpe", 50_265)
    assert of("gpt2") == ("byte_level_bpe", 50_257)
    assert of("t5") == ("sentencepiece_unigram", 32_000 + 100)
    assert of("bert") == ("wordpiece", 30_522)


@pytest.mark.parametrize("preset", ["classic", "flax"])
def test_families_published_without_dropout_have_none(preset: str) -> None:
    for family in ("t5", "modernbert"):
        config = TrainConfig(preset=preset, family=family)
        assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0
    assert TrainConfig(preset="flax", family="gpt2").hidden_dropout_prob == 0
    assert TrainConfig(preset=preset, family="bart").hidden_dropout_prob == 0.1


def test_family_of_a_preset_does_not_change_the_tokenizer_fingerprint() -> None:
    values = {"algorithm": "byte_level_bpe", "vocab_size": 300}
    prints = {TokenizerConfig(family=f, **values).fingerprint() for f in ("roberta", "gpt2")}
    assert len(prints) == 1


def test_values_from_a_familys_preset_are_not_changes() -> None:
    config = TrainConfig(preset="flax", family="gpt2", learning_rate=1e-3)
    assert changed_values(config) == {"preset": "flax", "family": "gpt2", "learning_rate": 1e-3}
    assert TrainConfig.parse(changed_values(config)) == config


@pytest.mark.parametrize("model", [stage.config for stage in STAGES.values()])
def test_every_field_has_a_description(model: type) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name


def test_unknown_field_is_named() -> None:
    with pytest.raises(ConfigError, match="no field sizze"):
        TrainConfig(sizze="mini")


def test_out_of_range_value_reports_expected_and_received() -> None:
    with pytest.raises(ConfigError) as caught:
        ShardConfig(max_seq_length=4)
    assert caught.value.field == "max_seq_length"
    assert "8" in caught.value.expected
    assert "4" in caught.value.received
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("typed", ["10.000", "10.0", "1.000.000"])
def test_whole_number_with_a_dot_is_refused(typed: str) -> None:
    with pytest.raises(ConfigError, match="a whole number such as 10000") as caught:
        TokenizerConfig.parse({"corpus": {"limit": typed}})
    assert (caught.value.field, caught.value.received) == ("limit", repr(typed))
    assert TrainConfig.parse({"num_train_epochs": "10.000"}).num_train_epochs == 10


@pytest.mark.parametrize("number", [1 << 63, 10**400, -(1 << 64), 10**5000, "9" * 20], ids=type)
@pytest.mark.parametrize("name", ["num_train_steps", "seed"])
def test_whole_number_that_no_array_holds_is_refused(name: str, number: int | str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.parse({"shards": "rows", name: number})
    assert caught.value.field == name and len(caught.value.received) < 100


def test_nested_field_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        TokenizerConfig.parse({"corpus": {"validation_percent": 80}})
    assert caught.value.field == "validation_percent"


def test_fingerprint_depends_on_everything_but_the_name() -> None:
    base = TokenizerConfig(name="a").fingerprint()
    assert TokenizerConfig(name="b").fingerprint() == base
    assert TokenizerConfig(name="a", vocab_size=500).fingerprint() != base


def test_changed_values_restore_the_config() -> None:
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


def test_unset_source_follows_from_the_given_path_or_dataset() -> None:
    for values, source in (
        ({"path": "a.txt"}, "files"),
        ({"validation_path": "a.txt"}, "files"),
        ({"dataset_name": "me/words"}, "hub"),
        ({"corpus_name": "web"}, "corpus"),
        ({"path": "", "limit": 5}, "docs"),
        ({"source": "docs", "path": "a.txt", "dataset_name": "me/words"}, "docs"),
    ):
        assert CorpusConfig(**values).source == source, values
    assert TokenizerConfig.parse({"corpus": {"path": "a.txt"}}).corpus.source == "files"


def test_default_dataset_configuration_applies_only_to_the_default_dataset() -> None:
    for values, configuration in (
        ({"source": "hub"}, "wikitext-103-raw-v1"),
        ({"dataset_name": "Salesforce/wikitext"}, "wikitext-103-raw-v1"),
        ({"source": "hub", "dataset_config": "wikitext-2-raw-v1"}, "wikitext-2-raw-v1"),
        ({"dataset_name": "me/words"}, ""),
        ({"source": "hub", "dataset_name": "me/words", "dataset_config": ""}, ""),
        ({"dataset_name": "me/words", "dataset_config": "wikitext-103-raw-v1"},
         "wikitext-103-raw-v1"),
        ({"source": "docs"}, ""),
    ):  # fmt: skip
        config = TokenizerConfig(corpus=CorpusConfig.parse(values))
        assert config.corpus.dataset_config == configuration, values
        is_leftover = bool(configuration) and values.get("dataset_name") == "me/words"
        assert config.corpus.has_leftover_configuration == is_leftover
        assert TokenizerConfig.parse(json.loads(config.model_dump_json())) == config
        assert TokenizerConfig.parse(changed_values(config)) == config


@pytest.mark.parametrize(
    ("model", "field", "typed", "said"),
    [
        (PushConfig, "repo_id", "my model", "a name like my-model or owner/my-model"),
        (TrainConfig, "hub_model_id", "a/b/c", "a name like my-model or owner/my-model"),
        (PushConfig, "revision", "feature/x", "a name like trial-2"),
        (PushConfig, "revision", "a..b", "a name like trial-2"),
        (PushConfig, "language", "de;fr", "such as en, or de, fr"),
    ],
)
def test_pattern_mismatch_is_described_without_the_pattern(
    model: type, field: str, typed: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        model(**{field: typed})
    assert said in caught.value.expected and "^" not in str(caught.value)
    assert (caught.value.field, caught.value.received) == (field, repr(typed))


def test_every_pattern_has_a_description() -> None:
    patterned = 0
    for model in (CorpusConfig, *(stage.config for stage in STAGES.values())):
        for name, field in model.model_fields.items():
            if any(getattr(one, "pattern", None) for one in field.metadata):
                patterned += 1
                with pytest.raises(ConfigError) as caught:
                    model(**{name: "?!"})
                assert "^" not in caught.value.expected, name
    assert patterned >= 4


@pytest.mark.parametrize("branch", ["", "main", "v1.0", "trial-2", "a.b_c"])
def test_valid_branch_names_are_accepted(branch: str) -> None:
    assert PushConfig(revision=branch).revision == branch


@pytest.mark.parametrize("model", [TokenizerConfig, ShardConfig, TrainConfig])
def test_custom_preset_keeps_the_defaults_and_documents_it(model: type) -> None:
    plain = {name: model.model_fields[name].default for name in model.preset_fields()}
    config = model(preset="custom")
    assert {name: getattr(config, name) for name in plain} == plain
    assert "custom: default values" in help_of(model.model_fields["preset"])


def test_two_sources_are_refused_with_a_request_to_choose() -> None:
    with pytest.raises(ConfigError, match=r"path=a\.txt and dataset_name=me/words") as caught:
        ShardConfig.parse({"corpus": {"path": "a.txt", "dataset_name": "me/words"}})
    assert caught.value.field == "source"


def test_config_round_trips_through_json() -> None:
    config = TrainConfig(preset="flax", size="tiny", num_train_steps=7)
    assert TrainConfig.parse(json.loads(json.dumps(config.model_dump(mode="json")))) == config


@pytest.mark.parametrize("content", ["not json", "[1, 2]"])
def test_config_file_that_is_not_an_object_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_config_file(file)


def test_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json"):
        load_config_file(tmp_path / "nothing.json")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, "nan"])
def test_non_finite_number_is_refused(number: object) -> None:
    for values in ({"max_grad_norm": number}, {"num_train_epochs": number}):
        with pytest.raises(ConfigError, match="finite"):
            TrainConfig.parse(values)


def test_name_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ConfigError, match="UTF-8") as caught:
        TokenizerConfig.parse({"corpus": {"path": "caf\udce9.txt"}})
    assert caught.value.field == "path"
    str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000 + b"]" * 100_000, b'{"a": ' * 100_000, b"\xff\xfe{}", b'{"seed": NaN}', b"\0"],
    ids=["nested", "torn", "UTF-16", "not a number", "zero"],
)
def test_invalid_config_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="isn't JSON"):
        load_config_file(path)


def test_endless_config_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="more than"):
        load_config_file(tmp_path / "config.json")


def test_config_may_be_read_from_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b'{"seed": 7}',))
    writer.start()
    assert load_config_file(path) == {"seed": 7}
    writer.join()
