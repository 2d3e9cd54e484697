"""Malicious config.json files: read, or refused with the field, at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.architecture.architecture import Architecture
from core.errors import CheckpointError, ConfigError, StudioError
from core.families import weight_mappings
from core.models import hf
from core.models.registry import count_parameters
from tests.core.models.families import FAMILIES, small_architecture

ROOT = Path(__file__).parents[3]


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "nested"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested"),
        ('{"model_type": "bert", "hidden_size": NaN}', "NaN"),
        ('{"model_type": "bert", "layer_norm_eps": -Infinity}', "Infinity"),
        ('{"model_type": "bert", "layer_norm_eps": 1e999}', "is too large"),
        ('{"model_type": "bert", "hidden_size": ' + "9" * 5000 + "}", "digits"),
        ('{"model_type": "bert", "hidden_size": 8, "hidden_size": 16}', "two values"),
        (b'{"model_type": "\xff"}', "utf-8"),
        (b"\x00" * 100, "JSON"),
        ("", "JSON"),
    ],
)
def test_invalid_json_is_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match="isn't valid JSON") as caught:
        hf.read_architecture(write(tmp_path, text))
    assert said in str(caught.value) and len(str(caught.value)) < 1000


def test_oversized_config_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "{}")
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="too large"):
        hf.read_architecture(tmp_path)


def test_pipe_named_as_a_config_is_refused_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    os.mkfifo(path)
    code = "import sys; from core.models import hf; hf.read_architecture(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert "CheckpointError" in done.stderr and "a named pipe" in done.stderr


def test_duplicate_key_with_equal_values_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    write(tmp_path, b'\xef\xbb\xbf{"model_type": "bert", "vocab_size": 9, "vocab_size": 9}')
    assert hf.read_architecture(tmp_path).vocab_size == 9


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**300}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"hidden_size": 770}, "num_attention_heads"),
        ({"num_attention_heads": 1 << 30, "hidden_size": 1 << 16}, "num_attention_heads"),
        ({"intermediate_size": 1 << 30}, "intermediate_size"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"vocab_size": "30522"}, "vocab_size"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings"),
        ({"type_vocab_size": 1 << 30}, "type_vocab_size"),
        ({"pad_token_id": 30_522}, "pad_token_id"),
        ({"eos_token_id": 1 << 70}, "eos_token_id"),
        ({"layer_norm_eps": 1e30}, "layer_norm_eps"),
        ({"hidden_dropout_prob": 7}, "hidden_dropout_prob"),
        ({"initializer_range": 10**400}, "initializer_range"),
        ({"hidden_size": [[[[1] * 50] * 50] * 50]}, "hidden_size"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings"),
        ({"model_type": "modernbert", "num_attention_heads": 256}, "num_attention_heads"),
        ({"model_type": "modernbert", "vocab_size": 9}, "pad_token_id"),
        ({"model_type": "modernbert", "max_position_embeddings": 1 << 20, "num_attention_heads": 1},
         "max_position_embeddings"),
        ({"model_type": "modernbert", "global_rope_theta": 0}, "global_rope_theta"),
        ({"model_type": "bart", "decoder_layers": 1_000_000}, "decoder_layers"),
        ({"model_type": "bart", "decoder_start_token_id": 99_999}, "decoder_start_token_id"),
    ],
)  # fmt: skip
def test_out_of_range_number_is_named(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    write(tmp_path, json.dumps({"model_type": "bert", **values}))
    with pytest.raises(ConfigError, match=named) as caught:
        hf.read_architecture(tmp_path)
    assert str(tmp_path) in caught.value.problem and caught.value.expected
    assert len(caught.value.received) < 200


@pytest.mark.parametrize("seed", range(60))
def test_any_value_gives_an_architecture_or_an_error(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    values = hf.config_values(small_architecture(family))
    odd = [None, True, -1, 0, 1, 2**31, 2**63, 10**80, 0.5, -1e300, "", "9", [], [1], {}, {"a": []}]
    for name in generator.choice(sorted(values), 3, replace=False):
        values[str(name)] = odd[generator.integers(len(odd))]
    write(tmp_path, json.dumps(values))
    try:
        architecture = hf.read_architecture(tmp_path)
    except StudioError as error:
        assert error.received and error.fix
    else:
        assert count_parameters(architecture) > 0
        assert hf.parse_config(hf.config_values(architecture), "here") == architecture


@pytest.mark.parametrize("family", FAMILIES)
def test_time_to_count_parameters_does_not_depend_on_the_layers(family: str) -> None:
    small = small_architecture(family)
    names = [name for name in ("num_hidden_layers", "num_decoder_layers") if hasattr(small, name)]
    for layers in (1, 2, 3, 4, 9):
        found = replace(small, **dict.fromkeys(names, layers))
        assert count_parameters(found) == sum(
            int(np.prod(tie.shape)) for tie in weight_mappings(found)
        )
    started = time.process_time()
    assert count_parameters(replace(small, **dict.fromkeys(names, 1_000_000))) > 1_000_000
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("kind", "name"),
    [("xlm-roberta", "XLMRobertaForMaskedLM"), ("camembert", "CamembertForMaskedLM")],
)
def test_variant_of_roberta_keeps_its_model_type(tmp_path: Path, kind: str, name: str) -> None:
    small = small_architecture("roberta")
    values = {**hf.config_values(small), "model_type": kind, "architectures": [name]}
    found = hf.parse_config(values, "here")
    assert (found.model_type, found.variant) == ("roberta", kind)
    assert replace(found, variant="") == small
    written = hf.config_values(found)
    assert (written["model_type"], written["architectures"]) == (kind, [name])
    assert hf.parse_config(written, "here") == found
    assert hf.parse_config({"model_type": kind}, "here").vocab_size == 30_522


@pytest.mark.parametrize("family", [*FAMILIES, "xlm-roberta"])
def test_config_without_model_type_is_recognised_by_its_class(family: str) -> None:
    variant = family if family == "xlm-roberta" else ""
    small = replace(small_architecture("roberta" if variant else family), variant=variant)
    values = hf.config_values(small)
    del values["model_type"]
    assert hf.parse_config(values, "here") == small


@pytest.mark.slow(10)
def test_xlm_roberta_matches_transformers(tmp_path: Path) -> None:
    """A model that transformers saved is read, and written so that transformers reads it."""
    torch = pytest.importorskip("torch", reason="PyTorch is the judge")
    from transformers import AutoModelForMaskedLM, XLMRobertaConfig, XLMRobertaForMaskedLM

    from core.inference.graph import build_graph

    pytest.importorskip("openvino")
    import openvino

    config = XLMRobertaConfig(
        vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=30, initializer_range=0.3,
    )  # fmt: skip
    theirs = XLMRobertaForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    architecture: Architecture = hf.read_architecture(tmp_path / "theirs")
    assert architecture.variant == "xlm-roberta"
    weights = hf.read_weights(tmp_path / "theirs")
    ids = np.random.default_rng(0).integers(4, 53, (1, 12))
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids)).logits.numpy()[0]
    graph = openvino.Core().compile_model(
        build_graph(weights, architecture), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    places = np.arange(12)[None] + config.pad_token_id + 1
    inputs = [ids, places, np.zeros((1, 12)), np.arange(12)[None]]
    answer = graph([one.astype(np.int32) for one in inputs])[0]
    assert np.ptp(wanted) > 1
    assert np.abs(answer - wanted).max() < 1e-4

    (tmp_path / "ours").mkdir()
    hf.write_weights(tmp_path / "ours", weights, architecture)
    again, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(again) is XLMRobertaForMaskedLM
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert np.array_equal(again.eval()(torch.tensor(ids)).logits.numpy()[0], wanted)
