"""The selection of the precision for inference."""

from __future__ import annotations

from typing import Any

import pytest

from core.architecture.architecture import EncoderDecoderArchitecture
from core.families.roberta import RobertaArchitecture
from core.inference import precision
from tests.engines import ENGINES, run_on

DIMENSIONS = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
ENCODER = RobertaArchitecture(**DIMENSIONS)  # type: ignore[arg-type]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Records measurements; bfloat16 is twice as fast with 32 tokens, and no faster with one."""
    calls: list[tuple[int, ...]] = []

    def measure(*sizes: int) -> float:
        calls.append(sizes)
        return 2.0 if sizes[-1] == 32 else 1.0

    monkeypatch.setattr(precision, "_measure", measure)
    monkeypatch.setattr(precision, "_gains", {})
    return calls


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_requested_precision_is_used(dtype: Any, measured: list[tuple[int, ...]]) -> None:
    assert precision.choose_dtype(dtype, ENCODER, 32) == dtype
    assert not measured


def test_auto_precision_is_the_faster_one_and_measured_once(
    measured: list[tuple[int, ...]],
) -> None:
    chosen = [precision.choose_dtype("auto", ENCODER, tokens) for tokens in (32, 1, 32, 1)]
    assert chosen == ["bfloat16", "float32"] * 2
    assert measured == [(32, 128, 2, 32), (32, 128, 2, 1)]


def test_encoder_and_decoder_layers_count_and_large_models_are_measured_in_part(
    measured: list[tuple[int, ...]],
) -> None:
    halves = EncoderDecoderArchitecture(**DIMENSIONS, num_decoder_layers=3)  # type: ignore[arg-type]
    precision.choose_dtype("auto", halves, 32)
    large = RobertaArchitecture(  # type: ignore[arg-type]
        **{**DIMENSIONS, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48}
    )
    precision.choose_dtype("auto", large, 32)
    assert [sizes[2] for sizes in measured] == [5, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_matmuls_are_timed(engine: str) -> None:
    code = """
        import json
        from core.inference.precision import _measure, _products
        kinds = [_products(32, 64, 2, 8, one)().dtype.name for one in ("float32", "bfloat16")]
        print(json.dumps([kinds, _measure(32, 64, 2, 8)]))
    """
    kinds, gain = run_on(engine, code)
    assert kinds == ["float32", "bfloat16"]
    assert gain > 0
