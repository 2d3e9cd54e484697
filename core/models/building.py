"""Builds a model; imports a backend only then."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from core.architecture.architecture import Architecture
from core.families import find_family

if TYPE_CHECKING:
    from core.models.head import LanguageModel

_MODELS = {
    "encoder": ("core.models.encoder", "EncoderForMaskedLM"),
    "decoder": ("core.models.decoder", "DecoderForCausalLM"),
    "encoder-decoder": ("core.models.encoder_decoder", "EncoderDecoder"),
}


def create_model(
    architecture: Architecture, *, seed: int, dtype_policy: str = "float32", remat: bool = False
) -> LanguageModel:
    """Builds a model; initial weights are equal on all backends.

    `dtype_policy` is float32, mixed_bfloat16 or bfloat16.
    """
    options = find_family(architecture.model_type).options(architecture)
    module, name = _MODELS[architecture.kind]
    model_class = getattr(import_module(module), name)
    model: LanguageModel = model_class(
        architecture, options, seed=seed, dtype=dtype_policy, remat=remat
    )
    return model
