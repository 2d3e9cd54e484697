"""Checks which programs can run a family."""

from __future__ import annotations

from core.architecture.architecture import Architecture
from core.architecture.family import Family
from core.errors import ConfigError
from core.families import find_family, list_families


def family_for_llama_cpp(architecture: Architecture) -> Family:
    """Returns a model's family; raises ConfigError if llama.cpp can't run it."""
    family = find_family(architecture.model_type)
    if not family.gguf_architecture:
        supported = [known.title for known in list_families() if known.gguf_architecture]
        raise ConfigError(
            f"llama.cpp can't run {family.title} models as they are trained here",
            expected=f"a model of the family {' or '.join(supported)}",
            received=family.title,
            fix="export it with ⟬--format⟭ onnx, or train a decoder",
            field="format",
        )
    return family
