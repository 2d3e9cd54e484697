"""Registry of the objectives by name."""

from __future__ import annotations

from core.errors import ConfigError
from core.objectives.clm import CausalLanguageModel
from core.objectives.denoising import Denoising
from core.objectives.mlm import MaskedLanguageModel
from core.objectives.objective import Objective, ObjectiveSettings, Vocabulary
from core.objectives.span_corruption import SpanCorruption

ObjectiveClass = (
    type[MaskedLanguageModel] | type[CausalLanguageModel] | type[SpanCorruption] | type[Denoising]
)

OBJECTIVES: dict[str, ObjectiveClass] = {
    "mlm": MaskedLanguageModel,
    "clm": CausalLanguageModel,
    "span_corruption": SpanCorruption,
    "denoising": Denoising,
}


def stored_sequence_length(name: str, settings: ObjectiveSettings) -> int:
    """Returns the length of an objective's stored sequences, in tokens.

    Raises:
        ConfigError: An unknown name, or a setting out of range.
    """
    return _find(name).stored_sequence_length(settings)


def create_objective(name: str, settings: ObjectiveSettings, vocabulary: Vocabulary) -> Objective:
    """Creates an objective for a tokenizer.

    Raises:
        ConfigError: As above, or the tokenizer lacks a token.
    """
    return _find(name).create(settings, vocabulary)


def _find(name: str) -> ObjectiveClass:
    if name not in OBJECTIVES:
        raise ConfigError(
            f"The objective {name!r} is unknown",
            expected=", ".join(OBJECTIVES),
            received=name,
            fix="choose a listed objective",
            field="objective",
        )
    return OBJECTIVES[name]
