"""Resolves configs to architectures, without a backend."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.architecture.architecture import Architecture
from core.architecture.family import SIZES
from core.architecture.options import RotaryPositions
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.families import find_family, list_family_names
from core.families.bart import BartArchitecture
from core.families.modernbert import ModernBertArchitecture
from core.families.roberta import RobertaArchitecture
from core.models.configs import parse_config
from core.models.registry import (
    count_parameters,
    resolve_architecture,
    size_of,
)
from core.models.rotary import rotary_tables
from core.training.recipe import estimate_memory_bytes
from tests.engines import run_on

ROBERTA_BASE = {
    "model_type": "roberta",
    "vocab_size": 50265,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
    "hidden_dropout_prob": 0.2,
}


def resolve(row_length: int = 64, pad_id: int | None = 1, **settings: Any) -> Architecture:
    config = TrainConfig(**settings)
    return resolve_architecture(
        config, vocab_size=99, row_length=row_length, pad_id=pad_id, bos_id=0, eos_id=2
    )


def write_config(folder: Path, **values: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({**ROBERTA_BASE, **values}))
    return str(path)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_match_the_bert_miniatures(size: str) -> None:
    architecture = resolve(size=size)
    layers, width = SIZES[size]
    assert (architecture.num_hidden_layers, architecture.hidden_size) == (layers, width)
    assert architecture.head_size == 64
    assert architecture.intermediate_size == 4 * width


def test_position_ids_start_after_the_padding_token() -> None:
    architecture = resolve(row_length=128, pad_id=3)
    assert architecture.max_position_embeddings == 132
    assert architecture.max_seq_length == 128


def test_every_dimension_can_be_overridden() -> None:
    architecture = resolve(
        num_hidden_layers=3,
        hidden_size=192,
        num_attention_heads=2,
        intermediate_size=77,
        max_position_embeddings=100,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.3,
    )
    assert architecture == RobertaArchitecture(
        vocab_size=99,
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=77,
        max_position_embeddings=102,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.3,
    )


@pytest.mark.parametrize(("width", "heads"), [(32, 1), (192, 3), (200, 2), (100, 1), (512, 8)])
def test_number_of_heads_follows_from_the_hidden_size(width: int, heads: int) -> None:
    architecture = resolve(hidden_size=width)
    assert architecture.num_attention_heads == heads
    assert architecture.intermediate_size == 4 * width


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads=5") as caught:
        resolve(hidden_size=64, num_attention_heads=5)
    assert caught.value.field == "num_attention_heads"


def test_rotary_heads_have_an_even_size() -> None:
    found = resolve(family="modernbert", hidden_size=300)
    assert (found.num_attention_heads, found.head_size) == (3, 100)
    for settings, fix in (
        ({"hidden_size": 300, "num_attention_heads": 4}, "set num_attention_heads to 3"),
        ({"hidden_size": 99}, "set hidden_size to an even number"),
    ):
        with pytest.raises(ConfigError, match="even head size") as caught:
            resolve(family="modernbert", **settings)
        assert caught.value.field == "num_attention_heads"
        assert caught.value.fix.startswith(fix)


def test_sequences_longer_than_the_position_embeddings_are_refused() -> None:
    with pytest.raises(ConfigError, match="longer than max_position_embeddings allows") as caught:
        resolve(row_length=128, max_position_embeddings=100)
    assert "at most 100" in str(caught.value)


def test_tokenizer_without_a_padding_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="no padding token"):
        resolve(pad_id=None)


def test_config_file_sets_the_dimensions_but_not_the_vocabulary(tmp_path: Path) -> None:
    path = write_config(tmp_path, num_hidden_layers=7)
    architecture = resolve(row_length=512, pad_id=3, model_config_path=path, hidden_size=384)
    assert architecture.num_hidden_layers == 7
    assert (architecture.hidden_size, architecture.num_attention_heads) == (384, 6)
    assert (architecture.vocab_size, architecture.pad_token_id) == (99, 3)
    assert architecture.max_seq_length == 512
    assert architecture.hidden_dropout_prob == 0.0


def test_published_preset_uses_the_dropout_of_a_config_file(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert resolve(model_config_path=path, preset="classic").hidden_dropout_prob == 0.2


def test_folder_is_accepted_in_place_of_its_config_file(tmp_path: Path) -> None:
    write_config(tmp_path)
    assert resolve(model_config_path=str(tmp_path)).hidden_size == 768


def test_explicit_dropout_overrides_the_config_file(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert resolve(model_config_path=path, hidden_dropout_prob=0.0).hidden_dropout_prob == 0.0


def test_sequences_longer_than_a_config_files_positions_are_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path, max_position_embeddings=66)
    with pytest.raises(ConfigError, match="longer than max_position_embeddings allows"):
        resolve(row_length=65, model_config_path=path)
    assert resolve(row_length=64, model_config_path=path).max_seq_length == 64


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model_type": "falcon"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "swish"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"hidden_size": "768"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_size": True}, "hidden_size"),
        ({"pad_token_id": None}, "pad_token_id"),
        ({"layer_norm_eps": None}, "layer_norm_eps"),
    ],
)
def test_unsupported_config_file_is_refused_with_the_field_name(
    tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    path = write_config(tmp_path, **values)
    with pytest.raises(ConfigError, match=named) as caught:
        resolve(model_config_path=path)
    assert caught.value.field == "model_config_path"


@pytest.mark.parametrize("content", [None, "not json", "[]", "\ufeff{}"])
def test_invalid_config_file_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        resolve(model_config_path=str(path))
    assert caught.value.field == "model_config_path"
    assert caught.value.expected


def test_parameters_are_counted_without_a_backend() -> None:
    base = replace(resolve(row_length=512, size="base"), vocab_size=50265)
    assert count_parameters(base) == 124_697_433  # transformers' count for roberta-base.


@pytest.mark.parametrize(
    ("family", "size", "vocab_size", "positions", "parameters"),
    [
        # transformers' counts for the published models; BERT and ModernBERT with their heads.
        ("bert", "base", 30_522, 512, 109_514_298),
        ("gpt2", "base", 50_257, 1024, 124_439_808),
        ("gpt2", "medium", 50_257, 1024, 354_823_168),
        ("gpt2", "large", 50_257, 1024, 774_030_080),
        ("t5", "small", 32_128, 512, 76_961_152),
        ("t5", "base", 32_128, 512, 247_577_856),
        ("t5", "large", 32_128, 512, 783_150_080),
        ("bart", "base", 50_265, 1024, 139_420_416),
        ("bart", "large", 50_265, 1024, 406_291_456),
        ("modernbert", "base", 50_368, 8192, 149_655_232),
        ("modernbert", "large", 50_368, 8192, 395_881_664),
        ("llama", "135m", 49_152, 8192, 134_515_008),
        ("llama", "360m", 49_152, 8192, 361_821_120),
        ("llama", "1.1b", 32_000, 2048, 1_100_048_384),
        ("llama", "1.7b", 49_152, 8192, 1_711_376_384),
        ("qwen3", "0.6b", 151_936, 32_768, 596_049_920),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(
    family: Any, size: Any, vocab_size: int, positions: int, parameters: int
) -> None:
    found = resolve(row_length=positions, family=family, size=size)
    assert count_parameters(replace(found, vocab_size=vocab_size)) == parameters
    assert size_of(found) == size


@pytest.mark.parametrize("family", list_family_names())
def test_every_family_has_increasing_sizes_with_a_memory_estimate(family: Any) -> None:
    counts = {}
    for size in find_family(family).sizes:
        found = resolve(family=family, size=size)
        assert (found.model_type, found.max_seq_length >= 64) == (family, True)
        config, parameters = TrainConfig(family=family, size=size), count_parameters(found)
        memory = estimate_memory_bytes(found, parameters, config, 64)
        assert memory > 16 * parameters
        counts[size] = (parameters, memory)
    # Llama's and Qwen3's own sizes follow the base.
    last = {"1.7b"} if family == "llama" else {"0.6b"} if family == "qwen3" else {"large"}
    assert {"tiny", "mini", "small", "base", *last} <= counts.keys()
    assert sorted(counts.values()) == sorted(counts.values(), key=lambda one: one[1])


def test_size_that_a_family_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="family t5 has no size medium") as caught:
        resolve(family="t5", size="medium")
    assert caught.value.field == "size"
    assert "small, base" in caught.value.expected


def test_config_file_of_another_family_is_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    with pytest.raises(ConfigError, match="belongs to another family") as caught:
        resolve(family="gpt2", model_config_path=path)
    assert caught.value.field == "family"


def test_num_hidden_layers_sets_the_layers_of_encoder_and_decoder() -> None:
    found = resolve(family="bart", num_hidden_layers=5, hidden_size=96)
    assert isinstance(found, BartArchitecture)
    assert (found.num_hidden_layers, found.num_decoder_layers) == (5, 5)
    assert (found.intermediate_size, found.num_attention_heads) == (384, 1)


def test_gpt2_needs_no_padding_token() -> None:
    assert resolve(pad_id=None, family="gpt2").pad_token_id == 2


@pytest.mark.parametrize("family", ["bert", "modernbert", "t5", "bart"])
def test_other_families_need_a_padding_token(family: Any) -> None:
    with pytest.raises(ConfigError, match="no padding token"):
        resolve(pad_id=None, family=family)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_decoder_families_need_an_end_of_text_token(family: Any) -> None:
    config = TrainConfig(family=family)
    with pytest.raises(ConfigError, match="no end-of-text token"):
        resolve_architecture(config, vocab_size=99, row_length=64, pad_id=1)


def test_special_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ConfigError, match="outside the vocabulary") as caught:
        resolve(pad_id=99)
    assert (caught.value.expected, caught.value.received) == ("pad_token_id below 99", "99")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model_type": "t5", "feed_forward_proj": "relu"}, "feed_forward_proj"),
        ({"model_type": "t5", "feed_forward_proj": "gated-gelu"}, "tie_word_embeddings"),
        ({"model_type": "bart", "decoder_attention_heads": 3}, "decoder_attention_heads"),
        ({"model_type": "bart", "scale_embedding": True}, "scale_embedding"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx"),
        ({"model_type": "modernbert", "mlp_bias": True}, "mlp_bias"),
        (
            {"model_type": "modernbert", "layer_types": ["full_attention", "full_attention",
                                                          "sliding_attention"]},
            "layers_are_regular",
        ),
        ({"model_type": "modernbert", "rope_scaling": {"type": "linear", "factor": 2.0}},
         "global_rope_type"),
        ({"model_type": "modernbert", "rope_parameters": {"sliding_attention": {"type": "yarn"}}},
         "local_rope_type"),
        ({"model_type": ["gpt2"]}, "model_type: roberta or bert"),
        ({"model_type": "gpt2", "n_embd": None}, "n_embd: a whole number"),
        ({"model_type": "modernbert", "rope_parameters": 3}, "rope_parameters: an object"),
        ({"model_type": "modernbert", "rope_parameters": {"full_attention": 3}},
         "full_attention: an object"),
        ({"model_type": "modernbert", "rope_scaling": [2.0]}, "rope_scaling: an object"),
        ({"model_type": "modernbert", "layer_types": 5}, "layer_types: a list"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_key_value_heads: a number that"),
        ({"model_type": "llama", "head_dim": 15}, "head_dim: an even number"),
        ({"model_type": "llama", "tie_word_embeddings": 1}, "tie_word_embeddings: true or false"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "linear"}}, "factor: a number"),
        ({"model_type": "llama", "rope_parameters": {"rope_theta": "big"}}, "rope_theta: a number"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"]}, "attention_is_full"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window"),
    ],
)  # fmt: skip
def test_unsupported_config_values_are_refused_by_name(
    tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=named) as caught:
        resolve(model_config_path=str(path))
    assert str(path) in caught.value.problem and caught.value.received


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_first_of_several_end_of_text_tokens_is_used(family: str) -> None:
    found = parse_config({"model_type": family, "eos_token_id": [7, 9]}, "it")
    assert found.eos_token_id == 7
    assert getattr(found, "decoder_start_token_id", found.pad_token_id) == 7


@pytest.mark.parametrize("family", ["gpt2", "t5", "bart"])
def test_common_names_of_dimensions_are_read(family: str) -> None:
    """The family's own name takes precedence if a file has both."""
    t5 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "head_dim": 16}
    common = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    values = {"model_type": family, **common, "decoder_attention_heads": 4}
    found = parse_config({**values, **(t5 if family == "t5" else {})}, "it")
    assert (found.hidden_size, found.num_hidden_layers, found.head_size) == (64, 3, 16)
    own = {"gpt2": "n_layer", "t5": "num_layers", "bart": "encoder_layers"}[family]
    both = {**values, **(t5 if family == "t5" else {}), own: 5}
    assert parse_config(both, "it").num_hidden_layers == 5
    if family == "gpt2":
        assert found.intermediate_size == 4 * 64
        assert parse_config({**values, "max_position_embeddings": 9}, "it").max_seq_length == 9


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_rotary_frequencies_are_scaled_as_in_transformers(kind: str) -> None:
    """Published files name the scaling in either of two ways."""
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama import LlamaConfig

    scaling = {
        "rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 256,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5,
    }  # fmt: skip
    theirs = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=1024,
        rope_parameters={**scaling, "rope_theta": 5e4},
    )  # fmt: skip
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
    for values in (theirs.to_dict(), {"rope_theta": 5e4, "rope_scaling": scaling}):
        own = {"model_type": "llama", "max_position_embeddings": 1024}
        found = parse_config({**values, **own}, "it")
        tables = rotary_tables(2, 64, RotaryPositions(found.rope_theta, found.rope_scaling))
        assert tables[0, 1, :32] == pytest.approx(np.cos(frequencies.numpy()) * factor, abs=1e-6)
        assert tables[1, 1, 32:] == pytest.approx(np.sin(frequencies.numpy()) * factor, abs=1e-6)


@pytest.mark.parametrize("layers", [7, 3, 2])
def test_modernbert_configs_of_transformers_5_are_read(tmp_path: Path, layers: int) -> None:
    kinds = ["full_attention" if index % 2 == 0 else "sliding_attention" for index in range(layers)]
    rope = {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 3e3}}
    values = {"model_type": "modernbert", "num_hidden_layers": layers}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, "layer_types": kinds, "rope_parameters": rope}))
    found = resolve(model_config_path=str(path))
    assert isinstance(found, ModernBertArchitecture)
    assert [found.is_global(index) for index in range(layers)] == [
        kind == "full_attention" for kind in kinds
    ]
    assert (found.global_rope_theta, found.local_rope_theta) == (5e4, 3e3)


def test_parameter_count_equals_that_of_the_built_model() -> None:
    code = """
        from core.config import TrainConfig
        from core.models.building import create_model
        from core.models.registry import count_parameters, resolve_architecture
        config = TrainConfig(size="tiny", num_hidden_layers=3, intermediate_size=50)
        found = resolve_architecture(config, vocab_size=71, row_length=16, pad_id=3)
        print([count_parameters(found), create_model(found, seed=0).count_params()])
    """
    counted, built = run_on("jax", code)
    assert counted == built
